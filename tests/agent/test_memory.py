"""An agent that only stores and vets modules imports no library that only learning needs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.calibration import Prior
from skillmesh.core import Core
from skillmesh.numerics.arrays import COLUMNS, LowRank, both_in_single, invert_in_place, lower_inverse

pytestmark = pytest.mark.long

CARRY = """
import sys
from pathlib import Path
from skillmesh.core import Core
agent = Core(Path(sys.argv[1]))
agent.mapper()
print(len(agent.bank), *sorted({"torch", "scipy", "sklearn", "PIL"} & set(sys.modules)))
"""


def test_modules_are_stored_and_vetted_without_the_libraries_for_learning(tiny_taught: Core):
    ran = subprocess.run(
        [sys.executable, "-c", CARRY, tiny_taught.home], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["4"]


def test_only_the_used_parts_of_a_calibration_are_unpacked(tiny_taught: Core):
    agent = Core(tiny_taught.home)
    agent.mapper()
    assert "basis" not in vars(agent.calibration)
    assert list(agent.calibration.priors._unpacked) == ["descriptor"]
    assert agent.calibration.basis is agent.calibration.basis


@pytest.mark.parametrize("size", [1, 64, 65, 300])
def test_a_triangular_matrix_is_inverted_by_halves(size: int):
    values = np.random.default_rng(size).standard_normal((size, 2 * size))
    root = np.linalg.cholesky(values @ values.T)
    inverse = lower_inverse(root)
    np.testing.assert_allclose(inverse @ root, np.eye(size), atol=1e-10)
    assert np.array_equal(inverse, np.tril(inverse))


def test_a_scorer_built_in_parts_equals_one_built_at_once(monkeypatch: pytest.MonkeyPatch):
    rng, dim = np.random.default_rng(0), 2 * COLUMNS + 40

    def random_matrix(rank: int) -> LowRank:
        return LowRank(rng.uniform(0.5, 2, dim), rng.standard_normal((rank, dim)))

    prior = Prior(random_matrix(40), random_matrix(30), rng.standard_normal(dim))
    means = rng.standard_normal((6, 12, dim)).astype(np.float32)
    anchors = [SketchAnchor(task, random_matrix(8), 50) for task in means]
    x = rng.standard_normal((9, dim)).astype(np.float32)
    in_parts = SketchAnchor.pool(iter(anchors), prior).score(x)
    monkeypatch.setattr("skillmesh.numerics.arrays.COLUMNS", dim)
    whole = SketchAnchor.pool(anchors, prior).score(x)
    np.testing.assert_allclose(in_parts.task, whole.task, rtol=1e-5)
    np.testing.assert_allclose(in_parts.novelty, whole.novelty, rtol=1e-5)


@pytest.mark.parametrize("size", [1, COLUMNS, 2 * COLUMNS + 40])
def test_a_cholesky_factor_is_inverted_in_place(size: int):
    values = np.random.default_rng(size).standard_normal((size, 2 * size))
    matrix = values @ values.T
    expected = lower_inverse(np.linalg.cholesky(matrix))
    invert_in_place(matrix)
    np.testing.assert_allclose(matrix, expected, atol=1e-10)


@pytest.mark.parametrize("size", [1, 7, COLUMNS, 2 * COLUMNS + 41])
def test_two_matrices_are_converted_to_single_precision_in_the_memory_of_one(size: int):
    one, other = np.random.default_rng(size).standard_normal((2, size, size))
    expected = one.astype(np.float32), other.astype(np.float32)
    converted = both_in_single(one, other)
    assert all(np.array_equal(*pair) for pair in zip(converted, expected, strict=True))
    assert all(np.shares_memory(single, one) for single in converted)
