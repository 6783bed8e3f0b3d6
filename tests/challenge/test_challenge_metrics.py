"""The challenge's metrics on matrices made by hand, and what must hold for any matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmesh_challenge import metrics

NAN = math.nan
FORGETS = np.array(
    [
        [0.8, NAN, NAN],
        [0.6, 0.9, NAN],
        [0.4, 0.9, 0.5],
    ]
)
"""Task 1 loses 0.2 with every new task; task 2 loses nothing."""
shares = st.floats(0.01, 1)


@st.composite
def matrices(draw: st.DrawFn, constant: bool = False) -> np.ndarray:
    size = draw(st.integers(2, 7))
    matrix = np.full((size, size), NAN)
    for i in range(size):
        first = draw(shares)
        for t in range(i, size):
            matrix[t, i] = first if constant else draw(shares)
    return matrix


def test_averages_are_over_the_tasks_known_so_far():
    assert metrics.averages(FORGETS) == pytest.approx([0.8, 0.75, 0.6])


def test_the_first_tasks_are_followed_over_time():
    assert metrics.over_time(FORGETS, 1) == pytest.approx([0.8, 0.6, 0.4])
    assert metrics.over_time(FORGETS, 2) == pytest.approx([0.8, 0.75, 0.65])


def test_normalised_accuracy_divides_by_that_just_after_learning():
    relative = metrics.normalised(FORGETS)
    assert relative[:, 0] == pytest.approx([1.0, 0.75, 0.5])
    assert relative[1:, 1] == pytest.approx([1.0, 1.0])
    assert np.isnan(relative[0, 1])


def test_normalised_accuracy_of_a_task_that_was_never_known_is_none():
    assert np.isnan(metrics.normalised(np.array([[0.0, NAN], [0.0, 1.0]]))[:, 0]).all()


def test_backward_transfer_and_forgetting_are_those_of_the_hand_made_matrix():
    assert metrics.backward_transfer(FORGETS) == pytest.approx((-0.4 + 0.0) / 2)
    assert metrics.forgetting(FORGETS) == pytest.approx((0.4 + 0.0) / 2)


def test_forgetting_is_measured_from_the_best_and_transfer_from_the_first():
    improved = np.array([[0.5, NAN, NAN], [0.9, 0.5, NAN], [0.7, 0.5, 0.5]])
    assert metrics.backward_transfer(improved) == pytest.approx(0.1)
    assert metrics.forgetting(improved) == pytest.approx(0.1)


def test_forward_transfer_reads_what_was_right_before_a_task_was_learned():
    knows_ahead = np.array([[0.8, 0.6], [0.8, 0.9]])
    assert metrics.forward_transfer(knows_ahead, [0.5, 0.5]) == pytest.approx(0.1)


def test_a_method_that_knows_nothing_of_tasks_to_come_has_no_forward_transfer():
    assert metrics.forward_transfer(FORGETS, [0.5] * 3) is None


@given(matrices(constant=True))
def test_a_method_that_never_changes_forgets_nothing(matrix):
    assert metrics.backward_transfer(matrix) == 0
    assert metrics.forgetting(matrix) == 0
    relative = metrics.normalised(matrix)
    assert (relative[np.tri(len(matrix), dtype=bool)] == 1).all()


@given(matrices())
def test_forgetting_is_never_less_than_the_loss_since_learning(matrix):
    assert metrics.forgetting(matrix) >= -metrics.backward_transfer(matrix) - 1e-12


@given(matrices())
def test_the_last_average_is_the_mean_of_the_last_row(matrix):
    assert metrics.averages(matrix)[-1] == pytest.approx(matrix[-1].mean())


def test_a_fitted_line_gives_the_number_of_tasks_at_a_level():
    line = metrics.line_through([0.952 - 0.0012 * t for t in range(1, 103)])
    assert line is not None
    assert (line.slope, line.intercept) == (pytest.approx(-0.0012), pytest.approx(0.952))
    assert line.meets(0.0) == pytest.approx(0.952 / 0.0012)  # the paper prints 800
    assert line.at(102) == pytest.approx(0.952 - 0.0012 * 102)


def test_a_line_that_does_not_fall_meets_no_level():
    line = metrics.line_through([0.9, 0.9, 0.95])
    assert line is not None
    assert line.meets(0.5) is None


def test_one_value_gives_no_line():
    assert metrics.line_through([0.9, None]) is None


def test_costs_match_a_count_by_hand():
    costs = metrics.costs_of({"a": 6e9, "b": 2e9}, {"a": 1e6, "b": 3e6}, student=5e8, alpha=1000)
    assert (costs.teacher_total, costs.teacher) == (8e9, 4e9)
    assert (costs.received_bytes, costs.communication) == (2e6, 2e9)
    assert costs.single == 8.5e9
    assert costs.parallel == 4e9 + 2e9 + 5e8
    assert costs.speedup == pytest.approx(8.5 / 6.5)
    assert costs.efficiency == pytest.approx(8.5 / 6.5 / 2)
    assert costs.busiest == 6e9 + 1e9 + 5e8


@given(
    st.lists(st.floats(1, 1e12), min_size=1, max_size=9),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
)
def test_efficiency_is_at_most_one_and_busiest_speedup_at_most_speedup(macs, received, student):
    teachers = {str(i): value for i, value in enumerate(macs)}
    costs = metrics.costs_of(teachers, dict.fromkeys(teachers, received), student, 1000)
    assert costs.efficiency <= 1 + 1e-9
    assert costs.busiest_speedup <= costs.speedup * (1 + 1e-9)


def test_one_agent_alone_is_neither_faster_nor_slower():
    costs = metrics.costs_of({"a": 1e9}, {"a": 0}, student=1e8, alpha=1000)
    assert costs.efficiency == costs.speedup == 1


def test_an_interval_uses_students_t():
    found = metrics.interval([0.80, 0.82, 0.84])
    assert found.mean == pytest.approx(0.82)
    assert found.half_width == pytest.approx(4.302653 * 0.02 / math.sqrt(3), rel=1e-5)


def test_one_seed_has_no_interval():
    assert metrics.interval([0.8]) == metrics.Interval(0.8, None, 1)


@given(st.lists(shares, min_size=2, max_size=9))
def test_an_interval_holds_its_mean_and_no_spread_means_no_width(values):
    found = metrics.interval(values)
    assert found.half_width is not None
    assert found.half_width >= 0
    assert metrics.interval([0.5] * len(values)).half_width == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_pooled_intervals_are_the_interval_of_all_values(some, others):
    found = metrics.pooled(metrics.interval(some), metrics.interval(others))
    expected = metrics.interval([*some, *others])
    assert found.seeds == expected.seeds
    assert found.mean == pytest.approx(expected.mean, abs=1e-12)
    assert found.half_width == pytest.approx(expected.half_width, abs=1e-6)


# What a student multiplies, counted by hand.

DIM, CLASSES, TASKS = 6, 3, 2


def pooled_cost(kind: str) -> float:
    """Pool two tasks of three classes with four images each, six numbers an image, and count."""
    from skillmesh.anchors import KINDS, AnchorSettings
    from skillmesh.backbone.calibration import Prior
    from skillmesh.numerics.arrays import LowRank, counted

    prior = Prior(
        within=LowRank(np.ones(DIM), np.ones((1, DIM))),
        between=LowRank(np.ones(DIM), np.ones((2, DIM))),
        centre=np.zeros(DIM),
    )
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), 4)
    settings = AnchorSettings(rank=2, clusters=2, images_per_class=2)
    anchors = [
        KINDS[kind].fit(rng.standard_normal((12, DIM)).astype(np.float32), labels, CLASSES, settings)
        for _ in range(TASKS)
    ]
    with counted() as costs:
        KINDS[kind].pool(anchors, prior)
    assert costs.spent.keys() == {"mapper"}
    return costs.total


def test_macs_of_a_student_with_sketch_match_a_count_by_hand():
    rank = 1 + TASKS * 2  # the prior's row and two of each task
    spread = TASKS * CLASSES + 2 + 1  # class means, the prior's rows between classes, and its centre
    scatter = 15 * DIM + 25 * DIM + 2 * rank**3 / 6  # ½·5·6 products of rows; root⁻¹ × rows; root and its inverse
    rows = 2 * spread * rank * DIM + spread * DIM
    gram = 45 * (rank + DIM) + 2 * spread**3 / 6  # ½·9·10
    assert pooled_cost("sketch") == pytest.approx(scatter + rows + gram)


def test_macs_of_a_student_with_maha_match_a_count_by_hand():
    samples = TASKS * CLASSES * 2
    covariance = 21 * (samples + 1)  # ½·6·7 products for each sample and the prior's row
    inverse = DIM**3 / 6 + DIM**3
    means = TASKS * CLASSES * (DIM**2 + DIM)
    assert pooled_cost("maha") == pytest.approx(covariance + inverse + means)


def test_a_student_with_gmmc_needs_almost_no_macs():
    assert pooled_cost("gmmc") == 3 * TASKS * 2 * DIM
