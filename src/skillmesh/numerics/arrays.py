"""Arrays as modules store them, covariances as a diagonal plus a thin factor, and what multiplying costs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What learning costs, in multiply–accumulates (MACs): counted by one counter, whatever the method.
#
# Whoever multiplies says so with `spend`; whoever wants to know wraps the work in `counted`. A pass over images
# whose descriptors lie in the cache is counted too: it was spent once.
#
# A pass counts the products of all convolutions and linear layers; norms, activations, pooling and attention's own
# products are left out. Training biases needs no gradient of a weight: backwards, each layer behind the first
# biased one costs once more what it cost forwards. Closed forms and EM count the products of their matrices.
#
# Counted by formulas, since `torch.utils.flop_counter` sees no products of numpy, which are most of what a node
# spends beside its passes, and counts the backward pass of grouped convolutions far too high (20 times for all of
# lite0, torch 2.13). Of forward passes both give the same; tests hold them against each other.
#
# A node's memory is why some other things are written by hand that a library has: the tail of a binomial in
# `vetting/bank_trial.py` (scipy.stats costs 16 MB). The rest of scipy (30 MB) is imported inside of functions.
# `skillmesh_challenge` runs in no node and uses scipy.stats, pydantic, Jinja2 and torch's counter as they are.


@dataclass
class Costs:
    """MACs by what they were spent on."""

    spent: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, macs: float) -> None:
        self.spent[what] = self.spent.get(what, 0.0) + macs

    @property
    def total(self) -> float:
        return sum(self.spent.values())


_counter: ContextVar[Costs | None] = ContextVar("counter", default=None)


def spend(what: str, macs: float) -> None:
    """Note what was just multiplied, if anyone counts."""
    if (counter := _counter.get()) is not None:
        counter.add(what, macs)


@contextmanager
def counted() -> Iterator[Costs]:
    """Count what is spent inside, in this thread; whoever counts around it counts that too."""
    costs = Costs()
    token = _counter.set(costs)
    try:
        yield costs
    finally:
        _counter.reset(token)
        for what, macs in costs.spent.items():
            spend(what, macs)


def gram_macs(rows: int, columns: int) -> float:
    """Of a matrix (rows × columns) times its own transpose: BLAS computes one half and mirrors it."""
    return rows * (rows + 1) / 2.0 * columns


def cholesky_macs(size: int) -> float:
    """Of the root of a positive definite matrix; its triangle's inverse costs the same again."""
    return size**3 / 6.0


def em_macs(images: int, dim: int, clusters: int, rounds: int) -> float:
    """Of a mixture with diagonal covariances: two products per round, responsibilities and moments."""
    return 4.0 * images * dim * clusters * rounds


def head_macs(images: int, dim: int, classes: int, evaluations: int) -> float:
    """Of a head by gradient descent or L-BFGS: logits and their gradient in each evaluation."""
    return 2.0 * images * dim * classes * evaluations


# Arrays as modules store them: what shape a tensor must have, and how floats become int8 and back.
#
# Parts of a module (head, anchors) say with `Spec` which tensors they store; the reader of `.skill` files checks
# a file against these before any number is used.

Array = NDArray[Any]
Floats = NDArray[np.float32]
Tensors = dict[str, Array]

