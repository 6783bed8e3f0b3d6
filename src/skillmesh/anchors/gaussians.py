"""Classes as Gaussians of one common scatter: what composing, merging, extending and vetting work with.

Whatever the kind of anchor, it is asked for this (`Anchor.gaussians`), and one that adds up is made of it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skillmesh.backbone.calibration import Prior
from skillmesh.numerics.arrays import Doubles, Factor, Floats, LowRank, Precision, thinned, total

PRIOR_TASKS = 0.5
"""The calibration's scatter weighs as much as so many tasks."""
HALF_EVIDENCE = 32.0
"""A task with so many degrees of freedom has half the weight of one with very many."""
SHRINKAGE = 0.1
"""Share of the pooled scatter that is its diagonal alone."""
MAX_TRACE = 8.0
"""A scatter may be so many times the calibration's; a larger one (a mistake, or a lie) is scaled down."""


@dataclass(frozen=True)
class Gaussians:
    """Means of a task's classes, and how images scatter around them."""

    means: Floats
    scatter: LowRank
    freedom: int
    """Images less classes: how much the scatter rests on."""


def pooled_precision(tasks: Sequence[Gaussians], prior: Prior) -> Precision:
    """The inverse of the scatter that a bank of these tasks pools: distances are measured in it."""
    rows = min(prior.within.dim, rows_of_all(tasks, prior.within))
    room: Floats = np.empty((rows, prior.within.dim), dtype=np.float32)
    return pooled_scatter(tasks, prior.within, room).inverse(out=room)


def rows_of_all(tasks: Sequence[Gaussians], prior: LowRank) -> int:
    return len(prior.factor) + sum(len(task.scatter.factor) for task in tasks)


def pooled_scatter(tasks: Sequence[Gaussians], prior: LowRank, room: Floats) -> LowRank:
    """Average the tasks' scatters, one task one voice, with the calibration's as one more.

    The factor lies in `room`.
    """
    cap = MAX_TRACE * prior.variances.sum()
    voices = [task.freedom / (task.freedom + HALF_EVIDENCE) for task in tasks]
    share = (1 - SHRINKAGE) / (PRIOR_TASKS + sum(voices))

    def voiced(scatter: LowRank, voice: float) -> LowRank:
        trace = scatter.variances.sum()
        return scatter.scaled(share * voice * min(1.0, cap / trace if trace else 1.0))

    def parts() -> Iterator[LowRank]:
        yield prior.scaled(share * PRIOR_TASKS)
        for task, voice in zip(tasks, voices, strict=True):
            yield voiced(task.scatter, voice)

    rows = rows_of_all(tasks, prior)
    shrunk = total(parts(), room if rows == len(room) else np.empty((rows, prior.dim), dtype=np.float32))
    room[:] = shrunk.factor
    return LowRank(shrunk.diagonal + SHRINKAGE / (1 - SHRINKAGE) * shrunk.variances, room)


# Merging: what several teachers know of the same classes, added up as if one had seen all their images.
#
# Of a class it is enough to know how many images there were, their mean, and how they scatter around it. These add
# up, if the scatter takes in how far the means lie apart: for two parts of a class
#
#     n = n₁ + n₂,   nμ = n₁μ₁ + n₂μ₂,   S = S₁ + S₂ + n₁n₂/(n₁+n₂) · (μ₁−μ₂)(μ₁−μ₂)ᵀ.
#
# Scatters are kept as a diagonal and a factor (`numerics/arrays.py`), so the last term is one more row of the
# factor: nothing is rounded, and nothing is cut off. Heads do not add up like that: see
# `synergy/merging.py`.

Places = NDArray[np.int64]
"""Where each class of a part stands among the classes of the whole."""


@dataclass(frozen=True)
class Statistics:
    """What is known of some classes: images, means, and the scatter of all of them around their own means."""

    counts: Doubles
    means: Doubles
    scatter: LowRank
    """Summed over images, not averaged."""

    @classmethod
    def of(cls, x: Floats, labels: NDArray[np.int64], classes: int) -> Statistics:
        """Count images as they are: all of them stand in the factor, so nothing is lost."""
        counts = np.bincount(labels, minlength=classes).astype(np.float64)
        sums = np.zeros((classes, x.shape[1]))
        np.add.at(sums, labels, x.astype(np.float64))
        means = sums / np.maximum(counts, 1)[:, None]
        return cls(counts, means, LowRank(np.zeros(x.shape[1]), x - means[labels]))

    @classmethod
    def of_gaussians(cls, known: Gaussians, counts: ArrayLike) -> Statistics:
        """What Gaussians say of so many images of each class."""
        seen = np.asarray(counts, dtype=np.float64)
        freedom = max(float(seen.sum()) - len(seen), 0.0)
        return cls(seen, known.means.astype(np.float64), known.scatter.scaled(freedom))

    @property
    def freedom(self) -> float:
        """Images less classes: how much the scatter rests on."""
        return max(float(self.counts.sum()) - int((self.counts > 0).sum()), 0.0)

    def gaussians(self, rank: int | None = None) -> Gaussians:
        """The same as Gaussians, with as many rows as it takes, or cut to so many."""
        scatter = self.scatter.scaled(1 / self.freedom if self.freedom else 0.0)
        if rank is not None:
            scatter = thinned([scatter], rank)
        return Gaussians(self.means.astype(np.float32), scatter, int(self.freedom))


def merged(parts: Sequence[tuple[Statistics, Places]], classes: int) -> Statistics:
    """Add statistics up, in the order given: what comes out differs with it by rounding only."""
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
    """More rows than columns say no more than their triangle does."""
    if len(factor) <= factor.shape[1]:
        return factor
    return np.asarray(np.linalg.qr(factor.astype(np.float64)).R)
