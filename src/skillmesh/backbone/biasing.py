"""Where biases act: behind every convolution and linear layer, y = layer(x) + b + B, one number per channel.

All of a network's biases are one vector, layer after layer in the order of its modules. A `Biased` network takes
that vector as an input. Its weights are those of the network that it was made from, shared and never changed, so
another task's biases are another vector and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from skillmesh.errors import BackboneError

Layer = nn.Conv2d | nn.Linear
Norm = nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm
WITH_NORM = "with_norm"
"""Attribute of a convolution that a norm was folded into."""


@dataclass(frozen=True)
class Place:
    """One layer's part of the vector."""

    path: str
    start: int
    channels: int
    normed: bool = False
    """Whether a norm stands directly before or behind the layer: a bias here is then, but for the scale of its
    channel or for the layer's weights, a bias behind that norm."""

    @property
    def part(self) -> slice:
        return slice(self.start, self.start + self.channels)


def places(model: nn.Module) -> tuple[Place, ...]:
    """List the layers behind which biases act, in the order of the vector."""
    found, start, normed = [], 0, _beside_norms(model)
    for path, layer in _layers(model):
        channels = layer.out_channels if isinstance(layer, nn.Conv2d) else layer.out_features
        found.append(Place(path, start, channels, path in normed))
        start += channels
    return tuple(found)


def chosen(where: str, all_places: tuple[Place, ...]) -> tuple[Place, ...]:
    """Pick layers: `all`, `last-half`, `last-N`, `after-norm`, or all whose paths begin with names with commas.

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
    found = tuple(place for place in all_places if any(f"{place.path}.".startswith(f"{name}.") for name in names))
    if not found or not all(names):
        raise BackboneError(
            f"there are no layers {where!r}; expected all, last-half, last-1 to last-{len(all_places)}, "
            "after-norm where the network has norms, or names with commas between, such as "
            f"{all_places[0].path} or {all_places[-1].path.partition('.')[0]}"
        )
    return found


class Biased:
    """A twin of a network which shares its weights and takes the biases as an input.

    Setting them is no more than pointing layers at parts of a vector; a twin serves one thread at a time.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = twin_of(model)
        self._layers = [layer for _, layer in _layers(self.model)]
        self.places = places(self.model)
        self.sizes = [place.channels for place in self.places]
        self.base = _own_biases(self._layers, self.sizes)
        """The vector of the network's own biases."""
        for layer in self._layers:
            del layer._parameters["bias"]

    def __call__(self, pixels: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
        for layer, part in zip(self._layers, torch.split(biases, self.sizes), strict=True):
            layer.bias = part
        output: torch.Tensor = self.model(pixels)
        return output


def twin_of(model: nn.Module) -> nn.Module:
    """Copy the modules, not the weights."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def _layers(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    for path, module in model.named_modules():
        if isinstance(module, Layer):
            yield path, module


def _beside_norms(model: nn.Module) -> set[str]:
    """Paths of layers next to a norm, in the order of modules; containers do not stand between."""
    in_order = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, Layer | Norm) or not any(module.children())
    ]
    beside = {path for path, module in in_order if getattr(module, WITH_NORM, False)}
    for (path, module), (next_path, next_module) in pairwise(in_order):
        if isinstance(module, Layer) and isinstance(next_module, Norm):
            beside.add(path)
        elif isinstance(module, Norm) and isinstance(next_module, Layer):
            beside.add(next_path)
    return beside


def _own_biases(layers: list[Layer], sizes: list[int]) -> torch.Tensor:
    own = [
        layer.weight.new_zeros(size) if layer.bias is None else layer.bias.detach()
        for layer, size in zip(layers, sizes, strict=True)
    ]
    return torch.cat(own)
