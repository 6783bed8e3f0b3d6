"""The networks that have a short name, and how any other timm network becomes a backbone."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT = "lite0"


@dataclass(frozen=True)
class NetworkSpec:
    """What must be known to build a network and feed it, beside its weights.

    Fields left `None` are taken from timm's own card of the network.
    """

    name: str
    timm_name: str
    size: int | None = None
    """Width and height of the input in pixels."""
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    """Input is (RGB/255 − mean) / std."""
    taps: tuple[str, ...] | None = None
    """Modules whose output gives a mean and a std per channel to the descriptor."""
    fold: bool = False
    """Whether every batch norm follows the convolution that stands before it, so that the two can be one."""


_LITE0 = NetworkSpec(
    name="lite0",
    timm_name="tf_efficientnet_lite0",
    size=224,
    mean=(127 / 255,) * 3,
    std=(128 / 255,) * 3,
    taps=("bn1", *(f"blocks.{i}" for i in range(7))),
    fold=True,
)
# The paper's backbone. Its later blocks all have 728 channels: they would double the descriptor for little.
_XCEPTION = NetworkSpec(
    name="xception",
    timm_name="legacy_xception",
    size=299,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    taps=("act2", "block1", "block2", "block3"),
)
NAMED = {spec.name: spec for spec in (_LITE0, _XCEPTION)}


def spec_of(name: str) -> NetworkSpec:
    """Return the spec of a short name, or a bare one for a timm name (whether timm knows it shows on building)."""
    return NAMED.get(name) or NetworkSpec(name=name, timm_name=name)
