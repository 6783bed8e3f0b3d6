"""Nearest class mean: the oldest way to learn without forgetting, and hard to beat for its price.

A class is the mean of its images; an image belongs to the nearest. A new class is one more row, and no other row
changes: what was learned stays as it was, bit by bit.
"""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from skillmesh_challenge.baselines.frozen import FrozenLearner, class_means, powered
from skillmesh_challenge.baselines.settings.frozen import NearestMean as Settings


class NearestMeanLearner(FrozenLearner[Settings]):
    """One row per class."""

    def take_in(self, x: torch.Tensor, labels: torch.Tensor, classes: int) -> None:
        self.append("means", class_means(powered(x, self.method.power), labels, classes))

    def scores(self, x: torch.Tensor, columns: slice) -> torch.Tensor:
        x, means = powered(x, self.method.power), self.kept["means"][columns]
        if self.method.distance == "cosine":
            return normalize(x) @ normalize(means).T
        # |x − μ|² less |x|², which is the same for all classes, halved and turned round.
        return x @ means.T - 0.5 * means.square().sum(dim=1)
