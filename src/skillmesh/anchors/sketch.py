"""sketch: class means and a low-rank scatter per task; one shared Gaussian shape for all classes of a bank.

This is linear discriminant analysis over every class that an agent has heard of, from statistics that add up:
students average the tasks' scatters and never need an image. See `docs/mapper.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors.gaussians import Gaussians, pooled_scatter, rows_of_all
from skillmesh.anchors.protocol import (
    Anchor,
    AnchorSettings,
    Labels,
    Scorer,
    Scores,
    TakenClasses,
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

PRIOR_BACKGROUND_TASKS = 10.0
"""So many tasks' worth of the calibration's class means stand behind the bank's own."""
GROUP = 64
"""Rows that are handled together while a scorer is built."""
MANY_CLASSES = 4096
"""A bank of more has another scorer, which finds the likeliest tasks first: see `anchors/shortlist.py`."""

PackedMeans = tuple[NDArray[np.int8], Floats]
"""Means as a module stores them: int8 rows, and each row's scale."""


@dataclass(frozen=True)
class SketchAnchor(Gaussians, Anchor):
    """Means of the classes, and how images scatter around them."""

    kind: ClassVar[str] = "sketch"
    most_claimed: ClassVar[float] = 0.25
    usual_novelty: ClassVar[tuple[float, float]] = (0.5, 1.5)
    """Probes that are not of its classes would move every bank's threshold for "unknown"."""
    adds_up: ClassVar[bool] = True
    divisible: ClassVar[bool] = True

    _stored: Tensors | None = field(default=None, init=False, compare=False, repr=False)
    """What it was read from."""

    @classmethod
    def fit(cls, x: Floats, labels: Labels, classes: int, settings: AnchorSettings) -> Self:
        means = class_means(x, labels, classes)
        freedom = len(x) - classes
        if freedom == 0:  # one image per class: nothing scatters
            return cls(means, LowRank(np.zeros(x.shape[1]), np.zeros((1, x.shape[1]))), 0)
        residuals = means[labels]
        np.subtract(x, residuals, out=residuals)  # in place: of 20,000 images each copy has 230 MB
        residuals /= np.float32(np.sqrt(freedom))
        factor = principal(residuals, settings.rank)
        spend("closed form", x.size * (classes + principal_products(settings.rank)))
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
        """Rows in single precision with a scale of one, and steps of the diagonal that are not rounded."""
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
        """The means as stored: those of the module, where they were read from one, and no copy."""
        if self._stored is None:
            return quantise_rows(self.means)
        return self._stored["sketch.mean"], self._stored["sketch.mean.scale"]

    def waiting(self) -> Callable[[], SketchAnchor]:
        """It, to be had later. Where it was read from a module, that is all that stays in memory till then."""
        return partial(SketchAnchor.read, self._stored) if self._stored is not None else lambda: self

    @classmethod
    def pool(cls, anchors: Iterable[Self], prior: Prior) -> Scorer:
        """Build the scorer that suits the number of classes; of a large bank, anchors are read one by one."""
        from skillmesh.anchors.shortlist import ShortlistScorer

        # Counted, then read again: 4,096 classes' means are 48 MB, at a time when a large bank's sums need room.
        classes, waiting = 0, list[Callable[[], SketchAnchor]]()
        coming = iter(anchors)
        for anchor in coming:
            waiting.append(anchor.waiting())
            classes += len(anchor.means)
            if classes > MANY_CLASSES:
                return ShortlistScorer(chain((again() for again in waiting), coming), prior)
        return SketchScorer([again() for again in waiting], prior)

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
        """How images scatter is known by task only: the average of the parts', by their shares of the images."""
        means = np.concatenate([part.anchor.means[list(part.classes)] for part in parts])[order]
        freedoms = [int(part.anchor.freedom * part.share) for part in parts]
        weights = freedoms if any(freedoms) else [1] * len(freedoms)
        scatters = [p.anchor.scatter.scaled(w / sum(weights)) for p, w in zip(parts, weights, strict=True)]
        return cls.read(cls(means, thinned(scatters, settings.rank), sum(freedoms)).tensors())


