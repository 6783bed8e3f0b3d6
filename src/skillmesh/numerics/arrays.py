"""Arrays as modules store them, covariances as a diagonal plus a low-rank factor, and counting of costs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The cost of learning, in multiply–accumulates (MACs), counted in the same way for every method.
#
# Code that multiplies reports it with `spend`; code that needs the total wraps the work in `counted`. A pass over
# images whose descriptors are in the cache is counted too, since it was computed once.
#
# A pass counts the products of all convolutions and linear layers; norms, activations, pooling and attention's own
# products are left out. Training biases needs no gradient of a weight: in the backward pass, each layer after the
# first biased one costs as much again as in the forward pass. Closed forms and EM count their matrix products.
#
# Costs come from formulas, since `torch.utils.flop_counter` does not see products in NumPy, which are most of a
# node's cost besides its passes, and overestimates the backward pass of grouped convolutions (20 times for all of
# lite0, torch 2.13). For forward passes both give the same numbers; tests compare them.
#
# To save memory in a node, some functions of libraries are written by hand: the tail of a binomial in
# `vetting/bank_trial.py` (scipy.stats costs 16 MB). The rest of scipy (30 MB) is imported inside functions.
# `skillmesh_challenge` never runs in a node: it uses scipy.stats, pydantic, Jinja2 and torch's counter directly.


@dataclass
class Costs:
    """MACs by the kind of work they were spent on."""

    spent: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, macs: float) -> None:
        self.spent[what] = self.spent.get(what, 0.0) + macs

    @property
    def total(self) -> float:
        return sum(self.spent.values())


_counter: ContextVar[Costs | None] = ContextVar("counter", default=None)


def spend(what: str, macs: float) -> None:
    """Add MACs to the counter, if one is active (see `counted`)."""
    if (counter := _counter.get()) is not None:
        counter.add(what, macs)


@contextmanager
def counted() -> Iterator[Costs]:
    """Yield a counter of the MACs spent in this context, in this thread; an outer counter includes them."""
    costs = Costs()
    token = _counter.set(costs)
    try:
        yield costs
    finally:
        _counter.reset(token)
        for what, macs in costs.spent.items():
            spend(what, macs)


def gram_macs(rows: int, columns: int) -> float:
    """Return the MACs of a matrix (rows × columns) times its transpose: BLAS computes one half and mirrors it."""
    return rows * (rows + 1) / 2.0 * columns


def cholesky_macs(size: int) -> float:
    """Return the MACs of a Cholesky factorisation; inverting the triangular factor costs the same again."""
    return size**3 / 6.0


def em_macs(images: int, dim: int, clusters: int, rounds: int) -> float:
    """Return the MACs of EM for a mixture with diagonal covariances: two products each per round, for the
    responsibilities and for the moments."""
    return 4.0 * images * dim * clusters * rounds


def head_macs(images: int, dim: int, classes: int, evaluations: int) -> float:
    """Return the MACs of fitting a head by gradient descent or L-BFGS: logits and gradient in each evaluation."""
    return 2.0 * images * dim * classes * evaluations


# Arrays as modules store them: the shapes that tensors must have, and conversion of floats to int8 and back.
#
# Parts of a module (head, anchors) declare with `Spec` which tensors they store; the reader of `.skill` files
# checks a file against these before any number is used.

Array = NDArray[Any]
Floats = NDArray[np.float32]
Tensors = dict[str, Array]

DTYPES = {"I8": np.dtype("<i1"), "U8": np.dtype("<u1"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
"""Safetensors dtypes that a module may use, little-endian as in safetensors."""


@dataclass(frozen=True)
class Spec:
    """The required dtype, shape and range of a stored tensor.

    A size may be a number, or a letter that stands for the same number wherever it occurs in one module (for
    example the `k` clusters of a mixture). `low` and `high` are bounds of the values.
    """

    dtype: str
    shape: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None


def quantise_rows(values: Array) -> tuple[NDArray[np.int8], Floats]:
    """Return each row as int8 with one scale: the largest magnitude becomes ±127.

    >>> q, scale = quantise_rows(np.array([[0.5, -1.0], [0.0, 0.0]]))
    >>> q.tolist(), scale.tolist()[1]
    ([[64, -127], [0, 0]], 0.0)
    """
    values = np.asarray(values, dtype=np.float64)
    scale = (np.abs(values).max(axis=1, initial=0.0) / 127).astype(np.float32)
    safe = np.where(scale > 0, scale, 1).astype(np.float64)
    # The float32 scale may be slightly below the exact one: clip, so that 127.0000001 does not overflow.
    quantised = np.clip(np.rint(values / safe[:, None]), -127, 127).astype(np.int8)
    return quantised, scale


def dequantise_rows(quantised: NDArray[np.int8], scale: Floats) -> Floats:
    """Return the values of quantised rows, accurate to half a step."""
    return quantised.astype(np.float32) * scale[:, None]


LOG_LOW, LOG_HIGH = 1e-6, 1e3
"""Range of variances of standardised numbers; one of the 254 steps is 8.5 %."""


def quantise_log(values: Array) -> NDArray[np.uint8]:
    """Return variances as uint8 on a logarithmic scale; zero stays zero.

    >>> quantise_log(np.array([0.0, 1e-4, 1.0, 1e2, 1e9])).tolist()
    [0, 57, 170, 227, 255]
    """
    codes = np.minimum(np.rint(log_steps(np.maximum(values, LOG_LOW))), 255)
    return np.where(np.asarray(values) > 0, codes, 0).astype(np.uint8)


def log_steps(values: Array) -> NDArray[np.float64]:
    """Return positive values on the scale of `quantise_log`, before rounding."""
    return np.asarray(1 + 254 * np.log(values / LOG_LOW) / np.log(LOG_HIGH / LOG_LOW))


def dequantise_log(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the variances of `quantise_log`, accurate to half a step."""
    values = LOG_LOW * np.exp((codes.astype(np.float64) - 1) / 254 * np.log(LOG_HIGH / LOG_LOW))
    return np.where(codes > 0, values, 0.0)


