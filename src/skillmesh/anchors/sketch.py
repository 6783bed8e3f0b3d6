"""sketch: class means and a low-rank scatter per task; one shared Gaussian shape for all classes of a bank.

This is linear discriminant analysis over every class in an agent's bank, from statistics that add up: students
average the tasks' scatters and never need an image. See `docs/mapper.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors.gaussians import Gaussians, lenient, lenient_in, pooled_scatter, rows_of_all
from skillmesh.anchors.protocol import (
    Anchor,
    AnchorSettings,
    KnownOdds,
    Labels,
    Scorer,
    Scores,
    TakenClasses,
    best_in,
    best_per_task,
    first_columns,
)
from skillmesh.backbone.calibration import Prior
from skillmesh.numerics.arrays import (
    Doubles,
    Floats,
    LowRank,
    Precision,
    Spec,
    Tensors,
    cholesky,
    cholesky_macs,
    column_parts,
    dequantise_log,
    dequantise_rows,
    gram_macs,
    log_steps,
    lower_inverse,
    principal,
    principal_products,
    quantise_log,
    quantise_rows,
    spend,
    thinned,
)
from skillmesh.numerics.graphs import Graph, Value

PRIOR_BACKGROUND_TASKS = 20.0
"""Weight of the calibration's class means in the background, in tasks."""
GROUP = 64
"""Number of rows that are processed together while a scorer is built."""
MANY_CLASSES = 4096
"""Maximum number of classes of `SketchScorer`; a larger bank gets the scorer of `anchors/shortlist.py`."""

PackedMeans = tuple[NDArray[np.int8], Floats]
"""Means as a module stores them: int8 rows, and each row's scale."""


@dataclass(frozen=True)
class SketchAnchor(Gaussians, Anchor):
    """Means of the classes, and the scatter of images around them."""

    kind: ClassVar[str] = "sketch"
    most_claimed: ClassVar[float] = 0.25
    usual_novelty: ClassVar[tuple[float, float]] = (0.5, 1.35)
    """Limited because probes that are not of its classes would move every bank's threshold for "unknown"."""
    adds_up: ClassVar[bool] = True
    divisible: ClassVar[bool] = True

    _stored: Tensors | None = field(default=None, init=False, compare=False, repr=False)
    """Tensors that it was read from."""

    @classmethod
    def fit(
        cls, x: Floats, labels: Labels, classes: int, settings: AnchorSettings, images: int | None = None
    ) -> Self:
        means = class_means(x, labels, classes)
        count = images or len(x)
        freedom = count - classes
        if freedom == 0:  # one image per class: there is no scatter
            return cls(means, LowRank(np.zeros(x.shape[1]), np.zeros((1, x.shape[1]))), 0)
        # Only of the images as they are: the calibration's nuisance says how views scatter.
        originals, their_labels = x[:count], labels[:count]
        centres = means if count == len(x) else class_means(originals, their_labels, classes)
        residuals = centres[their_labels]
        np.subtract(originals, residuals, out=residuals)  # in place: each copy of 20,000 images takes 230 MB
        residuals /= np.float32(np.sqrt(freedom))
        factor = principal(residuals, settings.rank)
        spend("closed form", x.size * classes + originals.size * principal_products(settings.rank))
        squares = np.square(residuals, out=residuals)
        left_over = squares.sum(axis=0, dtype=np.float64) - np.square(factor).sum(axis=0)
        return cls(means, LowRank(np.maximum(left_over, 0), factor), freedom)

    @classmethod
    def specs(cls, classes: int, dim: int) -> dict[str, Spec]:
        return {
            "sketch.mean": Spec("I8", (classes, dim)),
            "sketch.mean.scale": Spec("F32", (classes,), low=0, high=10),
            "sketch.factor": Spec("I8", ("r", dim)),
            "sketch.factor.scale": Spec("F32", ("r",), low=0, high=10),
            "sketch.diagonal": Spec("U8", (dim,)),
            "sketch.freedom": Spec("F32", (1,), low=0, high=1e9),
        }

    def tensors(self) -> Tensors:
        means, mean_scale = quantise_rows(self.means)
        factor, factor_scale = quantise_rows(self.scatter.factor)
        return {
            "sketch.mean": means,
            "sketch.mean.scale": mean_scale,
            "sketch.factor": factor,
            "sketch.factor.scale": factor_scale,
            "sketch.diagonal": quantise_log(self.scatter.diagonal),
            "sketch.freedom": np.array([self.freedom], dtype=np.float32),
        }

    def exact_tensors(self) -> Tensors:
        """Return rows in single precision with a scale of one, and unrounded steps of the diagonal's logarithm."""
        means, factor = (np.asarray(rows, dtype=np.float32) for rows in (self.means, self.scatter.factor))
        return {
            "sketch.mean": means,
            "sketch.mean.scale": np.ones(len(means), dtype=np.float32),
            "sketch.factor": factor,
            "sketch.factor.scale": np.ones(len(factor), dtype=np.float32),
            "sketch.diagonal": log_steps(np.maximum(self.scatter.diagonal, 1e-300)),
            "sketch.freedom": np.array([self.freedom], dtype=np.float64),
        }

    @classmethod
    def read(cls, tensors: Tensors) -> Self:
        factor = dequantise_rows(tensors["sketch.factor"], tensors["sketch.factor.scale"])
        anchor = cls(
            dequantise_rows(tensors["sketch.mean"], tensors["sketch.mean.scale"]),
            LowRank(dequantise_log(tensors["sketch.diagonal"]), factor),
            int(tensors["sketch.freedom"][0]),
        )
        object.__setattr__(anchor, "_stored", tensors)
        return anchor

    def packed(self) -> PackedMeans:
        """Return the means in their stored form; if they were read from a module, its tensors and not a copy."""
        if self._stored is None:
            return quantise_rows(self.means)
        return self._stored["sketch.mean"], self._stored["sketch.mean.scale"]

    def reader(self) -> Callable[[], SketchAnchor]:
        """Return a function that returns this anchor; one from a module is read again from its tensors."""
        return partial(SketchAnchor.read, self._stored) if self._stored is not None else lambda: self

    @classmethod
    def pool(cls, anchors: Iterable[Self], prior: Prior) -> Scorer:
        """Return the scorer that suits the number of classes; anchors of a large bank are read one by one."""
        from skillmesh.anchors.shortlist import ShortlistScorer

        # Count first, then read again: the means of 4,096 classes take 48 MB, which a large bank's sums need.
        classes, readers = 0, list[Callable[[], SketchAnchor]]()
        remaining = iter(anchors)
        for anchor in remaining:
            readers.append(anchor.reader())
            classes += len(anchor.means)
            if classes > MANY_CLASSES:
                return ShortlistScorer(chain((read() for read in readers), remaining), prior)
        return SketchScorer([read() for read in readers], prior)

    def rows(self) -> Floats:
        return self.means

    def spread(self) -> float:
        return float(self.scatter.variances.sum())

    def images_less_classes(self) -> int:
        return self.freedom

    def class_means(self) -> Floats:
        return self.means

    def gaussians(self, settings: AnchorSettings) -> Gaussians:
        return self

    @classmethod
    def of_gaussians(cls, known: Gaussians) -> Self:
        return cls(known.means, known.scatter, known.freedom)

    @classmethod
    def composed(
        cls, parts: Sequence[TakenClasses[Self]], order: NDArray[np.int64], settings: AnchorSettings
    ) -> Self:
        """Return the chosen classes' means, and the tasks' scatters averaged by the parts' shares of images."""
        means = np.concatenate([part.anchor.means[list(part.classes)] for part in parts])[order]
        freedoms = [int(part.anchor.freedom * part.share) for part in parts]
        weights = freedoms if any(freedoms) else [1] * len(freedoms)
        scatters = [p.anchor.scatter.scaled(w / sum(weights)) for p, w in zip(parts, weights, strict=True)]
        return cls.read(cls(means, thinned(scatters, settings.rank), sum(freedoms)).tensors())


