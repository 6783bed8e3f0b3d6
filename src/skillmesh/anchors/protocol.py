"""What every kind of anchor can do: be fitted, be stored, and be pooled with others into a scorer.

An anchor is made by a teacher from one task alone. A scorer is made by whoever holds several anchors of one
kind; it says for any descriptor how well it fits each task, and how far it is from all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from skillmesh.backbone.calibration import Prior
from skillmesh.tensors import Floats, Spec, Tensors

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class AnchorSettings:
    """Settings of all kinds; each reads its own."""

    rank: int = 8
    """sketch: rows of the scatter's factor."""
    clusters: int = 25
    """gmmc: the paper's k."""
    variance_floor: float = 1e-6
    """gmmc: added to every variance; 1e-6 is scikit-learn's default, 1e-2 suits square-rooted features."""
    images_per_class: int = 5
    """maha: the paper's m."""
    seed: int = 0


@dataclass(frozen=True)
class Scores:
    """How descriptors fit the tasks of a bank."""

    task: Floats
    """(n, tasks): the score of each task's best class or cluster; the largest wins."""
    novelty: Floats
    """(n,): how little a descriptor fits any task; comparable within one scorer only."""

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """Those of one part of the descriptors after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([p.task for p in parts]), np.concatenate([p.novelty for p in parts]))


class Scorer(Protocol):
    """The pooled anchors of a bank."""

    usual_threshold: float
    """Novelty that is usually unknown, for banks whose modules bring no probes."""
    macs: float
    """Of scoring one descriptor."""

    def score(self, x: Floats) -> Scores: ...


class Anchor(Protocol):
    """The summary of one task in descriptor space."""

    kind: ClassVar[str]

    @classmethod
    def fit(cls, x: Floats, labels: Labels, classes: int, settings: AnchorSettings) -> Self:
        """Summarise a task's training descriptors."""
        ...

    @classmethod
    def specs(cls, classes: int, dim: int) -> dict[str, Spec]:
        """Say which tensors a module with such an anchor stores."""
        ...

    @classmethod
    def read(cls, tensors: Tensors) -> Self: ...

    def tensors(self) -> Tensors: ...

    @classmethod
    def pool(cls, anchors: Iterable[Self], prior: Prior) -> Scorer:
        """Build the scorer of a bank. The order of `anchors` is the order of its tasks, and of all sums."""
        ...


def best_per_task(scores: Floats, starts: NDArray[np.int64]) -> Floats:
    """Reduce (n, classes or clusters) to (n, tasks); `starts` holds each task's first column."""
    best: Floats = np.maximum.reduceat(scores, starts, axis=1)
    return best


def first_columns(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(np.int64)
