"""maha: the paper's second task mapper, class means and one tied covariance (section 4 of the paper).

The paper's teachers send m = 5 images per class, from which the student computes the covariance. The student needs
only the images' descriptors, so only these are sent: fewer bytes, and no image leaves its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors.gaussians import Gaussians
from skillmesh.anchors.protocol import (
    Anchor,
    AnchorSettings,
    Labels,
    Scorer,
    Scores,
    TakenClasses,
    best_in,
    best_per_task,
    first_columns,
)
from skillmesh.anchors.sketch import SketchAnchor, class_means
from skillmesh.backbone.calibration import Prior
from skillmesh.errors import TensorError
from skillmesh.numerics.arrays import Floats, Spec, Tensors, cholesky_macs, gram_macs, spend
from skillmesh.numerics.graphs import Graph, Value

SHRINKAGE = 0.1
"""Share of the tied covariance that is replaced by its diagonal: with few images it is singular otherwise."""
PRIOR_IMAGES = 20.0
"""Weight of the calibration's scatter, in shared images."""


@dataclass(frozen=True)
class MahaAnchor(Anchor):
    """Means of all training images per class, and a few descriptors of each."""

    kind: ClassVar[str] = "maha"
    most_claimed: ClassVar[float] = 0.9
    """High since novelty is a plain distance, by which an honest task of varied photographs claims two thirds."""
    divisible: ClassVar[bool] = True

    means: Floats
    samples: Floats
    """Descriptors of the shared images, in the order of their classes."""
    counts: NDArray[np.uint8]
    """Number of rows of `samples` for each class."""

    @classmethod
    def fit(
        cls, x: Floats, labels: Labels, classes: int, settings: AnchorSettings, images: int | None = None
    ) -> Self:
        rng = np.random.default_rng(settings.seed)
        chosen = [
            rng.permutation(np.flatnonzero(labels[:images] == c))[: min(settings.images_per_class, 255)]
            for c in range(classes)
        ]
        counts = np.array([len(rows) for rows in chosen], dtype=np.uint8)
        return cls(class_means(x, labels, classes), x[np.concatenate(chosen)], counts)

    @classmethod
    def specs(cls, classes: int, dim: int) -> dict[str, Spec]:
        return {
            "maha.mean": Spec("F16", (classes, dim)),
            "maha.sample": Spec("F16", ("m", dim)),
            "maha.count": Spec("U8", (classes,), low=1),
        }

    def tensors(self) -> Tensors:
        half = {"maha.mean": self.means, "maha.sample": self.samples}
        return {name: np.clip(rows, -65504, 65504).astype(np.float16) for name, rows in half.items()} | {
            "maha.count": self.counts
        }

    @classmethod
    def read(cls, tensors: Tensors) -> Self:
        samples = tensors["maha.sample"].astype(np.float32)
        counts = tensors["maha.count"]
        if counts.sum(dtype=np.int64) != len(samples):
            raise TensorError(
                f"tensor 'maha.sample' has {len(samples)} rows, expected {counts.sum(dtype=np.int64)}, the sum of "
                "'maha.count'; ask the teacher for the module again"
            )
        return cls(tensors["maha.mean"].astype(np.float32), samples, counts)

    @classmethod
    def pool(cls, anchors: Iterable[Self], prior: Prior) -> MahaScorer:
        return MahaScorer(list(anchors), prior)

    def rows(self) -> Floats:
        return np.concatenate([self.means, self.samples])

    def spread(self) -> float:
        residuals = self.samples - np.repeat(self.means, self.counts, axis=0)
        return float(np.square(residuals, dtype=np.float64).sum(axis=1).mean())

    def class_means(self) -> Floats:
        return self.means

    def gaussians(self, settings: AnchorSettings) -> Gaussians:
        labels = np.repeat(np.arange(len(self.counts)), self.counts)
        sampled = SketchAnchor.fit(self.samples, labels, len(self.counts), settings)
        return Gaussians(self.means, sampled.scatter, sampled.freedom)

    @classmethod
    def composed(
        cls, parts: Sequence[TakenClasses[Self]], order: NDArray[np.int64], settings: AnchorSettings
    ) -> Self:
        """Return an anchor with the means and samples of the chosen classes."""
        means = [part.anchor.means[index] for part in parts for index in part.classes]
        samples = [part.anchor.samples_by_class()[index] for part in parts for index in part.classes]
        counts = np.array([len(samples[i]) for i in order], dtype=np.uint8)
        return cls(np.stack([means[i] for i in order]), np.concatenate([samples[i] for i in order]), counts)

    def widened(self, counts: Sequence[int], x: Floats, labels: Labels, settings: AnchorSettings) -> Self:
        """Return an anchor with all samples, old and new, up to 255 per class (the largest value of `counts`)."""
        own = type(self).fit(x, labels, len(counts), settings)
        pairs = zip(self.samples_by_class(), own.samples_by_class(), strict=True)
        samples = [np.concatenate(pair)[:255] for pair in pairs]
        old, new = np.array(counts, dtype=np.float64), np.bincount(labels, minlength=len(counts))
        share = (old / (old + new))[:, None]
        means = np.asarray(share * self.means + (1 - share) * own.means, dtype=np.float32)
        return type(self)(means, np.concatenate(samples), np.array([len(s) for s in samples], dtype=np.uint8))

    def samples_by_class(self) -> list[Floats]:
        return np.split(self.samples, np.cumsum(self.counts, dtype=np.int64)[:-1])