class SketchScorer(Scorer):
    """Computes distances of descriptors to every class and to the background, as three matrix products.

    With P the inverse of the pooled scatter W, a class's distance is (x−μ)ᵀP(x−μ). The background is one wide
    Gaussian around all classes of the bank: W plus the scatter AᵀA of the class means. The Woodbury identity gives
    its distance from the same products: xᵀPx − ‖R⁻¹APx‖², where RRᵀ = I + APAᵀ.
    """

    usual_threshold = 1.3
    usual_spread = 0.12
    known_odds = KnownOdds(alone=-1.4, per_task=0.1, slope=75.0)

    def __init__(self, anchors: list[SketchAnchor], prior: Prior) -> None:
        """Build from the anchors; empty their list once copied, since they take as much memory as the scorer."""
        means = [anchor.means for anchor in anchors]
        self._starts = first_columns([len(task) for task in means])
        class_weights, centre, beyond = _background(means, prior)
        classes, dim = len(class_weights), len(centre)
        rank = min(dim, rows_of_all(anchors, prior))
        self._cuts = np.cumsum([rank, classes])
        self._centre, self._haste = centre.astype(np.float32), prior.haste
        self._class_weights = np.sqrt(class_weights).astype(np.float32)
        # One tall matrix, so that a single product gives the distance, the classes and the background: the class
        # means are part of the background too. All steps work in its memory, because it is large.
        self._rows: Floats = np.empty((rank + classes + len(beyond), dim), dtype=np.float32)
        shape, spread = self._rows[:rank], self._rows[rank:]
        pooled = pooled_scatter(anchors, prior, shape)
        np.concatenate([*means, beyond.astype(np.float32)], out=spread)
        spread[:classes] -= self._centre
        del means
        anchors.clear()
        precision = pooled.inverse(out=shape)
        self._weights = precision.diagonal.astype(np.float32)
        along = precision.along(spread)
        root = cholesky(_background_gram(spread, along, class_weights, precision))
        self._unroot = lower_inverse(root).astype(np.float32, order="F")  # `score` uses its transpose
        self._offsets = _multiply(spread, along, precision)[:classes]
        self.macs = float(self._rows.size + 2 * dim + len(spread) ** 2)
        spend("mapper", _building_macs(rank, len(spread), dim))

    def score(self, x: Floats) -> Scores:
        centred: Floats = x - self._centre
        along, (rank, end) = centred @ self._rows.T, self._cuts
        shape, classes, beyond = along[:, :rank], along[:, rank:end], along[:, end:]
        distance = np.square(centred) @ self._weights - np.square(shape).sum(axis=1)
        closeness = classes - self._offsets
        spread = np.concatenate([classes * self._class_weights, beyond], axis=1)
        background = distance - np.square(spread @ self._unroot.T).sum(axis=1)
        nearest = distance - 2 * closeness.max(axis=1)
        novelty = nearest / np.maximum(background, np.float32(1e-6))
        return Scores(best_per_task(closeness, self._starts), lenient(novelty, x, self._haste))

    def score_in(self, graph: Graph, x: Value) -> tuple[Value, Value]:
        centred = graph("Sub", x, self._centre)
        shape, classes, beyond = (graph.product(centred, rows) for rows in np.split(self._rows, self._cuts))
        weighted = graph.product(graph("Mul", centred, centred), self._weights[None])
        distance = graph("Sub", weighted, graph.squares(shape))
        closeness = graph("Sub", classes, self._offsets)
        spread = graph("Concat", graph("Mul", classes, self._class_weights), beyond, axis=1)
        background = graph("Sub", distance, graph.squares(graph.product(spread, self._unroot)))
        nearest = graph("Sub", distance, graph("Mul", graph.largest(closeness), 2.0))
        novelty = graph("Div", nearest, graph("Max", background, 1e-6))
        task = best_in(graph, closeness, self._starts, len(self._offsets))
        return task, lenient_in(graph, novelty, x, self._haste)


