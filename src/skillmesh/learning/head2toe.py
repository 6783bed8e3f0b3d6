"""Head2Toe from biases: the head also draws on the channels whose biases grew largest (paper, section 6.3).

No separate stage selects them. Their feature maps are pooled to small grids, about 8,192 numbers in all, and stand
beside the last layer of the biased network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skillmesh.learning.costs import Costs, head_macs
from skillmesh.learning.head import Head, Labels, log_loss
from skillmesh.tensors import Floats

if TYPE_CHECKING:
    from skillmesh.backbone.network import Network
    from skillmesh.data.images import Pixels

SHARE = 0.01
DIMENSIONS = 8192
EPOCHS, RATE, BATCH, PATIENCE = 100, 1e-3, 128, 10
FLAT = 1e-4


@dataclass(frozen=True)
class Toes:
    """Channels by their index in the vector of biases, and the side of the grid that each is pooled to."""

    channels: NDArray[np.int64]
    grid: int


def choose_toes(added: NDArray[np.floating], share: float = SHARE, dimensions: int = DIMENSIONS) -> Toes:
    """Take the largest biases' channels; ties go to the earlier."""
    count = max(1, round(share * len(added)))
    largest = np.argsort(-np.abs(added), kind="stable")[:count]
    return Toes(np.sort(largest), max(1, int(np.sqrt(dimensions / count))))


def toe_features(network: Network, images: Pixels, biases: torch.Tensor, toes: Toes) -> Floats:
    """The last layer's features, then each channel's grid, in one pass over a batch."""
    found: list[torch.Tensor] = []

    def pooling(channels: torch.Tensor):  # type: ignore[no-untyped-def]
        def pool(layer: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            maps = _maps(output, isinstance(layer, nn.Linear))[:, channels]
            found.append(nn.functional.adaptive_avg_pool2d(maps.float(), toes.grid).flatten(1))

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
    return np.concatenate([features, torch.cat(found, dim=1).cpu().numpy().astype(np.float32)], axis=1)


def _maps(output: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """Bring a layer's output to (n, channels, height, width); tokens stand in as square an order as they can."""
    if not channels_last:
        return output
    if output.ndim == 4:
        return output.permute(0, 3, 1, 2)
    tokens = output.reshape(len(output), -1, output.shape[-1]).transpose(1, 2)
    side = max(1, int(np.sqrt(tokens.shape[2])))
    return tokens[:, :, tokens.shape[2] - side * side :].reshape(len(output), -1, side, side)


def fit_by_adam(
    x: Floats, labels: Labels, val_x: Floats, val_labels: Labels, classes: int, device: torch.device, seed: int = 0
) -> tuple[Head, Costs]:
    """Train a head as the paper does; validation says when to stop."""
    mean, spread = x.mean(axis=0), x.std(axis=0)
    std: Floats = np.where(spread < FLAT, np.inf, spread).astype(np.float32)  # what never changes says nothing
    torch.manual_seed(seed)
    inputs, targets = torch.tensor((x - mean) / std, device=device), torch.tensor(labels, device=device)
    layer = nn.Linear(x.shape[1], classes, device=device)
    optimiser = torch.optim.Adam(layer.parameters(), RATE)
    best, best_loss, waited, rounds = None, np.inf, 0, 0
    for _ in range(EPOCHS):
        order = torch.randperm(len(x), device="cpu").to(device)
        for rows in torch.split(order, BATCH):
            optimiser.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(layer(inputs[rows]), targets[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        rounds += 1
        weight: Floats = (layer.weight.detach().cpu().numpy() / std).astype(np.float32)
        head = Head(weight, layer.bias.detach().cpu().numpy() - weight @ mean)
        loss = log_loss(head.logits(val_x), val_labels) if len(val_x) else -float(rounds)
        best, best_loss, waited = (head, loss, 0) if loss < best_loss else (best, best_loss, waited + 1)
        if waited >= PATIENCE:
            break
    assert best is not None
    costs = Costs()
    costs.add("head", head_macs(len(x), x.shape[1], classes, rounds))
    return best, costs
