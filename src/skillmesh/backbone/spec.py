"""What a network is, whichever engine runs it: its input, its taps, the layers that can have biases."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.common.extras import TORCH
from skillmesh.common.files import too_long
from skillmesh.errors import BackboneError

GRAPH, CARD, WEIGHTS, CALIBRATION = "graph.onnx", "network.json", "weights.safetensors", "calibration.safetensors"
"""Files of an exported network."""
PREFIX = "network."
"""What the names of weights begin with in a graph."""


@dataclass(frozen=True)
class NetworkSpec:
    """Everything needed to build a network and prepare its input, except its weights.

    Fields that are `None` are taken from timm's own configuration of the network.
    """

    name: str
    timm_name: str
    size: int | None = None
    """Width and height of the input in pixels."""
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    """The network's input is (RGB/255 − mean) / std."""
    taps: tuple[str, ...] | None = None
    """Paths of modules whose output adds a mean and a std per channel to the descriptor."""
    fold: bool = False
    """Whether every batch norm runs directly after the convolution before it, so that the two can be folded."""


_LITE0 = NetworkSpec(
    name="lite0",
    timm_name="tf_efficientnet_lite0",
    size=224,
    mean=(127 / 255,) * 3,
    std=(128 / 255,) * 3,
    taps=("bn1", *(f"blocks.{i}" for i in range(7))),
    fold=True,
)
# The paper's backbone. Its later blocks all have 728 channels: they would double the descriptor with little gain.
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
    """Return the spec of a short name, or a minimal one for a timm name, which `build` refuses if unknown."""
    return NAMED.get(name) or NetworkSpec(name=name, timm_name=name)


# Places of biases: after every convolution and linear layer, y = layer(x) + b + B, one number per channel.
#
# All biases of a network are one vector, layer after layer in the order of its modules.


@dataclass(frozen=True)
class Place:
    """One layer's part of the vector of biases."""

    path: str
    start: int
    channels: int
    normed: bool = False
    """Whether a norm comes directly before or after the layer: a bias of the layer then equals a bias after that
    norm, except for the scale of its channel or for the layer's weights."""

    @property
    def part(self) -> slice:
        return slice(self.start, self.start + self.channels)


