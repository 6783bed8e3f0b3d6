"""RanPAC (McDonnell et al. 2023, "Random Projections and Pre-trained Models for Continual Learning").

A random matrix and a ReLU turn features into M = 10,000 numbers, on which ridge regression predicts the classes.
It needs only two sums, the Gram matrix and each class's sum of projected images, so that the order of tasks does
not matter. The random matrix is drawn from the seed and need not be kept.

The ridge is chosen as in the paper's appendix: with each task, a fifth of its training images is held out to
compare fits to the other four fifths. So the ridge does depend on which task came last.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import one_hot

from skillmesh.errors import DataError
from skillmesh.numerics.arrays import cholesky_macs, gram_macs, spend
from skillmesh_challenge.baselines.frozen import FrozenLearner
from skillmesh_challenge.baselines.settings.frozen import RanPac as Settings

RIDGES = tuple(10.0**power for power in range(-8, 9))
LEARNED_SHARE = 0.8


class RanPacLearner(FrozenLearner[Settings]):
    """Random projection and ridge regression."""

    def take_in(self, x: torch.Tensor, labels: torch.Tensor, classes: int) -> None:
        lifted, width = self.lift(x), self.method.width
        wanted = one_hot(labels, classes).to(lifted.dtype)
        spend("projection", float(x.numel()) * width)
        spend("gram", gram_macs(width, len(x)) + float(lifted.numel()))
        self.add("gram", lifted.T @ lifted)
        self.append("sums", wanted.T @ lifted)
        ridge = self.method.ridge
        if ridge is None:
            chance = torch.Generator().manual_seed(self.seed)
            ridge = chosen_ridge(lifted, wanted, torch.randperm(len(x), generator=chance).to(self.device))
        self.kept["ridge"] = torch.tensor([ridge], dtype=torch.float64, device=self.device)

    def prepare(self) -> None:
        sums = self.kept["sums"].double()
        factor = _root(self.kept["gram"], float(self.kept["ridge"]))
        self.weights = torch.cholesky_solve(sums.T, factor).T.float()
        classes, width = sums.shape
        spend("solve", cholesky_macs(width) + classes * float(width) ** 2)

    def scores(self, x: torch.Tensor, columns: slice) -> torch.Tensor:
        return self.lift(x) @ self.weights[columns].T

    def lift(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self._projection(x.shape[1])).relu_()

    def _projection(self, dim: int) -> torch.Tensor:
        if not hasattr(self, "_drawn"):
            chance = torch.Generator().manual_seed(self.seed)
            self._drawn = torch.randn(dim, self.method.width, generator=chance).to(self.device)
        return self._drawn


def _root(gram: torch.Tensor, ridge: float) -> torch.Tensor:
    """Return the Cholesky factor of the Gram matrix with the ridge added to its diagonal."""
    if not gram.isfinite().all():
        raise DataError("features of an image are not finite; expected finite numbers; use other backbone weights")
    while True:
        square = gram.double()
        square.diagonal().add_(ridge)
        factor: torch.Tensor
        factor, failed = torch.linalg.cholesky_ex(square)
        if not failed:
            return factor
        ridge *= 10  # a ridge below the rounding error does not make the matrix invertible


def chosen_ridge(lifted: torch.Tensor, wanted: torch.Tensor, order: torch.Tensor) -> float:
    """Return the ridge whose fit to the first four fifths of images has the least squared error on the rest."""
    cut = max(1, int(LEARNED_SHARE * len(order)))
    lifted, wanted = lifted[order].double(), wanted[order].double()
    known, held = lifted[:cut], lifted[cut:]
    if few := cut <= lifted.shape[1]:  # the same fit from the smaller image-by-image products
        square, right, left = known @ known.T, wanted[:cut], held @ known.T
    else:
        square, right, left = known.T @ known, known.T @ wanted[:cut], held
    side, classes = right.shape
    spend("ridge", gram_macs(side, known.numel() // side) + (float(left.numel()) * lifted.shape[1] if few else 0))
    spend("ridge", len(RIDGES) * (cholesky_macs(side) + float(side) * classes * (side + len(left))))
    losses = [_held_out_loss(square, right, left, wanted[cut:], ridge) for ridge in RIDGES]
    return RIDGES[losses.index(min(losses))]


def _held_out_loss(
    square: torch.Tensor, right: torch.Tensor, left: torch.Tensor, wanted: torch.Tensor, ridge: float
) -> float:
    factor, failed = torch.linalg.cholesky_ex(square + ridge * torch.eye(len(square), device=square.device))
    if failed or not len(left):
        return math.inf
    return float((left @ torch.cholesky_solve(right, factor) - wanted).square().mean())
