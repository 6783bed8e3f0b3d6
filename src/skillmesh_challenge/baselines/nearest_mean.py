"""Nearest class mean: the oldest method that learns without forgetting, and hard to beat at its cost.

A class is represented by the mean of its images; an image gets the class with the nearest mean. A new class adds
one row and changes no other: what was learned before stays the same, bit for bit.
"""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from skillmesh_challenge.baselines.frozen import FrozenLearner, class_means, powered
from skillmesh_challenge.baselines.settings.frozen import NearestMean as Settings


class NearestMeanLearner(FrozenLearner[Settings]):
    """Keeps the mean of each class, one row per class."""

    def take_in(self, x: torch.Tensor, labels: torch.Tensor, classes: int) -> None:
        self.append("means", class_means(powered(x, self.method.power), labels, classes))

    def scores(self, x: torch.Tensor, columns: slice) -> torch.Tensor:
        x, means = powered(x, self.method.power), self.kept["means"][columns]
        if self.method.distance == "cosine":
            return normalize(x) @ normalize(means).T
        # −½(|x − μ|² − |x|²): |x|² is the same for all classes.
        return x @ means.T - 0.5 * means.square().sum(dim=1)
