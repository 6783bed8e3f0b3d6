"""Streaming LDA (Hayes & Kanan 2020, "Lifelong Machine Learning with Deep Streaming Linear Discriminant
Analysis").

Every class has its own mean; all share one covariance. Both are running sums, so images may arrive one by one and
in any order. Scores are linear: w = Λμ and b = −½ μᵀΛμ, with Λ the inverse of the shrunk covariance.

The paper updates its covariance with each image's distance to the mean of its class *so far*, weighted by the
number of images of *all* classes: an approximation that depends on the order. We have all images of a task, so we
add their exact scatter around their class means, which the paper's running sum approaches.
"""

from __future__ import annotations

import torch

from skillmesh.numerics.arrays import cholesky_macs, gram_macs, spend
from skillmesh_challenge.baselines.frozen import FrozenLearner, class_means
from skillmesh_challenge.baselines.settings.frozen import Slda as Settings


class SldaLearner(FrozenLearner[Settings]):
    """Keeps class means and one shared covariance."""

    def take_in(self, x: torch.Tensor, labels: torch.Tensor, classes: int) -> None:
        means = class_means(x, labels, classes)
        residuals = x.double() - means[labels]
        spend("scatter", gram_macs(x.shape[1], len(x)))
        self.append("means", means)
        self.add("scatter", residuals.T @ residuals)
        self.add("images", torch.tensor([float(len(x))], device=self.device))

    def prepare(self) -> None:
        share, means = self.method.shrinkage, self.kept["means"].double()
        classes, dim = means.shape
        covariance = self.kept["scatter"].double() / self.kept["images"]
        covariance = (1 - share) * covariance + share * torch.eye(dim, device=self.device)
        weights = torch.cholesky_solve(means.T, torch.linalg.cholesky(covariance)).T
        spend("solve", cholesky_macs(dim) + classes * (float(dim) ** 2 + dim))
        self.weights = weights.float()
        self.biases = (-0.5 * (weights * means).sum(dim=1)).float()

    def scores(self, x: torch.Tensor, columns: slice) -> torch.Tensor:
        return x @ self.weights[columns].T + self.biases[columns]