# Covariances as a diagonal plus a low-rank factor: small to send, exact to add, cheap to invert.
#
# The within-class scatter of a task is D + FᵀF with F of a few rows. A weighted sum of such scatters is again a
# diagonal plus a factor (the rows of all of them), and Woodbury's identity inverts it without ever forming the
# d × d matrix: for forty tasks of rank eight, 2,912² numbers become 320 × 2,912.

Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]
Factor = NDArray[np.floating]
"""A factor in double or single precision. A bank's factor is large, so it is in single precision: products then
take half the time and memory."""

LEAST_LEFT = 1e-4
"""Least share of a direction that `Damping` leaves, so that `undo` is finite for any calibration."""
DAMPED = 1024
"""Number of rows that `Damping` multiplies at a time."""
COLUMNS = 256
"""Number of columns of a matrix processed at a time, if all of them in float64 would take too much memory."""


@dataclass(frozen=True)
class LowRank:
    """The symmetric matrix diag(diagonal) + factorᵀ·factor."""

    diagonal: Doubles
    factor: Factor

    @property
    def dim(self) -> int:
        return len(self.diagonal)

    @property
    def variances(self) -> Doubles:
        """The diagonal of the whole matrix."""
        total: Doubles = self.diagonal + np.einsum("ij,ij->j", self.factor, self.factor, dtype=np.float64)
        return total

    def scaled(self, weight: float) -> LowRank:
        return LowRank(self.diagonal * weight, self.factor * np.sqrt(weight))

    def inverse(self, out: Factor | None = None) -> Precision:
        """Return the inverse; the diagonal must be positive. The small core matrix is in double precision.

        `out` receives the inverse's factor. It may be this matrix's own factor, which is then overwritten.
        """
        root = np.sqrt(self.diagonal).astype(self.factor.dtype)
        scaled = np.divide(self.factor, root, out=out)
        core = (scaled @ scaled.T).astype(np.float64)
        core[np.diag_indices_from(core)] += 1
        unroot = lower_inverse(cholesky(core)).astype(scaled.dtype)
        for part in column_parts(self.dim):
            scaled[:, part] = unroot @ scaled[:, part]
        scaled /= root
        return Precision(1 / self.diagonal, scaled)


