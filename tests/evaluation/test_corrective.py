"""Corrective evaluation: an equivalent class of another task counts as right, and every such case is listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import LEARNED

from skillmesh.answering.answer import Guess
from skillmesh.core import Core
from skillmesh.evaluation.corrective import Corrector, corrective
from skillmesh.evaluation.evaluate import ForcedAnswers, evaluate
from skillmesh.learning.class_names.encoders import Letters


def guesses(*answers: tuple[str, str]) -> tuple[Guess, ...]:
    return tuple(Guess(label, task, "t", 0.5) for task, label in answers)


@pytest.fixture
def answers() -> list[ForcedAnswers]:
    """Answers to four images of food: right, right by a name in another task, wrong class, wrong task."""
    alone = guesses(("food", "spring rolls"), ("kitchen", "Spring_Roll"), ("food", "pizza"), ("kitchen", "oven"))
    together = guesses(("food", "spring rolls"), ("food", "spring rolls"), ("food", "pizza"), ("kitchen", "oven"))
    return [ForcedAnswers("food", ("spring rolls",) * 4, alone, together)]


def test_equivalent_classes_of_other_tasks_count_and_are_listed(answers: list[ForcedAnswers]) -> None:
    figures = corrective(answers, Letters())
    assert figures["final_accuracy"] == 0.25
    assert figures["thresholds"]["0.95"]["final_accuracy"] == 0.5
    assert figures["thresholds"]["0.95"]["tasks"] == {"food": [0.25, 0.5]}
    assert figures["corrections"] == [
        {
            "task": "food",
            "label": "spring rolls",
            "said_task": "kitchen",
            "said": "Spring_Roll",
            "score": 1.0,
            "images": 1,
        }
    ]
    assert figures["support"]["together"]["final_accuracy"] == 0.5


def test_another_class_of_the_same_task_is_never_corrected() -> None:
    same = [ForcedAnswers("food", ("roll", "rolls"), guesses(("food", "rolls"), ("food", "roll")), ())]
    assert Corrector(same, Letters()).accuracy(0.1) == {"food": 0.0}
    assert Corrector(same, Letters()).corrections(0.1) == []


def test_a_higher_threshold_never_corrects_more(answers: list[ForcedAnswers]) -> None:
    like = guesses(("kitchen", "spring onions"))
    answers += [ForcedAnswers("food", ("spring rolls",), like, like)]
    counts = [at["images"] for at in corrective(answers, Letters(), (0.01, 0.5, 0.99))["thresholds"].values()]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_without_correction_the_figures_are_those_of_the_evaluation(taught: Core, demo_tasks: Path) -> None:
    result = evaluate(taught, [demo_tasks / name for name in LEARNED], learn=False, keep_forced=True)
    figures = corrective(result.forced, Letters())
    assert figures["final_accuracy"] == pytest.approx(result.summary()["final_accuracy"], abs=1e-6)
    assert figures["tasks"] == pytest.approx({t.task: t.final_accuracy for t in result.tasks}, abs=1e-6)
    assert figures["support"]["alone"]["confidence_error"] == pytest.approx(result.confidence_error(), abs=1e-5)


def test_the_command_reports_corrected_figures(command, taught: Core, demo_tasks: Path, tmp_path: Path) -> None:
    words = (
        "eval",
        demo_tasks / "dice",
        "--no-learn",
        "--home",
        taught.home,
        "--corrective",
        "--encoder",
        "letters",
    )
    ran = command(*words, "--out", tmp_path / "found.json")
    assert ran.code == 0
    assert "if names of similarity 0.9 or more count as equal" in ran.out
    figures = json.loads((tmp_path / "found.json").read_text())["corrective"]
    assert set(figures["thresholds"]) == {"0.8", "0.9", "0.95"}
    plain = command(*words[:-3], "--json").json
    assert "corrective" not in plain


def test_the_command_gives_no_figures_if_no_tested_task_is_known(
    command, tiny_taught: Core, demo_tasks: Path
) -> None:
    unknown = next(
        p for p in sorted(demo_tasks.iterdir()) if p.name not in {t.card.task for t in tiny_taught.tasks()}
    )
    words = ("eval", unknown, "--no-learn", "--home", tiny_taught.home, "--corrective", "--encoder", "letters")
    figures = command(*words, "--json").json["corrective"]
    assert figures["final_accuracy"] is None
    assert [at["final_accuracy"] for at in figures["thresholds"].values()] == [None] * 3
    assert figures["support"]["together"]["corrected_accuracy"] is None
    assert command(*words).code == 0
