"""What every kind of anchor can do: be fitted, be stored, and be pooled with others into a scorer.

An anchor is made by a teacher from one task alone. A scorer is made by whoever holds several anchors of one
kind; it says for any descriptor how well it fits each task, and how far it is from all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors.gaussians import Gaussians, Statistics, merged
from skillmesh.backbone.calibration import Prior
from skillmesh.errors import SettingsMismatchError
from skillmesh.numerics.arrays import Floats, Spec, Tensors

Labels = NDArray[np.int64]
A = TypeVar("A")


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

    def agreement(self, x: Floats) -> float:
        """Return how often it finds the task that looking closely at every task would find."""
        return 1.0


@dataclass(frozen=True)
class TakenClasses(Generic[A]):
    """Classes that are taken out of an anchor, and what share of its images is theirs."""

    anchor: A
    classes: tuple[int, ...]
    share: float


class Anchor(Protocol):
    """The summary of one task in descriptor space.

    What has a body here is what a kind can do without. One that adds up has its own `gaussians` and
    `of_gaussians`, one that is divisible its own `gaussians` and `composed`. Nobody asks for more.
    """

    kind: ClassVar[str]
    most_claimed: ClassVar[float]
    """Share of the calibration's background sample that an honest module takes for its own, at most."""
    usual_novelty: ClassVar[tuple[float, float]] = (-np.inf, np.inf)
    """Novelty of an honest module's middle probe to its own anchor, from and to; where it has a common scale."""
    adds_up: ClassVar[bool] = False
    """Whether what several teachers say of one class adds up, as merging and extending a task need it."""
    divisible: ClassVar[bool] = False
    """Whether classes can be taken out of it, as composing a task needs it."""

    @classmethod
    def fit(cls, x: Floats, labels: Labels, classes: int, settings: AnchorSettings) -> Self:
        """Summarise a task's training descriptors."""
        ...

    @classmethod
    def specs(cls, classes: int, dim: int) -> dict[str, Spec]:
        """Say which tensors a module with such an anchor stores; their names begin with the kind's and a dot."""
        ...

    @classmethod
    def read(cls, tensors: Tensors) -> Self: ...

    def tensors(self) -> Tensors: ...

    def exact_tensors(self) -> Tensors:
        """Return what `read` takes for the same without rounding, for tasks that never become a file."""
        return self.tensors()

    @classmethod
    def pool(cls, anchors: Iterable[Self], prior: Prior) -> Scorer:
        """Build the scorer of a bank. The order of `anchors` is the order of its tasks, and of all sums."""
        ...

    # For vetting.

    def rows(self) -> Floats:
        """Return everything in it that stands for images."""
        ...

    def spread(self) -> float:
        """Return the trace of the scatter that it brings into the pool."""
        ...

    def images_less_classes(self) -> int | None:
        """Return how much the scatter rests on, where it says so."""
        return None

    # For tasks that are made of others.

    def class_means(self) -> Floats | None:
        """Return a mean for each class; None where it has none."""
        return None

    def gaussians(self, settings: AnchorSettings) -> Gaussians:
        """Return the same as means and a scatter."""
        raise NotImplementedError

    @classmethod
    def of_gaussians(cls, known: Gaussians) -> Self:
        """Make the anchor of what was added up, whatever the number of its factor's rows."""
        raise NotImplementedError

    @classmethod
    def composed(
        cls, parts: Sequence[TakenClasses[Self]], order: NDArray[np.int64], settings: AnchorSettings
    ) -> Self:
        """Make the anchor of a task of chosen classes, part by part and then in this order, without an image."""
        raise NotImplementedError

    def widened(self, counts: Sequence[int], x: Floats, labels: Labels, settings: AnchorSettings) -> Self:
        """Add images to what it knows from so many of each class."""
        if not self.adds_up:
            raise SettingsMismatchError(f"{self.kind} anchors take in no further images; compose without images")
        every = np.arange(len(counts))
        known = Statistics.of_gaussians(self.gaussians(settings), counts)
        whole = merged([(part, every) for part in (known, Statistics.of(x, labels, len(counts)))], len(counts))
        return self.read(self.of_gaussians(whole.gaussians(settings.rank)).tensors())


def best_per_task(scores: Floats, starts: NDArray[np.int64]) -> Floats:
    """Reduce (n, classes or clusters) to (n, tasks); `starts` holds each task's first column."""
    best: Floats = np.maximum.reduceat(scores, starts, axis=1)
    return best


def first_columns(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(np.int64)