@dataclass(frozen=True)
class Precision:
    """The inverse of a `LowRank`: diag(diagonal) − factorᵀ·factor."""

    diagonal: Doubles
    factor: Factor

    def along(self, rows: Factor) -> Factor:
        """Return the products of each row with the factor's rows."""
        product: Factor = rows @ self.factor.T
        return product

    def apply(self, rows: Factor, along: Factor) -> Factor:
        """Return each row times the matrix; `along` is the result of `along(rows)`."""
        product: Factor = rows * self.diagonal.astype(rows.dtype) - along @ self.factor
        return product


@dataclass(frozen=True)
class Damping:
    """The symmetric matrix (I + wFᵀF)^(−1/2): it shrinks the directions of F and leaves all others as they are."""

    directions: Floats
    """Orthonormal rows that span those of F."""
    shrinkage: Floats
    """For each direction, the number that it is multiplied by, less one."""

    @classmethod
    def of(cls, factor: Factor, weight: float) -> Damping:
        rows = factor.astype(np.float64)
        squares, turn = np.linalg.eigh(rows @ rows.T)  # of the small matrix; `rows` have as many as 3,000 columns
        held = squares > squares.max(initial=0) * 1e-9
        directions = (turn[:, held] / np.sqrt(squares[held])).T @ rows
        shrinkage = np.maximum(1 / np.sqrt(1 + weight * squares[held]), LEAST_LEFT) - 1
        return cls(directions.astype(np.float32), shrinkage.astype(np.float32))

    def apply(self, rows: Floats, out: Floats | None = None) -> Floats:
        """Return each row times the matrix, in `out` if given, which may be `rows` itself."""
        return self._moved(rows, self.shrinkage, out)

    def undo(self, rows: Floats) -> Floats:
        """Return the rows that `apply` turns into these."""
        return self._moved(rows, np.reciprocal(1 + self.shrinkage) - np.float32(1))

    def _moved(self, rows: Floats, shares: Floats, out: Floats | None = None) -> Floats:
        moved: Floats = np.empty_like(rows) if out is None else out
        for start in range(0, len(rows), DAMPED):  # a copy of 20,000 images would take 230 MB
            part = slice(start, start + DAMPED)
            along = (rows[part] @ self.directions.T) * shares
            np.add(rows[part], along @ self.directions, out=moved[part])
        return moved


def total(parts: Iterable[LowRank], factor: Factor) -> LowRank:
    """Return the sum of matrices, in the given order. QR reduces a factor with more rows than columns.

    `factor` is a buffer for the rows of all parts: each part is copied into it and need not be kept.
    """
    diagonal, filled = np.zeros(factor.shape[1]), 0
    for part in parts:
        diagonal += part.diagonal
        factor[filled : filled + len(part.factor)] = part.factor
        filled += len(part.factor)
    if len(factor) > factor.shape[1]:
        factor = np.linalg.qr(factor).R
    return LowRank(diagonal, factor)


def column_parts(dim: int) -> list[slice]:
    """Return slices that divide `dim` columns into parts of at most `COLUMNS`."""
    return [slice(start, min(start + COLUMNS, dim)) for start in range(0, dim, COLUMNS)]


def cholesky(matrix: Doubles) -> Factor:
    """Return the lower Cholesky factor of a matrix that is positive definite except for rounding errors.

    If classes are far apart compared with their scatter, rounding errors may exceed the smallest eigenvalues. As
    much as needed is then added to the diagonal, in place.
    """
    with contextlib.suppress(np.linalg.LinAlgError):
        return np.linalg.cholesky(matrix)
    largest = matrix.diagonal().max()
    for exponent in range(-8, 0):
        matrix[np.diag_indices_from(matrix)] += largest * 10.0**exponent
        with contextlib.suppress(np.linalg.LinAlgError):
            return np.linalg.cholesky(matrix)
    raise np.linalg.LinAlgError("a matrix that should be positive definite is far from it")


