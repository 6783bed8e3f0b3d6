"""Floats as int8 and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from skillmesh.numerics.arrays import dequantise_rows, quantise_rows

matrices = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12),
    elements=st.floats(-(2.0**60), 2.0**60, width=32).filter(lambda x: x == 0 or abs(x) > 1e-30),
)


@given(values=matrices)
@example(values=np.array([[127.0000001, -127.0000001]]))
@example(values=np.array([[1 / 3, -2 / 3, 2 / 3]]))
def test_the_round_trip_is_off_by_half_a_step_at_most(values: NDArray[np.floating]):
    quantised, scale = quantise_rows(values)
    assert (quantised.dtype, scale.dtype) == (np.int8, np.float32)
    step = np.abs(values).max(axis=1, keepdims=True).astype(np.float64) / 127
    assert (np.abs(dequantise_rows(quantised, scale) - values.astype(np.float64)) <= 0.5001 * step).all()


@given(values=matrices)
def test_the_largest_of_a_row_becomes_127_and_signs_stay(values: NDArray[np.float32]):
    quantised, _ = quantise_rows(values)
    some = np.abs(values).max(axis=1) > 0
    assert (np.abs(quantised[some].astype(int)).max(axis=1) == 127).all()
    assert (quantised * np.sign(values) >= 0).all()


@pytest.mark.filterwarnings("error")
def test_rows_of_zeros_stay_zero():
    quantised, scale = quantise_rows(np.array([[0.0, 0.0], [1.0, -0.5]]))
    assert scale[0] == 0
    assert dequantise_rows(quantised, scale)[0].tolist() == [0, 0]
    assert np.isfinite(dequantise_rows(quantised, scale)).all()


def test_each_row_has_its_own_scale():
    values = np.array([[1e-6, -2e-6], [1e6, 5e5]])
    np.testing.assert_allclose(dequantise_rows(*quantise_rows(values)), values, rtol=0.01)


def test_values_too_small_for_a_scale_of_their_own_keep_their_sign():
    assert quantise_rows(np.array([[2e-43, -2e-43]]))[0].tolist() == [[127, -127]]


def test_empty_matrices_are_possible():
    for shape in ((0, 5), (3, 0)):
        quantised, scale = quantise_rows(np.zeros(shape))
        assert dequantise_rows(quantised, scale).shape == shape
        assert len(scale) == shape[0]
