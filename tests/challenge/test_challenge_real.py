"""The challenge on real tasks: two agents on two processes find what `skillmesh eval` finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skillmesh.core import Core
from skillmesh.data.folder import find_tasks, open_task
from skillmesh.evaluation.evaluate import evaluate
from skillmesh_challenge.methods import METHODS, SkillMethod
from skillmesh_challenge.metrics import AVERAGED
from skillmesh_challenge.run import Plan, run


@pytest.fixture(scope="module")
def paths(real_tasks: Path) -> list[Path]:
    """The four smallest tasks, since a cold cache is slow."""
    found = find_tasks([real_tasks])
    return sorted(found, key=lambda path: sum(map(len, open_task(path).splits.values())))[:4]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sketch", "gmmc", "maha"])
def test_real_tasks_give_the_macro_averages_of_eval_and_half_of_n_in_speedup(
    name: str, paths: list[Path], new_agent: Callable[..., Core], tmp_path: Path
):
    method = METHODS[name]
    assert isinstance(method, SkillMethod)
    results = run(Plan(paths, method, tmp_path / "run", agents=2, workers=2, bound=False)).results
    assert results is not None
    # The challenge tests every method on all test images, including those that `eval` leaves out.
    agent = new_agent(**method.config("eval", 0).model_dump())
    expected = evaluate(agent, paths, change=lambda image: image).summary()
    for figure in (*AVERAGED.values(), "module_bytes", "anchor_bytes"):
        assert results[figure] == expected[figure], figure
    assert results["costs"]["efficiency"] >= 0.5
    assert results["sharing"]["same_answers"]