def chosen(where: str, all_places: tuple[Place, ...]) -> tuple[Place, ...]:
    """Return layers: `all`, `last-half`, `last-N`, `after-norm`, or those in comma-separated modules.

    >>> layers = tuple(Place(path, 0, 1) for path in ("stem", "stage1.a", "stage1.b", "stage10"))
    >>> [place.path for place in chosen("last-half", layers)], [place.path for place in chosen("stage1", layers)]
    (['stage1.b', 'stage10'], ['stage1.a', 'stage1.b'])
    """
    if where == "all":
        return all_places
    if where == "last-half":
        return all_places[len(all_places) // 2 :]
    if where == "after-norm" and any(place.normed for place in all_places):
        return tuple(place for place in all_places if place.normed)
    if where.startswith("last-"):
        count = where.removeprefix("last-")
        if count.isdecimal() and 1 <= int(count) <= len(all_places):
            return all_places[-int(count) :]
    names = where.split(",")
    named = tuple(place for place in all_places if any(f"{place.path}.".startswith(f"{name}.") for name in names))
    if not named or not all(names):
        raise BackboneError(
            f"there are no layers {where!r}; expected all, last-half, last-1 to last-{len(all_places)}, "
            "after-norm if the network has norms, or names separated by commas, such as "
            f"{all_places[0].path} or {all_places[-1].path.partition('.')[0]}"
        )
    return named


# Inputs of a Head2Toe head: the features, and some channels of any layer, pooled to small grids.

SHARE = 0.01
DIMENSIONS = 8192


@dataclass(frozen=True)
class Toes:
    """Chosen channels, by their index in the vector of biases, and the side of the grid that each is pooled to."""

    channels: NDArray[np.int64]
    grid: int


def choose_toes(added: NDArray[np.floating], share: float = SHARE, dimensions: int = DIMENSIONS) -> Toes:
    """Return the channels with the largest absolute biases; of equal ones, the earlier."""
    count = max(1, round(share * len(added)))
    largest = np.argsort(-np.abs(added), kind="stable")[:count]
    return Toes(np.sort(largest), max(1, int(np.sqrt(dimensions / count))))


def refuse_windows(path: str, outputs: int, images: int) -> None:
    """Raise `BackboneError` for a layer that cuts images into windows, which have no place in a grid."""
    if outputs != images:
        raise BackboneError(
            f"the layer {path} gives {outputs} outputs for {images} image{'s' if images > 1 else ''}, so its "
            "channels cannot be inputs of a head2toe head; expected one output per image; choose the adaptation "
            "biases"
        )


# An exported network: a folder with a graph, a card that describes it, weights and a calibration.

_MOST_BYTES = {CARD: 2**24, GRAPH: 2**28}
_NAME = re.compile(r"[\w.:+-]{1,100}")
_MOST_PIXELS = 4096
"""Largest width and height of a network's input."""


def content_of(folder: Path, name: str) -> bytes:
    """Return card or graph of an exported network; raise `BackboneError` if it is missing or far too large."""
    file, reason = folder / name, f"it has no file {name}"
    try:
        if file.is_file():  # reading from a pipe would wait
            if file.stat().st_size <= _MOST_BYTES[name]:
                return file.read_bytes()
            reason = f"{name} has more than {_MOST_BYTES[name] // 10**6} MB"
    except OSError as error:
        reason = f"{name} cannot be read: {error.strerror}"
    raise BackboneError(
        f"{folder} is not an exported network ({reason}); expected the files {CARD}, {GRAPH} and {WEIGHTS} that "
        "`skillmesh backbone NAME --export DIR` writes"
    )


def read_card(content: str, source: str) -> dict[str, Any]:
    """Return the description of an exported network; raise `BackboneError` if it is none."""
    try:
        card: dict[str, Any] = dict(json.loads(content))
        spec = NetworkSpec(**{key: _as_tuple(value) for key, value in card["spec"].items()})
        if not (_NAME.fullmatch(spec.name) and _NAME.fullmatch(spec.timm_name)):
            raise ValueError("its name is not one of letters, digits and . : + -")
        whole(spec.size, _MOST_PIXELS)
        if not all(isinstance(tap, str) for tap in spec.taps or ()):
            raise ValueError("its taps are no names")
        return card | {"spec": spec}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BackboneError(
            f"{source} does not describe a network ({type(error).__name__}: {error}); expected the file that "
            "`skillmesh backbone NAME --export DIR` wrote"
        ) from error


def exported_spec(folder: Path) -> NetworkSpec:
    """Return the spec of the network in an exported folder."""
    spec: NetworkSpec = read_card(content_of(folder, CARD).decode(errors="replace"), str(folder / CARD))["spec"]
    return spec


def whole(value: Any, most: int) -> int:
    """Return a number of a card if it is whole and from 1 to `most`; raise `ValueError` otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"found {repr(value)[:40]}, expected a whole number from 1 to {most}")
    return value


def resolve(name: str, weights: Path | None) -> tuple[str, Path | None]:
    """Return name and weights of the backbone that a user typed, where either may be an exported folder.

    A name without a slash, such as `resnet18`, is a folder too if the current directory has an exported network of
    that name; lite0 and xception, and a name that is given with weights, never are. So only what a user types is
    resolved, once: later, what lies where a command runs must not change the network of saved settings.
    """
    if too_long(name):
        raise BackboneError(f"{name[:80]!r}… is too long for a backbone; expected a name or a folder")
    refuse_missing(name, weights)
    if weights is not None and weights.is_dir():
        return exported_spec(weights).name, weights.resolve()
    if weights is None and name not in NAMED and (Path(name) / CARD).is_file():
        return exported_spec(Path(name)).name, Path(name).resolve()
    if names_folder(name):
        if weights is not None:
            raise BackboneError(f"found the folder {name} and the weights {weights}; expected one of the two")
        raise BackboneError(
            f"there is no exported network at {name}; expected a folder with {CARD}, as "
            "`skillmesh backbone NAME --export DIR` writes it"
        )
    return name, weights


def names_folder(name: str) -> bool:
    """Return whether a backbone's name can only be a folder."""
    return "/" in name or os.sep in name


def refuse_missing(name: str, weights: Path | None) -> None:
    """Raise `BackboneError` if the weights of a backbone are given but are not there."""
    if weights is not None and not weights.exists():
        raise BackboneError(
            f"there is no weights file or exported network at {weights}, where the backbone {name!r} was to be; "
            "put it back, or name another"
        )


def calibration_in(weights: Path | None) -> Path | None:
    """Return the calibration in the folder of an exported network; `None` if `weights` is not such a folder."""
    if weights is None or not (file := weights / CALIBRATION).exists():
        return None
    return file


def runs_on_onnx(name: str, weights: Path | None) -> bool:
    """Return whether a backbone that was resolved has a graph for ONNX Runtime; others need PyTorch."""
    return name == "lite0" or (weights is not None and weights.is_dir())


def require_engine(name: str, weights: Path | None) -> None:
    """Raise `BackboneError` if a backbone's weights are missing, or if no installed engine runs it."""
    refuse_missing(name, weights)
    if not runs_on_onnx(name, weights):
        TORCH.require(f"the backbone {name!r}", BackboneError)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