DTYPES = {"I8": np.dtype("<i1"), "U8": np.dtype("<u1"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
"""The safetensors dtypes that a module may use. Little-endian, as safetensors stores them."""


@dataclass(frozen=True)
class Spec:
    """What a stored tensor must look like.

    A size may be a number, or a letter that stands for the same number wherever it occurs in one module (the
    `k` clusters of a mixture, say). `low` and `high` bound the values.
    """

    dtype: str
    shape: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None


def quantise_rows(values: Array) -> tuple[NDArray[np.int8], Floats]:
    """Store each row as int8 with one scale: the largest magnitude becomes ±127.

    >>> q, scale = quantise_rows(np.array([[0.5, -1.0], [0.0, 0.0]]))
    >>> q.tolist(), scale.tolist()[1]
    ([[64, -127], [0, 0]], 0.0)
    """
    values = np.asarray(values, dtype=np.float64)
    scale = (np.abs(values).max(axis=1, initial=0.0) / 127).astype(np.float32)
    safe = np.where(scale > 0, scale, 1).astype(np.float64)
    # The float32 scale may be a hair under the exact one: clip, so that 127.0000001 does not wrap.
    quantised = np.clip(np.rint(values / safe[:, None]), -127, 127).astype(np.int8)
    return quantised, scale


def dequantise_rows(quantised: NDArray[np.int8], scale: Floats) -> Floats:
    """Undo `quantise_rows`, up to half a step."""
    return quantised.astype(np.float32) * scale[:, None]


LOG_LOW, LOG_HIGH = 1e-6, 1e3
"""Variances of standardised numbers lie between; one step of 254 is 8.5 %."""


def quantise_log(values: Array) -> NDArray[np.uint8]:
    """Store variances as uint8 on a logarithmic scale; zero stays zero.

    >>> quantise_log(np.array([0.0, 1e-4, 1.0, 1e2, 1e9])).tolist()
    [0, 57, 170, 227, 255]
    """
    codes = np.minimum(np.rint(log_steps(np.maximum(values, LOG_LOW))), 255)
    return np.where(np.asarray(values) > 0, codes, 0).astype(np.uint8)


def log_steps(values: Array) -> NDArray[np.float64]:
    """Where positive values stand on that scale, before rounding."""
    return np.asarray(1 + 254 * np.log(values / LOG_LOW) / np.log(LOG_HIGH / LOG_LOW))


def dequantise_log(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Undo `quantise_log`, up to half a step."""
    values = LOG_LOW * np.exp((codes.astype(np.float64) - 1) / 254 * np.log(LOG_HIGH / LOG_LOW))
    return np.where(codes > 0, values, 0.0)


# Covariances as a diagonal plus a thin factor: small to send, exact to add, cheap to invert.
#
# The within-class scatter of a task is D + FᵀF with F of a few rows. A weighted sum of such scatters is again a
# diagonal plus a factor (the rows of all of them), and Woodbury's identity inverts it without ever forming the
# d × d matrix: for forty tasks of rank eight, 2,912² numbers become 320 × 2,912.

Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]
Factor = NDArray[np.floating]
"""In double or single precision. A bank's is large and single: products of it then take half the time and room."""

COLUMNS = 256
"""So many columns of a matrix are worked on at a time, where all of them in float64 would be too much."""


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
        """Invert; the diagonal must be positive. What is small and delicate is done in double precision.

        `out` takes the inverse's factor. It may be this one's own, which is then used up.
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
        """Return the coordinates of each row along the factor's."""
        product: Factor = rows @ self.factor.T
        return product

    def apply(self, rows: Factor, along: Factor) -> Factor:
        """Multiply each row by the matrix; `along` are the rows' own."""
        product: Factor = rows * self.diagonal.astype(rows.dtype) - along @ self.factor
        return product


def total(parts: Iterable[LowRank], factor: Factor) -> LowRank:
    """Sum matrices, in the order given. A factor of more rows than columns is replaced by its triangle.

    `factor` has room for the rows of all of them: each part is copied into its place and need not be kept.
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
    """Cut `dim` columns into parts of at most `COLUMNS`."""
    return [slice(start, min(start + COLUMNS, dim)) for start in range(0, dim, COLUMNS)]


def cholesky(matrix: Doubles) -> Factor:
    """Return the lower root of a matrix that is positive definite but for the rounding of what it was made from.

    Where classes are far apart for how little they scatter, rounding may exceed what is small in it; as much as
    is needed is then added to the diagonal, in place.
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
    """Invert a lower triangular matrix by halves. Nearly all of it is products, so NumPy alone is fast enough."""
    if len(root) <= 64:
        return np.tril(np.linalg.inv(root)).astype(np.float64, copy=False)
    half = len(root) // 2
    inverse = np.zeros(root.shape)
    upper = inverse[:half, :half] = lower_inverse(root[:half, :half])
    lower = inverse[half:, half:] = lower_inverse(root[half:, half:])
    inverse[half:, :half] = -lower @ (root[half:, :half] @ upper)
    return inverse


def invert_in_place(matrix: Doubles) -> None:
    """Replace a positive definite matrix by the inverse of its lower root, in no more room than it has."""
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
        # A triangle's columns are empty above their diagonal: what was overwritten before is not asked for.
        across = root[half:, part.start : half] @ root[part.start : half, part]
        root[half:, part] = -(root[half:, half:] @ across)


def both_in_single(used_up: Doubles, other: Doubles) -> tuple[Singles, Singles]:
    """Round two square matrices to single precision. Both then lie in the memory of the first, with no more."""
    room = used_up.reshape(-1).view(np.float32)
    first, second = (half.reshape(used_up.shape) for half in np.split(room, 2))
    for part in column_parts(len(used_up)):
        first[part] = used_up[part]  # half as long, so it lies over rows that are done with
    second[:] = other
    return first, second


ROUNDS = 4
"""Of subspace iteration, after the first."""


def principal(rows: NDArray[np.floating], rank: int, seed: int = 0) -> Doubles:
    """Return the `rank` directions that carry most of rowsᵀ·rows, each scaled by its singular value.

    Subspace iteration from a seeded start: at these ranks as good as a full decomposition, at the cost of a
    few products with `rows`.
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
    """The sum of scatters with a factor of so many rows; the diagonal takes what these leave over."""
    rows = np.concatenate([scatter.factor for scatter in scatters])
    factor = principal(rows, rank) if len(rows) > rank else rows
    whole = np.sum([scatter.variances for scatter in scatters], axis=0)
    return LowRank(np.maximum(whole - np.square(factor, dtype=np.float64).sum(axis=0), 0), factor)


def principal_products(rank: int) -> int:
    """How often `principal` multiplies each number in its rows."""
    return (2 * (ROUNDS + 1) + 1) * _width(rank)


def _width(rank: int) -> int:
    return 2 * rank + 8
