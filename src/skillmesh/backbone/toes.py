"""Inputs of a Head2Toe head from a torch network: the last layer, and channels of any layer, pooled to grids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from skillmesh.backbone.spec import Toes, refuse_windows
from skillmesh.numerics.arrays import Floats

if TYPE_CHECKING:
    from skillmesh.backbone.torch_network import TorchNetwork
    from skillmesh.data.images import Pixels


def toe_features(network: TorchNetwork, images: Pixels, added: Floats, toes: Toes) -> Floats:
    """Return the last layer's features, then each channel's grid, computed in one pass over a batch.

    Grids are in the order of the vector of biases; layers may run in another.
    """
    grids: dict[str, torch.Tensor] = {}

    def pooling(path: str, channels: torch.Tensor):  # type: ignore[no-untyped-def]
        def pool(layer: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            refuse_windows(path, len(output), len(images))
            maps = _maps(output, isinstance(layer, nn.Linear))[:, channels]
            grids[path] = nn.functional.adaptive_avg_pool2d(maps.float(), toes.grid).flatten(1)

        return pool

    hooks = []
    paths = []
    for place in network.places:
        inside = toes.channels[(toes.channels >= place.start) & (toes.channels < place.part.stop)] - place.start
        if len(inside):
            layer = network.twin.model.get_submodule(place.path)
            chosen = torch.tensor(inside, device=network.device)
            hooks.append(layer.register_forward_hook(pooling(place.path, chosen)))
            paths.append(place.path)
    try:
        raw = network.forward(images, added, recorded=False)
    finally:
        for hook in hooks:
            hook.remove()
    features = raw[:, : network.features].astype(np.float32)
    pooled = torch.cat([grids[path] for path in paths], dim=1).cpu().numpy().astype(np.float32)
    return np.concatenate([features, pooled], axis=1)


def _maps(output: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """Return a layer's output as (n, channels, height, width); the last tokens are arranged in a square."""
    if not channels_last:
        return output
    if output.ndim == 4:
        return output.permute(0, 3, 1, 2)
    tokens = output.reshape(len(output), -1, output.shape[-1]).transpose(1, 2)
    side = max(1, int(np.sqrt(tokens.shape[2])))
    return tokens[:, :, tokens.shape[2] - side * side :].reshape(len(output), -1, side, side)
