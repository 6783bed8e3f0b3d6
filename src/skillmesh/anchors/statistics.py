"""Merging: what several teachers know of the same classes, added up as if one had seen all their images.

Of a class it is enough to know how many images there were, their mean, and how they scatter around it. These add
up, if the scatter takes in how far the means lie apart: for two parts of a class

    n = n₁ + n₂,   nμ = n₁μ₁ + n₂μ₂,   S = S₁ + S₂ + n₁n₂/(n₁+n₂) · (μ₁−μ₂)(μ₁−μ₂)ᵀ.

Scatters are kept as a diagonal and a factor (`numerics/lowrank.py`), so the last term is one more row of the
factor: nothing is rounded, and nothing is cut off. Heads do not add up like that: see
`synergy/merging/heads.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skillmesh.anchors.protocol import Labels
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.numerics.lowrank import Doubles, Factor, LowRank, thinned
from skillmesh.numerics.tensors import Floats

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
    def of(cls, x: Floats, labels: Labels, classes: int) -> Statistics:
        """Count images as they are: all of them stand in the factor, so nothing is lost."""
        counts = np.bincount(labels, minlength=classes).astype(np.float64)
        sums = np.zeros((classes, x.shape[1]))
        np.add.at(sums, labels, x.astype(np.float64))
        means = sums / np.maximum(counts, 1)[:, None]
        return cls(counts, means, LowRank(np.zeros(x.shape[1]), x - means[labels]))

    @classmethod
    def of_anchor(cls, anchor: SketchAnchor, counts: ArrayLike) -> Statistics:
        """What an anchor says of so many images of each class."""
        seen = np.asarray(counts, dtype=np.float64)
        freedom = max(float(seen.sum()) - len(seen), 0.0)
        return cls(seen, anchor.means.astype(np.float64), anchor.scatter.scaled(freedom))

    @property
    def freedom(self) -> float:
        """Images less classes: how much the scatter rests on."""
        return max(float(self.counts.sum()) - int((self.counts > 0).sum()), 0.0)

    def anchor(self, rank: int | None = None) -> SketchAnchor:
        """The same as an anchor, with as many rows as it takes, or cut to so many."""
        scatter = self.scatter.scaled(1 / self.freedom if self.freedom else 0.0)
        if rank is not None:
            scatter = thinned([scatter], rank)
        return SketchAnchor(self.means.astype(np.float32), scatter, int(self.freedom))


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
