"""The interface of every kind of anchor: it can be fitted, stored, and pooled with others into a scorer.

A teacher makes an anchor from one task alone. An agent that holds several anchors of one kind pools them into a
scorer, which gives for any descriptor a score for each task, and its novelty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors.gaussians import Gaussians, Statistics, merged
from skillmesh.backbone.calibration import Prior
from skillmesh.common.extras import Extra
from skillmesh.errors import SettingsMismatchError
from skillmesh.numerics.arrays import Floats, Spec, Tensors
from skillmesh.numerics.graphs import Graph, Value, owners_of

Labels = NDArray[np.int64]
A = TypeVar("A")


@dataclass(frozen=True)
class AnchorSettings:
    """Settings of all kinds of anchors; each kind uses its own."""

    rank: int = 8
    """sketch: number of rows of the scatter's factor."""
    clusters: int = 25
    """gmmc: number of clusters per task, the paper's k."""
    variance_floor: float = 1e-6
    """gmmc: value added to every variance; 1e-6 is scikit-learn's default, 1e-2 suits square-rooted features."""
    images_per_class: int = 5
    """maha: number of shared images per class, the paper's m."""
    seed: int = 0


@dataclass(frozen=True)
class Scores:
    """How descriptors fit the tasks of a bank."""

    task: Floats
    """Score of each task's best class or cluster, of shape (n, tasks); the task with the largest score wins."""
    novelty: Floats
    """How little each descriptor fits any task, of shape (n,); comparable within one scorer only."""

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """Return the scores of consecutive parts of the descriptors, concatenated."""
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([p.task for p in parts]), np.concatenate([p.novelty for p in parts]))


@dataclass(frozen=True)
class KnownOdds:
    """How likely an image belongs to a known task, by its novelty: a logistic function of the novelty's logarithm.

    Measured on images of which half belong to tasks that the bank does not know.
    """

    alone: float
    """Log-odds in a bank of one task, at the novelty that 5 % of the images of known tasks exceed."""
    per_task: float
    """By how much they fall with the logarithm of the number of tasks: in large banks, some task is near."""
    slope: float
    """By how much they fall with the logarithm of the novelty."""


class Scorer(Protocol):
    """The pooled anchors of a bank."""

    known_odds: KnownOdds | None = None
    """None for kinds whose novelties have no common scale."""
    usual_threshold: float
    """Novelty above which an image usually is unknown, for banks whose modules have no probes."""
    usual_spread: float = 0.5
    """Distance from the median novelty to the one that 5 % of known images exceed, relative to the median, in
    most banks."""
    macs: float
    """MACs of scoring one descriptor."""

    def score(self, x: Floats) -> Scores: ...

    def agreement(self, x: Floats) -> float:
        """Return how often it finds the task that exact scoring of all tasks would find, as a share, 0 to 1."""
        return 1.0

    def score_in(self, graph: Graph, x: Value) -> tuple[Value, Value]:
        """Add what `score` computes to a graph: return the tasks' scores (1, tasks) and the novelty (1, 1).

        Optional: agents of a kind without it cannot be exported as an ONNX file.
        """
        raise SettingsMismatchError(
            "anchors of this kind cannot be exported as ONNX: their scorer does not define `score_in`; use an "
            "agent with sketch anchors"
        )


@dataclass(frozen=True)
class TakenClasses(Generic[A]):
    """Classes that are taken out of an anchor, and their share of its images, 0 to 1."""

    anchor: A
    classes: tuple[int, ...]
    share: float


class Anchor(Protocol):
    """The summary of one task in descriptor space.

    Methods with a body in this class are optional. A kind that adds up defines `gaussians` and `of_gaussians`, a
    divisible kind defines `gaussians` and `composed`. No caller needs more.
    """

    kind: ClassVar[str]
    most_claimed: ClassVar[float]
    """Maximum share of the calibration's background sample that an honest module claims as its own."""
    usual_novelty: ClassVar[tuple[float, float]] = (-np.inf, np.inf)
    """Range of the median novelty of an honest module's probes by its own anchor, if there is a common scale."""
    adds_up: ClassVar[bool] = False
    """Whether several teachers' statistics of one class add up, which merging and extending a task need."""
    divisible: ClassVar[bool] = False
    """Whether classes can be taken out of it, which composing a task needs."""

    fitted_with: ClassVar[Extra | None] = None
    """What `fit` needs besides a plain installation."""

    @classmethod
    def fit(
        cls, x: Floats, labels: Labels, classes: int, settings: AnchorSettings, images: int | None = None
    ) -> Self:
        """Return the anchor of a task's training descriptors; all after the first `images` are views of these."""
        ...

    @classmethod
    def specs(cls, classes: int, dim: int) -> dict[str, Spec]:
        """Return the specs of the tensors that a module stores for it; their names start with the kind and '.'."""
        ...

    @classmethod
    def read(cls, tensors: Tensors) -> Self: ...

    def tensors(self) -> Tensors: ...

    def exact_tensors(self) -> Tensors:
        """Return tensors that `read` accepts, without rounding, for tasks that are never written to a file."""
        return self.tensors()

    @classmethod
    def pool(cls, anchors: Iterable[Self], prior: Prior) -> Scorer:
        """Return the scorer of a bank. The order of `anchors` is the order of its tasks, and of all sums."""
        ...

    # Methods for vetting.

    def rows(self) -> Floats:
        """Return all its vectors that represent images, in descriptor space."""
        ...

    def spread(self) -> float:
        """Return the trace of its scatter, as it enters the pooled scatter."""
        ...

    def images_less_classes(self) -> int | None:
        """Return the degrees of freedom of its scatter (images minus classes); None if it does not store them."""
        return None

    # Methods for tasks that are made of other tasks.

    def class_means(self) -> Floats | None:
        """Return a mean for each class; None if it stores none."""
        return None

    def gaussians(self, settings: AnchorSettings) -> Gaussians:
        """Return its classes as means and a common scatter."""
        raise NotImplementedError

    @classmethod
    def of_gaussians(cls, known: Gaussians) -> Self:
        """Return the anchor made of these class Gaussians, with every row of their scatter's factor."""
        raise NotImplementedError

    @classmethod
    def composed(
        cls, parts: Sequence[TakenClasses[Self]], order: NDArray[np.int64], settings: AnchorSettings
    ) -> Self:
        """Return the anchor of a task of chosen classes, without images; `order` sorts all parts' classes."""
        raise NotImplementedError

    def widened(self, counts: Sequence[int], x: Floats, labels: Labels, settings: AnchorSettings) -> Self:
        """Return the anchor with further images added; `counts` are the numbers of images per class so far."""
        if not self.adds_up:
            raise SettingsMismatchError(f"{self.kind} anchors cannot add further images; compose without images")
        places = np.arange(len(counts))
        known = Statistics.of_gaussians(self.gaussians(settings), counts)
        whole = merged([(part, places) for part in (known, Statistics.of(x, labels, len(counts)))], len(counts))
        return self.read(self.of_gaussians(whole.gaussians(settings.rank)).tensors())


def best_per_task(scores: Floats, starts: NDArray[np.int64]) -> Floats:
    """Reduce (n, classes or clusters) to each task's best, (n, tasks); `starts` holds each task's first column."""
    best: Floats = np.maximum.reduceat(scores, starts, axis=1)
    return best


def best_in(graph: Graph, scores: Value, starts: NDArray[np.int64], columns: int) -> Value:
    """Add what `best_per_task` computes to a graph, for scores of this many columns."""
    return graph.best_of_each(scores, owners_of(np.diff([*starts, columns])), len(starts))


def first_columns(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(np.int64)
