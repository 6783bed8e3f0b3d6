"""Corrective evaluation: an answer from the wrong task whose class is equivalent by name counts as right.

This follows the paper's section "Corrective approach to task overlap/synergy". Results are given with and without
it, and with a list of all corrections: equal names do not prove that the images show the same thing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from skillmesh.answering.answer import Guess
from skillmesh.evaluation.evaluate import Evaluation, ForcedAnswers, macro_average
from skillmesh.learning.class_names.encoders import Encoder
from skillmesh.learning.class_names.pairs import Encoded, similarity

THRESHOLDS = (0.9, 0.95)
"""The paper's similarity thresholds; the encoder's own is added to them."""


@dataclass(frozen=True)
class Correction:
    """Images of one class that were answered with an equivalent class of another task."""

    task: str
    label: str
    said_task: str
    said: str
    score: float
    images: int


class Corrector:
    """Corrected and plain accuracy over the images whose answers an evaluation kept."""

    def __init__(self, answers: Sequence[ForcedAnswers], encoder: Encoder) -> None:
        self.encoder = encoder
        self.answers = answers
        ready = lru_cache(maxsize=None)(lambda name: Encoded.of([name], encoder))
        self._score = lru_cache(maxsize=None)(lambda a, b: float(similarity(ready(a), ready(b))[0, 0]))

    def corrections(self, least: float, together: bool = False) -> list[Correction]:
        """Return all corrections at a similarity of `least` or more, most similar first."""
        counts = Counter(
            (task.task, label, guess.task, guess.label)
            for task in self.answers
            for label, guess in zip(task.labels, _guesses(task, together), strict=True)
            if guess.task != task.task and self._score(label, guess.label) >= least
        )
        listed = [Correction(*key, round(self._score(key[1], key[3]), 4), n) for key, n in counts.items()]
        return sorted(listed, key=lambda c: (-c.score, c.task, c.label, c.said_task, c.said))

    def accuracy(self, least: float | None = None, together: bool = False) -> dict[str, float]:
        """Return the share of right answers by task; with `least=None` nothing is corrected."""
        return {task.task: round(float(np.mean(self.right(task, least, together))), 6) for task in self.answers}

    def right(self, task: ForcedAnswers, least: float | None, together: bool) -> list[bool]:
        return [
            guess.label == label
            if guess.task == task.task
            else least is not None and self._score(label, guess.label) >= least
            for label, guess in zip(task.labels, _guesses(task, together), strict=True)
        ]

    def confidence_error(self, least: float | None, together: bool) -> float | None:
        """Return the expected calibration error, with equivalent classes counted as right."""
        stated = [
            (
                np.array([guess.confidence for guess in _guesses(task, together)], dtype=np.float32),
                np.array(self.right(task, least, together)),
            )
            for task in self.answers
        ]
        return Evaluation(confidence=stated).confidence_error()


def _guesses(task: ForcedAnswers, together: bool) -> tuple[Guess, ...]:
    return task.together if together else task.alone


def corrective(
    answers: Sequence[ForcedAnswers], encoder: Encoder, thresholds: Sequence[float] = THRESHOLDS
) -> dict[str, Any]:
    """Return accuracy with and without correction by threshold, the effect of support, and every correction."""
    corrector = Corrector(answers, encoder)
    levels = sorted({encoder.threshold, *thresholds})
    before = corrector.accuracy()
    return {
        "encoder": encoder.name,
        "threshold": encoder.threshold,
        "final_accuracy": _average(before),
        "tasks": before,
        "thresholds": {str(least): _at(corrector, least, before) for least in levels},
        "support": _support(corrector, encoder.threshold),
        "corrections": [asdict(correction) for correction in corrector.corrections(levels[0])],
    }


def _average(shares: dict[str, float]) -> float | None:
    """Return the mean over tasks; `None` if the agent knows none of the tested tasks."""
    return macro_average(list(shares.values())) if shares else None


def _at(corrector: Corrector, least: float, before: dict[str, float]) -> dict[str, Any]:
    after = corrector.accuracy(least)
    return {
        "final_accuracy": _average(after),
        "images": sum(correction.images for correction in corrector.corrections(least)),
        "tasks": {task: [before[task], share] for task, share in after.items() if share != before[task]},
    }


def _support(corrector: Corrector, least: float) -> dict[str, Any]:
    """Return plain and corrected accuracy and calibration, without and with support between equivalent classes."""
    guesses = [guess for task in corrector.answers for guess in task.together]
    figures: dict[str, Any] = {
        name: {
            "final_accuracy": _average(corrector.accuracy(None, together)),
            "corrected_accuracy": _average(corrector.accuracy(least, together)),
            "confidence_error": corrector.confidence_error(least, together),
        }
        for name, together in (("alone", False), ("together", True))
    }
    return figures | {"images": len(guesses), "supported": sum(bool(guess.supported_by) for guess in guesses)}
