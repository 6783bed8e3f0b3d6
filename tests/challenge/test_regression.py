"""The line of accuracy over tasks."""

from __future__ import annotations

import pytest

from skillmesh.errors import SkillmeshError
from skillmesh_challenge.metrics import fit_line

pytestmark = pytest.mark.long


def test_a_line_through_points_on_it_is_that_line():
    line = fit_line([10, 20, 40], [0.98, 0.96, 0.92])
    assert line.slope == pytest.approx(-0.002)
    assert line.at(0) == pytest.approx(1.0)
    assert line.meets(0.5) == pytest.approx(250)


def test_a_line_through_scattered_points_is_that_of_least_squares():
    line = fit_line([1, 2, 3, 4], [99, 97, 98, 94])
    assert (line.slope, line.intercept) == (pytest.approx(-1.4), pytest.approx(100.5))


def test_a_level_line_reaches_no_lower_level_and_one_below_has_reached_it():
    assert fit_line([1, 2], [0.9, 0.9]).meets(0.5) is None
    assert fit_line([1, 2], [0.4, 0.3]).meets(0.9) == 0


@pytest.mark.parametrize(("tasks", "accuracy"), [([5, 5], [0.9, 0.8]), ([1], [0.5]), ([1, 2], [0.5])])
def test_one_number_of_tasks_gives_no_line(tasks, accuracy):
    with pytest.raises(SkillmeshError, match="two numbers of tasks"):
        fit_line(tasks, accuracy)
