"""Inputs of a Head2Toe head: the last layer, and maps of channels from any layer, pooled to small grids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skillmesh.numerics.arrays import Floats

if TYPE_CHECKING:
    from skillmesh.backbone.network import Network
    from skillmesh.data.images import Pixels

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


def toe_features(network: Network, images: Pixels, biases: torch.Tensor, toes: Toes) -> Floats:
    """Return the last layer's features, then each channel's grid, computed in one pass over a batch."""
    grids: list[torch.Tensor] = []

    def pooling(channels: torch.Tensor):  # type: ignore[no-untyped-def]
        def pool(layer: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            maps = _maps(output, isinstance(layer, nn.Linear))[:, channels]
            grids.append(nn.functional.adaptive_avg_pool2d(maps.float(), toes.grid).flatten(1))

        return pool

    hooks = []
    for place in network.places:
        inside = toes.channels[(toes.channels >= place.start) & (toes.channels < place.part.stop)] - place.start
        if len(inside):
            layer = network.twin.model.get_submodule(place.path)
            hooks.append(layer.register_forward_hook(pooling(torch.tensor(inside, device=network.device))))
    try:
        raw = network.forward(images, biases, recorded=False)
    finally:
        for hook in hooks:
            hook.remove()
    features = raw[:, : network.features].astype(np.float32)
    return np.concatenate([features, torch.cat(grids, dim=1).cpu().numpy().astype(np.float32)], axis=1)


def _maps(output: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """Return a layer's output as (n, channels, height, width); the last tokens are arranged in a square."""
    if not channels_last:
        return output
    if output.ndim == 4:
        return output.permute(0, 3, 1, 2)
    tokens = output.reshape(len(output), -1, output.shape[-1]).transpose(1, 2)
    side = max(1, int(np.sqrt(tokens.shape[2])))
    return tokens[:, :, tokens.shape[2] - side * side :].reshape(len(output), -1, side, side)
