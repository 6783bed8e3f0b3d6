"""A diagonal plus a thin factor, compared with the dense matrix that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmesh.numerics import arrays
from skillmesh.numerics.arrays import Damping, Doubles, LowRank, Precision, cholesky, principal, total


def dense(matrix: LowRank) -> Doubles:
    return np.diag(matrix.diagonal) + matrix.factor.T @ matrix.factor


def applied(precision: Precision, rows: Doubles) -> Doubles:
    return precision.apply(rows, precision.along(rows))


def some(dim: int, rank: int, seed: int) -> LowRank:
    rng = np.random.default_rng(seed)
    return LowRank(rng.uniform(0.1, 3, dim), rng.standard_normal((rank, dim)))


matrices = st.builds(some, st.integers(1, 30), st.integers(0, 40), st.integers(0, 10**6))


@given(matrix=matrices)
def test_the_inverse_times_the_matrix_is_the_identity(matrix: LowRank):
    np.testing.assert_allclose(applied(matrix.inverse(), dense(matrix)), np.eye(matrix.dim), atol=1e-8)


@given(matrix=matrices)
def test_variances_are_the_diagonal_of_the_matrix(matrix: LowRank):
    np.testing.assert_allclose(matrix.variances, np.diag(dense(matrix)))


@given(matrix=matrices, weight=st.floats(0, 100))
def test_scaling_scales_the_matrix(matrix: LowRank, weight: float):
    np.testing.assert_allclose(dense(matrix.scaled(weight)), weight * dense(matrix), atol=1e-9)


@given(
    dim=st.integers(1, 20),
    ranks=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    seed=st.integers(0, 10**6),
)
def test_a_total_is_the_exact_sum_and_its_factor_at_most_square(dim: int, ranks: list[int], seed: int):
    parts = [some(dim, rank, seed + i) for i, rank in enumerate(ranks)]
    added = total(parts, np.empty((sum(ranks), dim)))
    np.testing.assert_allclose(dense(added), np.sum([dense(part) for part in parts], axis=0), atol=1e-9)
    assert len(added.factor) == min(sum(ranks), dim)


@pytest.mark.parametrize("shape", [(300, 40), (40, 300), (8, 8)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_principal_directions_are_those_of_the_full_decomposition(shape: tuple[int, int], dtype: type):
    rng = np.random.default_rng(0)
    decay = np.geomspace(10, 0.01, shape[1])
    rows = (rng.standard_normal(shape) * decay).astype(dtype)
    rank = 5
    found = principal(rows, rank)
    _, values, directions = np.linalg.svd(rows.astype(np.float64), full_matrices=False)
    best = values[:rank, None] * directions[:rank]
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), values[:rank], rtol=1e-3)
    np.testing.assert_allclose(found.T @ found, best.T @ best, atol=2e-3 * values[0] ** 2)


def test_principal_with_more_directions_than_exist_keeps_everything():
    rows = np.random.default_rng(1).standard_normal((6, 9))
    found = principal(rows, 50)
    assert found.shape == (6, 9)
    np.testing.assert_allclose(found.T @ found, rows.T @ rows, atol=1e-9)


def test_principal_is_deterministic():
    rows = np.random.default_rng(2).standard_normal((50, 30))
    assert np.array_equal(principal(rows, 4), principal(rows, 4))


def test_principal_of_zeros_is_zero():
    assert np.array_equal(principal(np.zeros((7, 5)), 3), np.zeros((3, 5)))


def some_factor(rank: int, dim: int, seed: int) -> Doubles:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rank, dim)) * np.geomspace(3, 0.03, rank)[:, None]


@given(
    rank=st.integers(0, 30), dim=st.integers(1, 20), weight=st.sampled_from([0.1, 1, 10]), seed=st.integers(0, 99)
)
def test_damping_is_the_power_of_the_dense_matrix_and_is_undone(rank: int, dim: int, weight: float, seed: int):
    """(I + wFᵀF)^(−1/2), also of more rows than dimensions."""
    factor = some_factor(rank, dim, seed)
    damping = Damping.of(factor, weight)
    values, turn = np.linalg.eigh(np.eye(dim) + weight * factor.T @ factor)
    dense_power = (turn / np.sqrt(values)) @ turn.T
    np.testing.assert_allclose(damping.apply(np.eye(dim, dtype=np.float32)), dense_power, atol=2e-5)
    rows = np.random.default_rng(seed + 1).standard_normal((7, dim)).astype(np.float32)
    np.testing.assert_allclose(damping.undo(damping.apply(rows)), rows, atol=1e-3)
    np.testing.assert_allclose(damping.apply(damping.undo(rows)), rows, atol=1e-3)


def test_damping_leaves_directions_without_nuisance_as_they_are():
    factor = np.zeros((3, 6))
    factor[0, 1], factor[1, 4] = 2, 1  # the third row is zero
    found = Damping.of(factor, 10).apply(np.ones((1, 6), dtype=np.float32))[0]
    np.testing.assert_allclose(found, [1, 1 / 41**0.5, 1, 1, 1 / 11**0.5, 1], rtol=1e-5)


@pytest.mark.parametrize("factor", [np.zeros((0, 5)), np.zeros((3, 5))])
def test_damping_without_directions_changes_nothing(factor: Doubles):
    rows = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    damping = Damping.of(factor, 10)
    assert np.array_equal(damping.apply(rows), rows)
    assert np.array_equal(damping.undo(rows), rows)


def test_damping_in_place_and_in_parts_gives_the_same(monkeypatch: pytest.MonkeyPatch):
    damping = Damping.of(some_factor(4, 9, 0), 10)
    rows = np.random.default_rng(1).standard_normal((25, 9)).astype(np.float32)
    kept, expected = rows.copy(), damping.apply(rows)
    assert np.array_equal(rows, kept)
    monkeypatch.setattr(arrays, "DAMPED", 8)
    room = np.empty_like(rows)
    assert damping.apply(rows, out=room) is room
    np.testing.assert_allclose(room, expected, rtol=1e-5, atol=1e-6)
    assert damping.apply(rows, out=rows) is rows
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)


def test_a_root_exists_if_only_rounding_made_the_matrix_indefinite():
    rows = np.random.default_rng(3).standard_normal((6, 3)) * 1e4
    gram = (rows @ rows.T).astype(np.float32).astype(np.float64)  # of rank 3, except for rounding
    gram[np.diag_indices_from(gram)] += 1
    assert np.linalg.eigvalsh(gram).min() < 0
    root = cholesky(gram.copy())
    np.testing.assert_allclose(root @ root.T, gram, atol=1e-5 * gram.max())
    with pytest.raises(np.linalg.LinAlgError, match="far from it"):
        cholesky(-np.eye(3))
