"""The paper's way to warm heads: epochs of gradient descent that begin with the rows of known classes.

In its section 6 a head has no bias and is trained with W′x in the forward pass, where each class's row is divided
by its p-norm, so that rows of several tasks can stand beside each other. With the 2-norm all rows have the same
length; with the infinity norm (the paper's choice) each row's largest weight is 1. `plain` divides by nothing. The
paper states no optimiser for this; we take Adam with the step of 0.001 that it states for Head2Toe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skillmesh.learning.head import Labels, softmax
from skillmesh.numerics.costs import head_macs, spend
from skillmesh.numerics.tensors import Floats

Norm = Literal["plain", "two", "infinity"]
NORMS: tuple[Norm, ...] = ("plain", "two", "infinity")

Watch = Callable[[int, Floats], None]
"""Told the weights that act, W′, before the first epoch (0) and after each."""


@dataclass(frozen=True)
class EpochSettings:
    """How rows are trained."""

    epochs: int = 30
    rate: float = 0.001
    batch: int = 32
    norm: Norm = "infinity"
    seed: int = 0


@dataclass
class _Adam:
    """Adam as published, with its usual constants."""

    rate: float
    steps: int = 0
    first: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    second: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    def step(self, weight: Floats, gradient: Floats) -> None:
        """Move `weight` where it lies. The gradient is used up: passes over memory are most of the time."""
        if not self.steps:
            self.first, self.second = np.zeros_like(weight), np.zeros_like(weight)
        self.steps += 1
        self.first *= np.float32(0.9)
        self.first += np.float32(0.1) * gradient
        self.second *= np.float32(0.999)
        np.square(gradient, out=gradient)
        gradient *= np.float32(0.001)
        self.second += gradient
        spread = np.divide(self.second, np.float32(1 - 0.999**self.steps), out=gradient)
        np.sqrt(spread, out=spread)
        spread += np.float32(1e-8)
        np.divide(self.first, spread, out=spread)
        spread *= np.float32(self.rate / (1 - 0.9**self.steps))
        weight -= spread


def random_rows(classes: int, dim: int, seed: int) -> Floats:
    """As torch's linear layer begins: uniform in ±1/√dim."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (classes, dim)).astype(np.float32) / np.float32(np.sqrt(dim))


def started_rows(classes: int, dim: int, rows: dict[int, Floats], seed: int) -> Floats:
    """The rows of matched classes where there are any, the rest at random."""
    weight = random_rows(classes, dim, seed)
    for index, row in rows.items():
        weight[index] = row
    return weight


def normed(weight: Floats, norm: Norm) -> Floats:
    """W′: each row divided by its norm."""
    return np.asarray(weight / _lengths(weight, norm)[:, None], dtype=np.float32)


def train_rows(
    x: Floats, labels: Labels, start: Floats, settings: EpochSettings, watch: Watch | None = None
) -> Floats:
    """Train for a fixed number of epochs and return W′: the last state is taken, whatever it is worth."""
    weight, adam = start.astype(np.float32), _Adam(settings.rate)  # a copy
    rng = np.random.default_rng(settings.seed)
    for epoch in range(settings.epochs + 1):
        if watch is not None:
            watch(epoch, normed(weight, settings.norm))
        if epoch == settings.epochs:
            break
        for some in _batches(len(x), settings.batch, rng):
            adam.step(weight, row_gradient(weight, x[some], labels[some], settings.norm))
    spend("head", head_macs(len(x), x.shape[1], len(start), settings.epochs))
    return normed(weight, settings.norm)


def row_gradient(weight: Floats, x: Floats, labels: Labels, norm: Norm) -> Floats:
    """Of the mean log-loss of W′x by W. With w′ = w/‖w‖ and g the gradient by w′, it is (g − (g·w′)∂‖w‖)/‖w‖."""
    lengths = _lengths(weight, norm)[:, None]
    acting: Floats = weight / lengths
    share = softmax(x @ acting.T)
    share[np.arange(len(labels)), labels] -= 1
    share /= np.float32(len(labels))
    gradient: Floats = np.asarray(share.T @ x, dtype=np.float32)
    if norm == "plain":
        return gradient
    along = np.einsum("ij,ij->i", gradient, acting)
    if norm == "two":  # the norm's derivative is the row itself
        gradient -= along[:, None] * acting
    else:  # it is the sign at the row's largest weight
        largest = np.arange(len(acting)), np.abs(acting).argmax(axis=1)
        gradient[largest] -= along * np.sign(acting[largest])
    gradient /= lengths
    return gradient


def _lengths(weight: Floats, norm: Norm) -> Floats:
    if norm == "plain":
        return np.ones(len(weight), dtype=np.float32)
    lengths = np.linalg.norm(weight, ord=2 if norm == "two" else np.inf, axis=1)
    return np.asarray(np.maximum(lengths, 1e-12), dtype=np.float32)


def _batches(images: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    order = rng.permutation(images)
    for start in range(0, images, size):
        yield order[start : start + size]
