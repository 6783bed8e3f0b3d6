"""Head2Toe from biases: the head also reads the channels whose biases grew largest (paper, section 6.3).

No separate stage selects them; `backbone/toes.py` reads their feature maps. The head is trained as in the paper.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from skillmesh.learning.head import MAX_EXPONENT, Head, Labels, log_loss
from skillmesh.numerics.arrays import Floats, head_macs, spend
from skillmesh.numerics.process import seeded

EPOCHS, RATE, BATCH, PATIENCE = 100, 1e-3, 128, 10
FLAT = 1e-4
"""Columns whose standard deviation is at most this, or at most this share of their mean, are ignored."""


def fit_by_adam(
    x: Floats, labels: Labels, val_x: Floats, val_labels: Labels, classes: int, device: torch.device, seed: int = 0
) -> Head:
    """Train a head by Adam as in the paper; return the one of least validation loss.

    Training stops after `PATIENCE` epochs without a better validation loss. Without validation images it runs for
    all `EPOCHS`, and the last head is returned.
    """
    mean, spread = x.mean(axis=0), x.std(axis=0)
    flat = spread <= FLAT * np.maximum(1, np.abs(mean))
    std: Floats = np.where(flat, np.inf, spread).astype(np.float32)
    with seeded(seed, device):
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
            head = _as_stored(layer.weight.detach().cpu().numpy(), layer.bias.detach().cpu().numpy(), mean, std)
            loss = log_loss(head.logits(val_x), val_labels) if len(val_x) else -float(rounds)
            best, best_loss, waited = (head, loss, 0) if loss < best_loss else (best, best_loss, waited + 1)
            if waited >= PATIENCE:
                break
    assert best is not None
    trained, judged = (head_macs(len(part), x.shape[1], classes, rounds) for part in (x, val_x))
    spend("head", trained + judged / 2)  # validation images have no backward pass
    return best


def _as_stored(weight: Floats, bias: Floats, mean: Floats, std: Floats) -> Head:
    """Convert a head on standardised columns to one on raw columns, rounded as a module stores it.

    It is rounded before the means go into the bias: where a column's mean is many times its spread, rounding the
    weight by one step would shift the logits by as many times.
    """
    exponent = np.rint(np.log2(np.where(np.isfinite(std), std, 1))).clip(-MAX_EXPONENT, MAX_EXPONENT)
    rounded = Head.read(Head(weight / std, bias, exponent.astype(np.int8)).tensors())
    return Head(rounded.weight, bias - rounded.weight @ mean, rounded.exponent)
