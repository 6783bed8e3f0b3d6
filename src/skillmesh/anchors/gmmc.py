"""gmmc: the paper's first task mapper, k diagonal Gaussians per task (section 4 of the paper).

The mapper of a bank of T tasks is a list of kT clusters; an image belongs to the task of its single best cluster.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from skillmesh.anchors.protocol import (
    Anchor,
    AnchorSettings,
    Labels,
    Scorer,
    Scores,
    best_in,
    best_per_task,
    first_columns,
)
from skillmesh.backbone.calibration import Prior
from skillmesh.common.extras import SCIKIT_LEARN, Extra
from skillmesh.numerics.arrays import Floats, Spec, Tensors, em_macs, spend
from skillmesh.numerics.graphs import Graph, Value


@dataclass(frozen=True)
class GmmcAnchor(Anchor):
    """A mixture of diagonal Gaussians over a task's training descriptors."""

    kind: ClassVar[str] = "gmmc"
    most_claimed: ClassVar[float] = 0.25
    fitted_with: ClassVar[Extra | None] = SCIKIT_LEARN

    weights: Floats
    means: Floats
    variances: Floats

    @classmethod
    def fit(
        cls, x: Floats, labels: Labels, classes: int, settings: AnchorSettings, images: int | None = None
    ) -> Self:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture

        # EM runs in float64: with variances near the floor, float32 gives clusters with negative variance.
        mixture = GaussianMixture(
            min(settings.clusters, len(x)),
            covariance_type="diag",
            reg_covar=settings.variance_floor,
            random_state=settings.seed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            mixture.fit(x.astype(np.float64))
        spend("EM", em_macs(len(x), x.shape[1], mixture.n_components, mixture.n_iter_))
        parts = (mixture.weights_, mixture.means_, mixture.covariances_)
        return cls(*(part.astype(np.float32) for part in parts))

    @classmethod
    def specs(cls, classes: int, dim: int) -> dict[str, Spec]:
        return {
            "gmmc.weight": Spec("F32", ("k",), low=0, high=1),
            "gmmc.mean": Spec("F32", ("k", dim), low=-1e6, high=1e6),
            "gmmc.variance": Spec("F32", ("k", dim), low=1e-12, high=1e12),
        }

    def tensors(self) -> Tensors:
        return {"gmmc.weight": self.weights, "gmmc.mean": self.means, "gmmc.variance": self.variances}

    @classmethod
    def read(cls, tensors: Tensors) -> Self:
        return cls(tensors["gmmc.weight"], tensors["gmmc.mean"], tensors["gmmc.variance"])

    @classmethod
    def pool(cls, anchors: Iterable[Self], prior: Prior) -> GmmcScorer:
        return GmmcScorer(list(anchors))

    def rows(self) -> Floats:
        return self.means

    def spread(self) -> float:
        """Return the trace of the widest cluster's covariance."""
        return float(self.variances.sum(axis=1, dtype=np.float64).max())


class GmmcScorer(Scorer):
    """Computes log φ + log N of every image under every cluster, as two matrix products.

    −½ Σ (x−μ)²/σ² expands to products of x² and x with matrices that do not depend on x. Subtracting a common
    centre keeps the terms small, so that float32 agrees with the direct formula.
    """

    usual_threshold = float("inf")  # novelties of this kind have no common scale

    def __init__(self, anchors: Sequence[GmmcAnchor]) -> None:
        self._starts = first_columns([len(anchor.weights) for anchor in anchors])
        means = np.concatenate([anchor.means for anchor in anchors]).astype(np.float64)
        variances = np.concatenate([anchor.variances for anchor in anchors]).astype(np.float64)
        shares = [np.maximum(anchor.weights.astype(np.float64), 1e-30) for anchor in anchors]
        weights = np.concatenate([share / share.sum() for share in shares])
        centre = means.mean(axis=0)
        means -= centre
        self._centre = centre.astype(np.float32)
        self._square = (-0.5 / variances).astype(np.float32)
        self._linear = (means / variances).astype(np.float32)
        log_norm = np.log(2 * np.pi * variances).sum(axis=1) + (means**2 / variances).sum(axis=1)
        self._constant = (np.log(weights) - 0.5 * log_norm).astype(np.float32)
        self.macs = float(2 * means.size + means.shape[1])
        spend("mapper", 3.0 * means.size)  # tiny; the paper counts nothing for a gmmc student

    def log_joint(self, x: Floats) -> Floats:
        """Return (n, clusters): log φ + log N, comparable across tasks."""
        centred = x - self._centre
        joint: Floats = np.square(centred) @ self._square.T + centred @ self._linear.T + self._constant
        return joint

    def score(self, x: Floats) -> Scores:
        joint = self.log_joint(x)
        return Scores(best_per_task(joint, self._starts), -joint.max(axis=1))

    def score_in(self, graph: Graph, x: Value) -> tuple[Value, Value]:
        centred = graph("Sub", x, self._centre)
        squares = graph.product(graph("Mul", centred, centred), self._square)
        joint = graph("Add", graph("Add", squares, graph.product(centred, self._linear)), self._constant)
        best = best_in(graph, joint, self._starts, len(self._constant))
        return best, graph("Neg", graph.largest(joint))


ANCHOR = GmmcAnchor
"""The class that `anchors.KINDS` imports from this file."""
