"""FeCAM (Goswami et al. 2023, "FeCAM: Exploiting the Heterogeneity of Class Distributions").

Every class has its own covariance. A power transform makes features more Gaussian. Covariances are shrunk twice
(γ₁ of the mean variance is added to the diagonal, γ₂ of the mean covariance off the diagonal) and normalised to
correlations, so that the Mahalanobis distances of different classes can be compared; images and means are scaled
to length one.

The published method stores a d × d matrix per class: 4 GB for 607 classes of 1,280 features, 20 GB at 2,912
dimensions. But a class of n images has a covariance of rank n − 1, so the shrunk one is αI + β11ᵀ + RᵀR, where R
has n rows, and its inverse follows exactly from n × n products (Woodbury). We keep those n rows: the distances are
the same, and small classes need far fewer bytes. If a class has more images than dimensions, R has d rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn.functional import normalize

from skillmesh.numerics.arrays import cholesky_macs, gram_macs, spend
from skillmesh_challenge.baselines.frozen import FrozenLearner, class_means, powered
from skillmesh_challenge.baselines.settings.frozen import Fecam as Settings

LEAST = 1e-12
"""Smallest variance. A class whose images are all equal gets it, and then has the identity as correlations."""


class Distance(NamedTuple):
    """Distance of y to a class with mean μ: Σ scale·(y − μ)² + Σ sign·(row·(y − μ))²."""

    scale: torch.Tensor
    rows: torch.Tensor
    signs: torch.Tensor


class FecamLearner(FrozenLearner[Settings]):
    """Learns one Mahalanobis distance per class."""

    def take_in(self, x: torch.Tensor, labels: torch.Tensor, classes: int) -> None:
        x, method = powered(x.double(), self.method.power), self.method
        means = class_means(x, labels, classes)
        spend("transform", float(x.numel()))
        distances = [
            class_distance(x[labels == label] - mean, method.gamma1, method.gamma2, method.shrinks)
            for label, mean in enumerate(means)
        ]
        owners = [torch.full_like(one.signs, sum(self.spans) + label) for label, one in enumerate(distances)]
        self.append("means", normalize(means))
        self.append("scales", torch.stack([one.scale for one in distances]))
        self.append("rows", torch.cat([one.rows for one in distances]))
        self.append("signs", torch.cat([one.signs for one in distances]))
        self.append("owners", torch.cat(owners))

    def prepare(self) -> None:
        self._owners = self.kept["owners"].long()
        self._towards = self.kept["scales"] * self.kept["means"]
        self._offsets = (self._towards * self.kept["means"]).sum(dim=1)
        self._row_offsets = (self.kept["rows"] * self.kept["means"][self._owners]).sum(dim=1)

    def scores(self, x: torch.Tensor, columns: slice) -> torch.Tensor:
        y = normalize(powered(x, self.method.power))
        distances = y.square() @ self.kept["scales"][columns].T - 2 * y @ self._towards[columns].T
        distances += self._offsets[columns]
        ends = torch.tensor([columns.start, columns.stop], device=self.device)
        rows = slice(*torch.searchsorted(self._owners, ends).tolist())
        along = (y @ self.kept["rows"][rows].T - self._row_offsets[rows]).square_().mul_(self.kept["signs"][rows])
        return -distances.index_add_(1, self._owners[rows] - columns.start, along)


def class_distance(residuals: torch.Tensor, gamma1: float, gamma2: float, shrinks: int) -> Distance:
    """Return the distance of a class from its residuals (images minus their mean)."""
    images, dim = residuals.shape
    rows = residuals / math.sqrt(max(1, images - 1))
    if images > dim:
        rows = torch.linalg.qr(rows, mode="r").R
        spend("covariance", gram_macs(dim, images))
    alpha, beta = _shrunk(rows, gamma1, gamma2, shrinks)
    deviation = (rows.square().sum(dim=0) + alpha + beta).clamp(min=LEAST).sqrt()
    alpha = max(alpha, LEAST)
    # (αI + RᵀR)⁻¹ = (I − BᵀB) / α with B = L⁻¹R and LLᵀ = αI + RRᵀ; the Sherman-Morrison formula adds β11ᵀ.
    small = rows @ rows.T
    small.diagonal().add_(alpha)
    inner = torch.linalg.solve_triangular(torch.linalg.cholesky(small), rows, upper=False)
    ones = (1 - inner.T @ inner.sum(dim=1)) / alpha
    weight = beta / (1 + beta * float(ones.sum()))
    count = float(len(rows))
    spend("covariance", gram_macs(len(rows), dim) + cholesky_macs(len(rows)) + (count**2 / 2 + 2 * count) * dim)
    kept = torch.cat([inner / math.sqrt(alpha), math.sqrt(abs(weight)) * ones[None]]) * deviation
    signs = -torch.ones(len(kept), dtype=kept.dtype, device=kept.device)
    signs[-1] = -math.copysign(1, weight)
    return Distance(deviation.square() / alpha, kept, signs)


def _shrunk(rows: torch.Tensor, gamma1: float, gamma2: float, shrinks: int) -> tuple[float, float]:
    """Return α and β of the term αI + β11ᵀ that shrinking adds to RᵀR."""
    dim = rows.shape[1]
    trace, total = float(rows.square().sum()), float(rows.sum(dim=1).square().sum())
    variance, covariance = trace / dim, (total - trace) / (dim * max(1, dim - 1))
    alpha = beta = 0.0
    for _ in range(shrinks):
        to_diagonal, off_diagonal = gamma1 * (variance + alpha + beta), gamma2 * (covariance + beta)
        alpha, beta = alpha + to_diagonal - off_diagonal, beta + off_diagonal
    return alpha, beta