def class_means(x: Floats, labels: Labels, classes: int) -> Floats:
    """Return the mean of each class's rows, computed as one matrix product."""
    members = np.zeros((classes, len(x)), dtype=np.float32)
    members[labels, np.arange(len(x))] = 1
    means: Floats = (members @ x) / members.sum(axis=1, keepdims=True)
    return means


def _building_macs(rank: int, spread: int, dim: int) -> float:
    """Return the MACs of the pooled scatter's inverse, the rows of `spread` along it, and their Gram matrix."""
    inverse = gram_macs(rank, dim) + float(rank) ** 2 * dim + 2 * cholesky_macs(rank)
    rows = 2.0 * spread * rank * dim + spread * dim
    gram = gram_macs(spread, rank) + gram_macs(spread, dim) + 2 * cholesky_macs(spread)
    return inverse + rows + gram


def _background(means: Sequence[Floats], prior: Prior) -> tuple[Doubles, Doubles, Doubles]:
    """Return each class's weight, the weighted centre, and the factor that the calibration adds.

    Every task has the same total weight, and the calibration that of `PRIOR_BACKGROUND_TASKS` tasks.
    """
    tasks = len(means) + PRIOR_BACKGROUND_TASKS
    class_weights = np.concatenate([np.full(len(task), 1 / (tasks * len(task))) for task in means])
    share = PRIOR_BACKGROUND_TASKS / tasks
    centre = sum(task.mean(axis=0, dtype=np.float64) for task in means) / tasks + share * prior.centre
    beyond = np.concatenate([prior.between.factor, (prior.centre - centre)[None]]) * np.sqrt(share)
    return class_weights, centre, beyond


def _background_gram(spread: Floats, along: Floats, class_weights: Doubles, precision: Precision) -> Doubles:
    """Return I + APAᵀ, where the rows of A are `spread`, with the classes' rows weighted.

    With P = D − FᵀF, APAᵀ = ADAᵀ − (AFᵀ)(AFᵀ)ᵀ. ADAᵀ is summed over columns, so A·√D is never complete in memory.
    """
    root = np.sqrt(precision.diagonal).astype(np.float32)
    gram = -(along @ along.T).astype(np.float64)
    for part in column_parts(len(root)):
        columns = spread[:, part] * root[part]
        gram += columns @ columns.T
    weights = np.ones(len(spread))
    weights[: len(class_weights)] = np.sqrt(class_weights)
    gram *= weights[:, None]
    gram *= weights
    gram[np.diag_indices_from(gram)] += 1
    return gram


def _multiply(spread: Floats, along: Floats, precision: Precision) -> Floats:
    """Multiply the rows of `spread` by P in place; return half of xᵀPx for each row x."""
    halves: Floats = np.empty(len(spread), dtype=np.float32)
    for start in range(0, len(spread), GROUP):
        group = slice(start, start + GROUP)
        towards = precision.apply(spread[group], along[group])
        halves[group] = 0.5 * np.einsum("ij,ij->i", spread[group], towards)
        spread[group] = towards
    return halves


ANCHOR = SketchAnchor
"""The class that `anchors.KINDS` imports from this file."""
