"""The sketch mapper of a large bank: approximate scores of all classes, then exact scores of the likeliest tasks.

`SketchScorer` keeps a row of 2,912 numbers per class and a matrix of classes × classes: for a thousand tasks of
49 classes 0.6 GB and 10 GB. This scorer transforms W, the pooled scatter, and B, the background, to a common basis
V in which W is the identity and B is diagonal, sorted by the ratio of between-class to within-class variance. Then

- the distances to W and B are sums of squares of z = Vx;
- the first numbers of z separate classes best (linear discriminant analysis): all classes are compared in these;
- the likeliest tasks by that comparison are scored exactly, from the int8 means as stored in their modules.

It needs memory for a square matrix of the descriptor's width and `QUICK` numbers per class; means are not copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from skillmesh.anchors.gaussians import (
    HALF_EVIDENCE,
    MAX_TRACE,
    NUISANCE,
    PRIOR_TASKS,
    SHRINKAGE,
    lenient,
    lenient_in,
)
from skillmesh.anchors.protocol import Labels, Scorer, Scores, best_in, best_per_task, first_columns
from skillmesh.anchors.sketch import PRIOR_BACKGROUND_TASKS, PackedMeans, SketchAnchor, SketchScorer
from skillmesh.backbone.calibration import Prior
from skillmesh.numerics.arrays import (
    Doubles,
    Factor,
    Floats,
    LowRank,
    both_in_single,
    cholesky_macs,
    column_parts,
    dequantise_rows,
    invert_in_place,
    spend,
)
from skillmesh.numerics.graphs import Graph, Value, owners_of
from skillmesh.numerics.process import hand_back

QUICK = 256
"""Number of coordinates per class that the approximate scores use."""
CLOSE = 16
"""Number of tasks per image that are scored exactly."""
IMAGES = 512
"""Number of images that are scored at a time."""
ROOM = 4_000_000
"""Maximum number of class scores in memory: 16 MB. With more, scoring the probes would set a build's peak."""
ROWS = 512
"""Number of rows whose products are summed at a time."""


