"""Classes as Gaussians with one common scatter, the form that composing, merging, extending and vetting work with.

`Anchor.gaussians` converts an anchor of any kind to this form. Kinds that add up can be built from it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skillmesh.backbone.calibration import Haste, Prior
from skillmesh.numerics.arrays import Doubles, Factor, Floats, LowRank, Precision, thinned, total
from skillmesh.numerics.graphs import Graph, Value

PRIOR_TASKS = 0.5
"""Weight of the calibration's scatter in the pooled scatter, in tasks."""
HALF_EVIDENCE = 16.0
"""Degrees of freedom at which a task has half the weight of a task with very many."""
SHRINKAGE = 0.1
"""Share of the pooled scatter that is replaced by its diagonal, 0 to 1."""
NUISANCE = 1.0
"""Weight of the calibration's nuisance, which is added to the pooled scatter: directions in which views move
descriptors say less about the class."""
LENIENCE = 0.035
"""Share by which the novelty of an image is lowered that looks like a photo taken in a hurry."""
MAX_TRACE = 8.0
"""Maximum trace of a task's scatter, as a multiple of the calibration's; a larger one (an error or an attack) is
scaled down."""


@dataclass(frozen=True)
class Gaussians:
    """Means of a task's classes, and the scatter of images around them."""

    means: Floats
    scatter: LowRank
    freedom: int
    """Degrees of freedom of the scatter: number of images minus number of classes."""


def pooled_precision(tasks: Sequence[Gaussians], prior: Prior) -> Precision:
    """Return the inverse of the pooled scatter of a bank with these tasks; it defines the distances."""
    rows = min(prior.within.dim, rows_of_all(tasks, prior))
    room: Floats = np.empty((rows, prior.within.dim), dtype=np.float32)
    return pooled_scatter(tasks, prior, room).inverse(out=room)


def lenient(novelty: Floats, x: Floats, haste: Haste | None) -> Floats:
    """Lower the novelty of images that look as if they were taken in a hurry: that alone makes them new."""
    if haste is None:
        return novelty
    lowered: Floats = novelty * (1 - np.float32(LENIENCE) * haste.of(x))
    return lowered


def lenient_in(graph: Graph, novelty: Value, x: Value, haste: Haste | None) -> Value:
    """Add what `lenient` computes to a graph."""
    if haste is None:
        return novelty
    return graph("Mul", novelty, graph("Sub", 1.0, graph("Mul", haste.of_in(graph, x), LENIENCE)))


def rows_of_all(tasks: Sequence[Gaussians], prior: Prior) -> int:
    of_prior = len(prior.within.factor) + (0 if prior.nuisance is None else len(prior.nuisance.factor))
    return of_prior + sum(len(task.scatter.factor) for task in tasks)


def pooled_scatter(tasks: Sequence[Gaussians], prior: Prior, room: Floats) -> LowRank:
    """Return the average scatter of the tasks (nearly equal weights) and of the calibration, plus the nuisance.

    `room` receives the factor.
    """
    cap = MAX_TRACE * prior.within.variances.sum()
    weights = [task.freedom / (task.freedom + HALF_EVIDENCE) for task in tasks]
    share = (1 - SHRINKAGE) / (PRIOR_TASKS + sum(weights))

    def weighted(scatter: LowRank, weight: float) -> LowRank:
        trace = scatter.variances.sum()
        return scatter.scaled(share * weight * min(1.0, cap / trace if trace else 1.0))

    def parts() -> Iterator[LowRank]:
        yield prior.within.scaled(share * PRIOR_TASKS)
        for task, weight in zip(tasks, weights, strict=True):
            yield weighted(task.scatter, weight)
        if prior.nuisance is not None:
            yield prior.nuisance.scaled(NUISANCE)

    rows = rows_of_all(tasks, prior)
    shrunk = total(parts(), room if rows == len(room) else np.empty((rows, prior.within.dim), dtype=np.float32))
    room[:] = shrunk.factor
    return LowRank(shrunk.diagonal + SHRINKAGE / (1 - SHRINKAGE) * shrunk.variances, room)


# Merging: statistics of several teachers about the same classes, added up as if one teacher had seen all images.
#
# The number of images of a class, their mean and their scatter around it are sufficient statistics. They add up if
# the scatter also includes the distance between the means: for two parts of a class
#
#     n = n₁ + n₂,   nμ = n₁μ₁ + n₂μ₂,   S = S₁ + S₂ + n₁n₂/(n₁+n₂) · (μ₁−μ₂)(μ₁−μ₂)ᵀ.
#
# Scatters are stored as a diagonal and a factor (`numerics/arrays.py`), so the last term is one more row of the
# factor: nothing is rounded or cut off. Heads do not add up in this way: see `synergy/merging.py`.

Places = NDArray[np.int64]
"""Index of each class of a part among the classes of the whole."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of classes: numbers of images, means, and the scatter of all images around their class's mean."""

    counts: Doubles
    means: Doubles
    scatter: LowRank
    """Summed over images, not averaged."""

    @classmethod
    def of(cls, x: Floats, labels: NDArray[np.int64], classes: int) -> Statistics:
        """Return the exact statistics of labelled images: the factor has a row for each image."""
        counts = np.bincount(labels, minlength=classes).astype(np.float64)
        sums = np.zeros((classes, x.shape[1]))
        np.add.at(sums, labels, x.astype(np.float64))
        means = sums / np.maximum(counts, 1)[:, None]
        return cls(counts, means, LowRank(np.zeros(x.shape[1]), x - means[labels]))

    @classmethod
    def of_gaussians(cls, known: Gaussians, counts: ArrayLike) -> Statistics:
        """Return the statistics of Gaussians that were fitted on `counts` images of each class."""
        images = np.asarray(counts, dtype=np.float64)
        freedom = max(float(images.sum()) - len(images), 0.0)
        return cls(images, known.means.astype(np.float64), known.scatter.scaled(freedom))

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the scatter: number of images minus number of classes."""
        return max(float(self.counts.sum()) - int((self.counts > 0).sum()), 0.0)

    def gaussians(self, rank: int | None = None) -> Gaussians:
        """Return the same as Gaussians; the scatter's factor keeps all its rows, or is reduced to `rank` rows."""
        scatter = self.scatter.scaled(1 / self.freedom if self.freedom else 0.0)
        if rank is not None:
            scatter = thinned([scatter], rank)
        return Gaussians(self.means.astype(np.float32), scatter, int(self.freedom))


def merged(parts: Sequence[tuple[Statistics, Places]], classes: int) -> Statistics:
    """Return the sum of statistics. The order of `parts` changes the result by rounding only."""
    dim = parts[0][0].scatter.dim
    counts, means, diagonal = np.zeros(classes), np.zeros((classes, dim)), np.zeros(dim)
    factor: Factor = np.zeros((0, dim))
    for part, places in parts:
        old, new = counts[places], part.counts
        both = np.maximum(old + new, 1)
        shift = part.means - means[places]
        apart = (np.sqrt(old * new / both)[:, None] * shift)[(old > 0) & (new > 0)]
        factor = _folded(np.concatenate([factor, part.scatter.factor, apart]))
        means[places] += (new / both)[:, None] * shift
        counts[places] = old + new
        diagonal = diagonal + part.scatter.diagonal
    return Statistics(counts, means, LowRank(diagonal, factor))


def _folded(factor: Factor) -> Factor:
    """Return an equivalent factor with at most as many rows as columns, the R of its QR decomposition."""
    if len(factor) <= factor.shape[1]:
        return factor
    return np.asarray(np.linalg.qr(factor.astype(np.float64)).R)