def lower_inverse(root: NDArray[np.floating]) -> Doubles:
    """Return the inverse of a lower triangular matrix, by halves: mostly products, so NumPy is fast enough."""
    if len(root) <= 64:
        return np.tril(np.linalg.inv(root)).astype(np.float64, copy=False)
    half = len(root) // 2
    inverse = np.zeros(root.shape)
    upper = inverse[:half, :half] = lower_inverse(root[:half, :half])
    lower = inverse[half:, half:] = lower_inverse(root[half:, half:])
    inverse[half:, :half] = -lower @ (root[half:, :half] @ upper)
    return inverse


def invert_in_place(matrix: Doubles) -> None:
    """Replace a positive definite matrix by the inverse of its lower Cholesky factor, using no extra matrix."""
    for start in range(0, len(matrix), COLUMNS):
        here, below = slice(start, start + COLUMNS), slice(start + COLUMNS, len(matrix))
        matrix[here, here] -= matrix[here, :start] @ matrix[here, :start].T
        matrix[here, here] = np.linalg.cholesky(matrix[here, here])
        matrix[here, here.stop :] = 0
        matrix[below, here] -= matrix[below, :start] @ matrix[here, :start].T
        matrix[below, here] = matrix[below, here] @ lower_inverse(matrix[here, here]).T
    _invert_lower(matrix)


def _invert_lower(root: Doubles) -> None:
    if len(root) <= COLUMNS:
        root[:] = lower_inverse(root)
        return
    half = len(root) // 2
    _invert_lower(root[:half, :half])
    _invert_lower(root[half:, half:])
    for part in column_parts(half):
        # A lower triangle's columns are zero above the diagonal, so columns overwritten earlier are not needed.
        across = root[half:, part.start : half] @ root[part.start : half, part]
        root[half:, part] = -(root[half:, half:] @ across)


def both_in_single(used_up: Doubles, other: Doubles) -> tuple[Singles, Singles]:
    """Return two square matrices in single precision. Both results are in the memory of the first matrix."""
    room = used_up.reshape(-1).view(np.float32)
    first, second = (half.reshape(used_up.shape) for half in np.split(room, 2))
    for part in column_parts(len(used_up)):
        first[part] = used_up[part]  # half as long, so it overwrites only rows that are already converted
    second[:] = other
    return first, second


ROUNDS = 4
"""Rounds of subspace iteration after the first."""


def principal(rows: NDArray[np.floating], rank: int, seed: int = 0) -> Doubles:
    """Return the `rank` principal directions of rowsᵀ·rows, each scaled by its singular value.

    They come from subspace iteration with a seeded start: at these ranks as good as a full decomposition, at the
    cost of a few products with `rows`.
    """
    n, dim = rows.shape
    rank = min(rank, n, dim)
    width = min(_width(rank), n, dim)
    start = np.random.default_rng(seed).standard_normal((dim, width)).astype(rows.dtype)
    basis = np.linalg.qr(rows.T @ (rows @ start))[0]
    for _ in range(ROUNDS):
        basis = np.linalg.qr(rows.T @ (rows @ basis))[0]
    _, values, directions = np.linalg.svd((rows @ basis).astype(np.float64), full_matrices=False)
    top: Doubles = values[:rank, None] * (directions[:rank] @ basis.T.astype(np.float64))
    return top


def thinned(scatters: Sequence[LowRank], rank: int) -> LowRank:
    """Return the sum of scatters with a factor of at most `rank` rows; the diagonal gets the other variance."""
    rows = np.concatenate([scatter.factor for scatter in scatters])
    factor = principal(rows, rank) if len(rows) > rank else rows
    whole = np.sum([scatter.variances for scatter in scatters], axis=0)
    return LowRank(np.maximum(whole - np.square(factor, dtype=np.float64).sum(axis=0), 0), factor)


def principal_products(rank: int) -> int:
    """Return the number of multiplications in `principal` for each number in its rows."""
    return (2 * (ROUNDS + 1) + 1) * _width(rank)


def _width(rank: int) -> int:
    return 2 * rank + 8
