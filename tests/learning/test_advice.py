"""After learning: which classes are confused, and one sentence of advice with measured figures."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from skillmesh.learning import lesson
from skillmesh.learning.lesson import OTHER, Outcome, advise

RESULTS = Path(__file__).parents[2] / "docs/results"


def outcome(labels: list[int], guesses: list[int], classes: str = "abc") -> Outcome:
    confidence = np.linspace(0.5, 1, len(labels), dtype=np.float32)
    return Outcome(tuple(classes), [], np.array(labels, np.int64), np.array(guesses, np.int64), confidence)


GOOD = outcome([0, 1, 2] * 10, [0, 1, 2] * 10)
WEAK = outcome([0, 1, 2] * 10, [0, 1, 1] * 3 + [0, 1, 2] * 7)
"""Three of ten images of c are answered with b."""


class TestOutcome:
    def test_counts_recall_and_confusions(self):
        answered = outcome([0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 0, OTHER])
        assert answered.accuracy == pytest.approx(2 / 6)
        assert answered.matrix().tolist() == [[1, 2, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]]
        assert answered.recall() == [pytest.approx(1 / 3), 0.5, 0.0]
        assert [str(pair) for pair in answered.confusions()] == ["a with b (2 of 3)", "b with a (1 of 2)"]

    def test_wrong_answers_are_ordered_by_class_then_confidence(self):
        assert outcome([1, 0, 0, 1], [0, 1, 1, 1]).wrong() == [2, 1, 0]

    def test_a_class_without_images_has_no_recall(self):
        assert outcome([0], [0]).recall() == [1.0, None, None]
        assert Outcome.nothing(("a",)).accuracy is None


class TestAdvice:
    def test_a_perfect_result_gets_no_advice(self):
        assert advise(GOOD, [9, 9, 9], 1.0, adapting_tried=False) is None

    def test_a_nearly_perfect_result_gets_no_advice(self):
        nearly = outcome([0, 1] * 50, [0, 1] * 49 + [0, 0])
        assert advise(nearly, [9, 9, 9], 1.0, adapting_tried=False) is None

    def test_a_class_with_few_images_gets_the_advice_to_add_more(self):
        advice = advise(WEAK, [900, 12, 900], 1.0, adapting_tried=False)
        assert advice is not None
        assert advice.startswith("more images of 'b' (it has 12) help most: ")
        assert "11 real tasks with up to 30 per class" in advice

    def test_many_images_get_the_advice_to_adapt_unless_that_was_tried(self):
        advice = advise(WEAK, [900, 900, 900], 1.0, adapting_tried=False)
        assert advice is not None
        assert advice.startswith("adaptation=Adaptation() may help: on 9 of 16 real tasks")
        again = advise(WEAK, [900, 900, 900], 1.0, adapting_tried=True)
        assert again is not None
        assert again.startswith("more images of 'b' (it has 900) help a little")
        assert "29 real tasks with over 30 per class" in again

    def test_a_head_no_better_on_its_training_images_is_not_advised_to_add_more(self):
        advice = advise(WEAK, [90, 90, 90], WEAK.accuracy, adapting_tried=True)
        assert advice is not None
        assert advice.startswith(f"the head confuses {WEAK.confusions()[0]} and is no better on its own")
        assert "more of the same will not help" in advice

    @pytest.mark.parametrize(
        ("images", "words"), [(3, "only 3 validation images"), (1, "only 1 validation image:")]
    )
    def test_few_validation_images_are_reported_even_for_a_perfect_result(self, images: int, words: str):
        advice = advise(outcome([0] * images, [0] * images), [9, 9, 9], 1.0, adapting_tried=False)
        assert advice is not None
        assert advice.startswith(words)
        assert "20 per class are enough to judge it" in advice

    def test_missing_validation_images_are_reported(self):
        advice = advise(Outcome.nothing(("a", "b")), [1, 1], 1.0, adapting_tried=False)
        assert advice is not None
        assert advice.startswith("no validation images: accuracy unknown; 20 per class")


class TestFigures:
    """The numbers in the advice equal those of the committed results."""

    def test_more_images(self):
        tasks = json.loads((RESULTS / "learning-curve.json").read_text())["tasks"]
        for measured, few in ((lesson.MORE_OF_FEW, True), (lesson.MORE_OF_MANY, False)):
            mine = [t for t in tasks if (t["images_per_class"] <= lesson.FEW_PER_CLASS) == few]
            gains = [100 * (t["test_accuracy"] - t["test_accuracy_with_half"]) for t in mine]
            assert (measured.tasks, measured.points) == (len(mine), round(fmean(gains), 1))

    def test_adapting(self):
        tasks = json.loads((RESULTS / "biases.json").read_text())["tasks"]
        auto, plain = "biases, our way, auto", "head on descriptor"
        kept = [t for t in tasks.values() if t["methods"][auto]["trial"].endswith("; kept")]
        gains = [100 * (t["methods"][auto]["test"] - t["methods"][plain]["test"]) for t in kept]
        assert len(tasks) == lesson.ADAPTING_TASKS
        assert (lesson.ADAPTING.tasks, lesson.ADAPTING.points) == (len(kept), round(fmean(gains), 1))
        assert min(t["images"][0] for t in kept) >= lesson.ENOUGH_TO_ADAPT
