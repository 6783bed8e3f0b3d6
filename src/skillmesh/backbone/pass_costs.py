"""What one image costs in a network, in multiply–accumulates layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skillmesh.backbone.biasing import Place
    from skillmesh.backbone.network import Network


@dataclass(frozen=True)
class PassCosts:
    """MACs of one image, layer by layer in the order of the network's places."""

    layers: tuple[int, ...]

    @property
    def forward(self) -> int:
        return sum(self.layers)

    def from_layer(self, first: int) -> int:
        """Forward from this layer on."""
        return sum(self.layers[first:])

    def backward(self, first: int) -> int:
        """Backward where the first biased layer is this one: the gradient passes through all layers behind it."""
        return sum(self.layers[first + 1 :])


def pass_costs(network: Network, size: int | None = None) -> PassCosts:
    """Read off one pass how much each layer multiplies, for images of the network's size or another."""
    return PassCosts(tuple(network.layer_macs(size)))


def first_of(chosen: Sequence[Place], places: Sequence[Place]) -> int:
    """The index of the first chosen layer among all."""
    return min(places.index(place) for place in chosen)