class SketchScorer(Scorer):
    """Distances of descriptors to every class and to the background, as three matrix products.

    With P the inverse of the pooled scatter W, a class's distance is (x−μ)ᵀP(x−μ). The background is one wide
    Gaussian around everything the bank knows: W plus the scatter AᵀA of the class means. Woodbury gives its
    distance from the same products: xᵀPx − ‖R⁻¹APx‖², RRᵀ = I + APAᵀ.
    """

    usual_threshold = 1.3

    def __init__(self, anchors: list[SketchAnchor], prior: Prior) -> None:
        """Take the anchors, and empty the list once they are copied: they need as much room as what follows."""
        means = [anchor.means for anchor in anchors]
        self._starts = first_columns([len(task) for task in means])
        voices, centre, beyond = _background(means, prior)
        classes, dim = len(voices), len(centre)
        rank = min(dim, rows_of_all(anchors, prior.within))
        self._cuts = np.cumsum([rank, classes])
        self._centre = centre.astype(np.float32)
        self._voices = np.sqrt(voices).astype(np.float32)
        # One tall matrix, so that a single product serves the distance, the classes and the background: the class
        # means are part of the background too. Everything happens in its memory; a bank's is large.
        self._rows: Floats = np.empty((rank + classes + len(beyond), dim), dtype=np.float32)
        shape, spread = self._rows[:rank], self._rows[rank:]
        pooled = pooled_scatter(anchors, prior.within, shape)
        np.concatenate([*means, beyond.astype(np.float32)], out=spread)
        spread[:classes] -= self._centre
        del means
        anchors.clear()
        precision = pooled.inverse(out=shape)
        self._weights = precision.diagonal.astype(np.float32)
        along = precision.along(spread)
        root = cholesky(_background_gram(spread, along, voices, precision))
        self._unroot = lower_inverse(root).astype(np.float32, order="F")  # its transpose is what `score` takes
        self._offsets = _multiply(spread, along, precision)[:classes]
        self.macs = float(self._rows.size + 2 * dim + len(spread) ** 2)
        spend("mapper", _building_macs(rank, len(spread), dim))

    def score(self, x: Floats) -> Scores:
        centred: Floats = x - self._centre
        shape, classes, beyond = np.split(centred @ self._rows.T, self._cuts, axis=1)
        distance = np.square(centred) @ self._weights - np.square(shape).sum(axis=1)
        closeness = classes - self._offsets
        spread = np.concatenate([classes * self._voices, beyond], axis=1)
        background = distance - np.square(spread @ self._unroot.T).sum(axis=1)
        nearest = distance - 2 * closeness.max(axis=1)
        novelty = nearest / np.maximum(background, np.float32(1e-6))
        return Scores(best_per_task(closeness, self._starts), novelty)


def class_means(x: Floats, labels: Labels, classes: int) -> Floats:
    """Average the rows of each class, in one product."""
    members = np.zeros((classes, len(x)), dtype=np.float32)
    members[labels, np.arange(len(x))] = 1
    means: Floats = (members @ x) / members.sum(axis=1, keepdims=True)
    return means


def _building_macs(rank: int, spread: int, dim: int) -> float:
    """Of building a scorer: the pooled scatter's inverse, the rows of `spread` along it, their Gram matrix."""
    inverse = gram_macs(rank, dim) + float(rank) ** 2 * dim + 2 * cholesky_macs(rank)
    rows = 2.0 * spread * rank * dim + spread * dim
    gram = gram_macs(spread, rank) + gram_macs(spread, dim) + 2 * cholesky_macs(spread)
    return inverse + rows + gram


def _background(means: Sequence[Floats], prior: Prior) -> tuple[Doubles, Doubles, Doubles]:
    """Weigh all class means: one task one voice, the calibration's as some more.

    Returns each class's weight, the centre of everything, and the factor of what the calibration adds.
    """
    tasks = len(means) + PRIOR_BACKGROUND_TASKS
    voices = np.concatenate([np.full(len(task), 1 / (tasks * len(task))) for task in means])
    share = PRIOR_BACKGROUND_TASKS / tasks
    centre = sum(task.mean(axis=0, dtype=np.float64) for task in means) / tasks + share * prior.centre
    beyond = np.concatenate([prior.between.factor, (prior.centre - centre)[None]]) * np.sqrt(share)
    return voices, centre, beyond


def _background_gram(spread: Floats, along: Floats, voices: Doubles, precision: Precision) -> Doubles:
    """Return I + APAᵀ, where the rows of A are `spread`, those of classes weighted by their voices.

    With P = D − FᵀF, APAᵀ = ADAᵀ − (AFᵀ)(AFᵀ)ᵀ, and ADAᵀ is summed over columns: A·√D is never whole in memory.
    """
    root = np.sqrt(precision.diagonal).astype(np.float32)
    gram = -(along @ along.T).astype(np.float64)
    for part in column_parts(len(root)):
        some = spread[:, part] * root[part]
        gram += some @ some.T
    weights = np.ones(len(spread))
    weights[: len(voices)] = np.sqrt(voices)
    gram *= weights[:, None]
    gram *= weights
    gram[np.diag_indices_from(gram)] += 1
    return gram


def _multiply(spread: Floats, along: Floats, precision: Precision) -> Floats:
    """Multiply the rows of `spread` by P where they lie; return half of xᵀPx for each."""
    halves: Floats = np.empty(len(spread), dtype=np.float32)
    for start in range(0, len(spread), GROUP):
        some = slice(start, start + GROUP)
        towards = precision.apply(spread[some], along[some])
        halves[some] = 0.5 * np.einsum("ij,ij->i", spread[some], towards)
        spread[some] = towards
    return halves


ANCHOR = SketchAnchor
"""What `anchors.KINDS` takes from this file."""