class MahaScorer(Scorer):
    """Computes Mahalanobis distances to all classes of a bank under one covariance, as matrix products."""

    usual_threshold = float("inf")  # novelties of this kind have no common scale

    def __init__(self, anchors: Sequence[MahaAnchor], prior: Prior) -> None:
        self._starts = first_columns([len(anchor.means) for anchor in anchors])
        means = np.concatenate([anchor.means for anchor in anchors]).astype(np.float64)
        inverse = _inverse(_tied_covariance(anchors, prior))
        centre = means.mean(axis=0)
        centred = means - centre
        towards = centred @ inverse
        self._centre = centre.astype(np.float32)
        self._inverse = inverse.astype(np.float32)
        self._towards = towards.astype(np.float32)
        self._offsets = (0.5 * np.sum(centred * towards, axis=1)).astype(np.float32)
        self.macs = float(towards.size + inverse.size + inverse.shape[0])
        spend("mapper", _building_macs(sum(len(anchor.samples) for anchor in anchors), len(means), prior))

    def score(self, x: Floats) -> Scores:
        centred = x - self._centre
        closeness = centred @ self._towards.T - self._offsets
        distance = np.sum((centred @ self._inverse) * centred, axis=1)
        return Scores(best_per_task(closeness, self._starts), distance - 2 * closeness.max(axis=1))

    def score_in(self, graph: Graph, x: Value) -> tuple[Value, Value]:
        centred = graph("Sub", x, self._centre)
        closeness = graph("Sub", graph.product(centred, self._towards), self._offsets)
        # The inverse is symmetric, so that its rows are its columns.
        products = graph("Mul", graph.product(centred, self._inverse), centred)
        distance = graph("ReduceSum", products, np.array([1]))
        best = best_in(graph, closeness, self._starts, len(self._offsets))
        return best, graph("Sub", distance, graph("Mul", graph.largest(closeness), 2.0))


def _building_macs(samples: int, classes: int, prior: Prior) -> float:
    """Return the MACs of the covariance of all samples and the prior, its inverse, and the means times that."""
    dim = prior.within.dim
    covariance = gram_macs(dim, samples + len(prior.within.factor))
    inverse = cholesky_macs(dim) + float(dim) ** 3
    return covariance + inverse + classes * (float(dim) ** 2 + dim)


def _tied_covariance(anchors: Sequence[MahaAnchor], prior: Prior) -> NDArray[np.float64]:
    residuals = np.concatenate(
        [anchor.samples - np.repeat(anchor.means, anchor.counts, axis=0) for anchor in anchors]
    ).astype(np.float64)
    within = prior.within
    known = within.factor.T @ within.factor
    known[np.diag_indices_from(known)] += within.diagonal
    pooled = (residuals.T @ residuals + PRIOR_IMAGES * known) / (len(residuals) + PRIOR_IMAGES)
    diagonal = np.diagonal(pooled).copy()
    pooled *= 1 - SHRINKAGE
    pooled[np.diag_indices_from(pooled)] += SHRINKAGE * diagonal + 1e-9
    return pooled


def _inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.linalg import cho_factor, cho_solve

    inverse: NDArray[np.float64] = cho_solve(cho_factor(matrix, lower=True), np.eye(len(matrix)))
    return inverse


ANCHOR = MahaAnchor
"""The class that `anchors.KINDS` imports from this file."""