class ShortlistScorer(Scorer):
    """Computes the distances of `SketchScorer`, to the classes of the likeliest tasks and to the background."""

    usual_threshold = SketchScorer.usual_threshold
    usual_spread = SketchScorer.usual_spread
    known_odds = SketchScorer.known_odds

    def __init__(self, anchors: Iterable[SketchAnchor], prior: Prior) -> None:
        """Read the anchors one by one and keep only the int8 means of each."""
        sums = _Sums(prior)
        self._means: list[PackedMeans] = []
        for anchor in anchors:
            sums.add(anchor)
            self._means.append(anchor.packed())
        self._centre, self._haste = sums.centre.astype(np.float32), prior.haste
        self._basis, beyond = _common_basis(sums.within(), sums.between())
        del sums
        self._background = (1 / (1 + beyond)).astype(np.float32)
        self._starts = first_columns([len(values) for values, _ in self._means])
        hand_back()
        self._place_classes()
        self.macs = self._scoring_macs()
        spend("mapper", self._building_macs())

    def _scoring_macs(self) -> float:
        """Return the MACs of one image: into the basis and back, approximate scores, exact scores."""
        dim, (classes, quick) = len(self._basis), self._quick.shape
        close = CLOSE * classes / len(self._means) * dim
        return float(2 * dim * dim + classes * quick + close)

    def _building_macs(self) -> float:
        """Return the MACs of the basis (eigenvectors as nine products) and coordinates; `_Sums` counts its own."""
        dim, classes = len(self._basis), len(self._quick)
        basis = cholesky_macs(dim) + float(dim) ** 3 * (1 + 3 + 9)
        return basis + float(classes) * dim * dim

    def _place_classes(self) -> None:
        """Compute classes' first coordinates, and half their squared distance to the centre in these and all."""
        classes, quick = sum(len(values) for values, _ in self._means), min(QUICK, len(self._basis))
        self._quick: Floats = np.empty((classes, quick), dtype=np.float32)
        self._offsets: Floats = np.empty(classes, dtype=np.float32)
        for start, packed in zip(self._starts, self._means, strict=True):
            task = slice(start, start + len(packed[0]))
            z = (dequantise_rows(*packed) - self._centre) @ self._basis.T
            self._quick[task] = z[:, :quick]
            self._offsets[task] = 0.5 * np.square(z).sum(axis=1)
        self._quick_offsets: Floats = 0.5 * np.einsum("ij,ij->i", self._quick, self._quick)

    def score(self, x: Floats) -> Scores:
        starts = range(0, max(len(x), 1), IMAGES)
        return Scores.joined([self._score(x[start : start + IMAGES]) for start in starts])

    def agreement(self, x: Floats) -> float:
        """Return how often the result is the task that scoring all tasks exactly would find, from 0 to 1."""
        best = self._exactly(np.tile(np.arange(len(self._means)), (len(x), 1)), self._towards(x)).argmax(axis=1)
        return float(np.mean(best == self.score(x).task.argmax(axis=1)))

    def _towards(self, x: Floats) -> Floats:
        """Return (x − centre) · P, where P = VᵀV."""
        centred: Floats = x - self._centre
        z: Floats = centred @ self._basis.T
        return z @ self._basis

    def _score(self, x: Floats) -> Scores:
        centred: Floats = x - self._centre
        z: Floats = centred @ self._basis.T
        task = self._approximately(z)
        likely = _largest(task, min(CLOSE, len(self._means)))
        exact = self._exactly(likely, z @ self._basis)
        # Tasks that were not scored exactly must not beat the worst of those that were.
        np.minimum(task, exact.min(axis=1, keepdims=True), out=task)
        np.put_along_axis(task, likely, exact, axis=1)
        square = np.square(z)
        nearest = square.sum(axis=1) - 2 * exact.max(axis=1)
        novelty = nearest / np.maximum(square @ self._background, np.float32(1e-6))
        return Scores(task, lenient(novelty, x, self._haste))

    def score_in(self, graph: Graph, x: Value) -> tuple[Value, Value]:
        tasks, classes, axis = len(self._starts), len(self._offsets), np.array([1])
        z = graph.product(graph("Sub", x, self._centre), self._basis)
        quick = graph("Slice", z, np.array([0]), np.array([self._quick.shape[1]]), axis)
        closeness = graph("Sub", graph.product(quick, self._quick), self._quick_offsets)
        task = best_in(graph, closeness, self._starts, classes)
        count = min(CLOSE, tasks)
        likely = graph("Squeeze", graph("TopK", task, np.array([count]), axis=1), np.array([0]))
        is_likely = graph("ScatterElements", np.zeros(tasks, dtype=bool), likely, np.ones(count, dtype=bool))

        towards = graph("Gemm", z, self._basis)
        level = graph.product(towards, self._centre[None])
        # Only the likely tasks' means are taken and converted to floats; they stay int8 in memory and in the file.
        means, scales = (np.concatenate(parts) for parts in zip(*self._means, strict=True))
        owners = owners_of(np.diff([*self._starts, classes]))
        rows = graph.columns_of(is_likely, owners)
        products = graph("Mul", graph.product(towards, graph.take(means, rows)), graph.take(scales, rows))
        exact = graph("Sub", graph("Sub", products, level), graph.take(self._offsets, rows))
        best = graph.best_of_each(exact, graph.take(owners, rows), tasks)
        worst = graph.smallest(graph.take(best, likely))
        task = graph("Where", is_likely, best, graph("Min", task, worst))

        square = graph("Mul", z, z)
        nearest = graph("Sub", graph("ReduceSum", square, axis), graph("Mul", graph.largest(exact), 2.0))
        background = graph("Max", graph.product(square, self._background[None]), 1e-6)
        return task, lenient_in(graph, graph("Div", nearest, background), x, self._haste)

    def _approximately(self, z: Floats) -> Floats:
        """Return the score of each task's best class by the first coordinates alone, at most `ROOM` at a time."""
        step = max(1, ROOM // len(self._quick))
        return np.concatenate([self._quickly(z[start : start + step]) for start in range(0, max(len(z), 1), step)])

    def _quickly(self, z: Floats) -> Floats:
        closeness = z[:, : self._quick.shape[1]] @ self._quick.T
        closeness -= self._quick_offsets
        return best_per_task(closeness, self._starts)

    def _exactly(self, likely: Labels, towards: Floats) -> Floats:
        """Return the exact scores of each image's likely tasks; `towards` are the centred images times P."""
        exact: Floats = np.empty(likely.shape, dtype=np.float32)
        level = towards @ self._centre
        order = np.argsort(likely, axis=None, kind="stable")
        tasks, firsts = np.unique(likely.ravel()[order], return_index=True)
        for task, first, last in zip(tasks, firsts, [*firsts[1:], len(order)], strict=False):
            rows, columns = np.divmod(order[first:last], likely.shape[1])
            values, scale = self._means[task]
            offsets = self._offsets[self._starts[task] :][: len(values)]
            closeness = (towards[rows] @ values.astype(np.float32).T) * scale - level[rows, None] - offsets
            exact[rows, columns] = closeness.max(axis=1)
        return exact


def _largest(scores: Floats, count: int) -> Labels:
    """Return the columns of each row's largest scores, in ascending order of column."""
    if count == scores.shape[1]:
        return np.tile(np.arange(count), (len(scores), 1))
    return np.sort(np.argpartition(scores, -count, axis=1)[:, -count:], axis=1)


def _common_basis(within: Doubles, between: Doubles) -> tuple[Floats, Floats]:
    """Return V with V·W·Vᵀ = 1 and V·(B−W)·Vᵀ diagonal; and that diagonal, largest first. Overwrites both inputs.

    Steps that are sensitive to rounding are done in double precision. The rotation that sorts the directions is
    not sensitive, and single precision halves its time and memory.
    """
    from scipy.linalg import eigh  # imported late: a small bank does not need its 30 MB

    hand_back()  # the memory that the sums were computed in
    invert_in_place(within)
    unroot = within  # the inverse of W's root
    for part in column_parts(len(between)):
        between[:, part] = unroot @ between[:, part]
    for part in column_parts(len(between)):
        between[part] = between[part] @ unroot.T
    single, single_unroot = both_in_single(between, unroot)
    del within, unroot, between
    hand_back()
    # `single` is symmetric; its transpose has LAPACK's memory layout. (NumPy's eigh would use double precision.)
    with threadpool_limits(1, "blas"):  # SciPy loads its own BLAS, maybe only now: after the mapper set its limit
        values, vectors = eigh(single.T, overwrite_a=True, check_finite=False, driver="evd")
    hand_back()  # the work space of `eigh`, as large as both matrices
    basis: Floats = np.empty(single.shape, dtype=np.float32)
    for part in column_parts(len(basis)):
        basis[:, part] = vectors[:, ::-1].T @ single_unroot[:, part]
    return basis, np.maximum(values[::-1], 0)


class _Sums:
    """Sums of the pooled scatter and of the background as full matrices, one task at a time, weighted per task."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._cap = MAX_TRACE * prior.within.variances.sum()
        self._scatter = _Products(prior.within.dim)
        self._diagonal = np.zeros(prior.within.dim)
        self._weights = 0.0
        self._spread = _Products(prior.within.dim)
        self._middle = np.zeros(prior.within.dim)
        self._tasks = 0
        self._add_scatter(prior.within, PRIOR_TASKS)

    def add(self, anchor: SketchAnchor) -> None:
        trace = anchor.scatter.variances.sum()
        weight = anchor.freedom / (anchor.freedom + HALF_EVIDENCE)
        self._weights += weight
        self._add_scatter(anchor.scatter, weight * min(1.0, self._cap / trace if trace else 1.0))
        moved = anchor.means - self._prior.centre.astype(np.float32)
        self._spread.add(moved / np.float32(np.sqrt(len(moved))))
        self._middle += moved.mean(axis=0, dtype=np.float64)
        self._tasks += 1

    def _add_scatter(self, scatter: LowRank, weight: float) -> None:
        self._diagonal += weight * scatter.diagonal
        self._scatter.add(scatter.factor * np.sqrt(weight))

    @property
    def _all_tasks(self) -> float:
        return self._tasks + PRIOR_BACKGROUND_TASKS

    @property
    def centre(self) -> Doubles:
        """Mean of all tasks' class means and the calibration's, every task with the same weight."""
        return self._middle / self._all_tasks + self._prior.centre

    def within(self) -> Doubles:
        """Return W. It can be called only once, since the caller owns the memory afterwards."""
        within = self._scatter.finished()
        within[np.diag_indices_from(within)] += self._diagonal
        within *= (1 - SHRINKAGE) / (PRIOR_TASKS + self._weights)
        if (nuisance := self._prior.nuisance) is not None:
            within += nuisance.factor.T @ (NUISANCE * nuisance.factor)
            within[np.diag_indices_from(within)] += NUISANCE * nuisance.diagonal
        within[np.diag_indices_from(within)] *= 1 + SHRINKAGE / (1 - SHRINKAGE)
        return within

    def between(self) -> Doubles:
        """Return B − W. It can be called only once too."""
        self._spread.add(self._prior.between.factor * np.sqrt(PRIOR_BACKGROUND_TASKS))
        between = self._spread.finished()
        between /= self._all_tasks
        centre = self._middle / self._all_tasks  # relative to the calibration's centre
        # The mean of (μ−c)(μ−c)ᵀ is the mean of μμᵀ minus ccᵀ, because the weights add up to one.
        for part in column_parts(len(centre)):
            between[part] -= np.outer(centre[part], centre)
        return between


@dataclass
class _Products:
    """The sum of rowᵀ·row over many rows, which are added a few at a time."""

    dim: int

    def __post_init__(self) -> None:
        self._sum = np.zeros((self.dim, self.dim))
        self._rows: Floats = np.empty((ROWS, self.dim), dtype=np.float32)
        self._filled = 0

    def add(self, rows: Factor) -> None:
        for start in range(0, len(rows), ROWS):
            group = rows[start : start + ROWS]
            if self._filled + len(group) > ROWS:
                self._flush()
            self._rows[self._filled : self._filled + len(group)] = group
            self._filled += len(group)

    def _flush(self) -> None:
        rows = self._rows[: self._filled]
        spend("mapper", float(rows.size) * self.dim)
        for part in column_parts(self.dim):
            self._sum[part] += rows[:, part].T @ rows
        self._filled = 0

    def finished(self) -> Doubles:
        """Return the sum; nothing can be added afterwards."""
        self._flush()
        total = self._sum
        del self._rows, self._sum
        return total
