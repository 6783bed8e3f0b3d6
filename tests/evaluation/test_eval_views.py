"""Evaluation on views: of the images that were measured unchanged, with the means over views."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copy, copytree

import numpy as np
import pytest
from running import Ran, failed

from skillmesh.core import Core
from skillmesh.data.views import ViewedImage
from skillmesh.evaluation.evaluate import evaluate
from skillmesh.evaluation.views import FIGURES, ORIGINAL, evaluate_views, summary_of_views


def test_views_are_measured_on_the_images_of_the_original(taught: Core, demo_tasks: Path):
    original = evaluate(taught, [demo_tasks / "dice", demo_tasks / "snowflakes"], learn=False)
    figures = list(evaluate_views(taught, original, ["mirrored", "quarter size"]))
    assert [each.view for each in figures] == [ORIGINAL, "mirrored", "quarter size"]
    assert figures[0].final_accuracy == original.final
    assert figures[0].hidden_unanswered == original.summary()["hidden_unanswered"]
    assert figures[0].known_unanswered == original.summary()["known_unanswered"]
    mirrored = evaluate(
        taught, [demo_tasks / "dice"], learn=False, change=lambda image: ViewedImage(image, ("mirrored",))
    )
    assert figures[1].task_found_accuracy == mirrored.task_found
    assert figures[2].final_accuracy < figures[0].final_accuracy
    means = summary_of_views(figures)["views_mean"]
    assert means["final_accuracy"] == pytest.approx(np.mean([each.final_accuracy for each in figures]), abs=1e-6)
    assert set(means) == set(FIGURES)


def test_images_left_out_of_the_original_are_left_out_of_its_views(taught: Core, demo_tasks: Path, tmp_path: Path):
    copytree(demo_tasks / "dice", tmp_path / "dice")
    copy(tmp_path / "dice/train/one/0.jpg", tmp_path / "dice/test/one/copy.jpg")
    original = evaluate(taught, [tmp_path / "dice"], learn=False)
    assert original.tasks[0].left_out == 1
    assert [len(task.splits["test"]) for task in original.tested] == [original.tasks[0].test_images]


def test_without_learning_no_views_are_learned_or_stated(
    tiny_taught: Core, tiny_tasks: Path, command: Callable[..., Ran]
):
    words = ("eval", tiny_tasks / "dice", "--no-learn", "--home", tiny_taught.home)
    assert command(*words, "--json").json["settings"]["learn_views"] is None
    for views in (0, 1):
        failed(
            command(*words, "--learn-views", views), "--no-learn measures tasks as they were learned; leave out"
        )
