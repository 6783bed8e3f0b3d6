"""Corrective evaluation: an answer from the wrong task whose class is equivalent by name counts as right.

As in the paper's section "Corrective approach to task overlap/synergy", with and without it, and with a list of
everything that was corrected: a name that says the same is no proof that it shows the same.
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
"""The paper's; the encoder's own is added to them."""


@dataclass(frozen=True)
class Correction:
    """Images of a class that another task's head gave an equivalent one."""

    task: str
    label: str
    said_task: str
    said: str
    score: float
    images: int


class Corrector:
    """Accuracy over an evaluation's images for which what was said was kept."""

    def __init__(self, said: Sequence[ForcedAnswers], encoder: Encoder) -> None:
        self.encoder = encoder
        self.said = said
        ready = lru_cache(maxsize=None)(lambda name: Encoded.of([name], encoder))
        self._score = lru_cache(maxsize=None)(lambda a, b: float(similarity(ready(a), ready(b))[0, 0]))

    def corrections(self, least: float, together: bool = False) -> list[Correction]:
        """All that count as right from this similarity on, the surest first."""
        found = Counter(
            (said.task, label, guess.task, guess.label)
            for said in self.said
            for label, guess in zip(said.labels, _guesses(said, together), strict=True)
            if guess.task != said.task and self._score(label, guess.label) >= least
        )
        listed = [Correction(*key, round(self._score(key[1], key[3]), 4), n) for key, n in found.items()]
        return sorted(listed, key=lambda c: (-c.score, c.task, c.label, c.said_task, c.said))

    def accuracy(self, least: float | None = None, together: bool = False) -> dict[str, float]:
        """The share of right answers by task; `None` corrects nothing."""
        return {said.task: round(float(np.mean(self.right(said, least, together))), 6) for said in self.said}

    def right(self, said: ForcedAnswers, least: float | None, together: bool) -> list[bool]:
        return [
            guess.label == label
            if guess.task == said.task
            else least is not None and self._score(label, guess.label) >= least
            for label, guess in zip(said.labels, _guesses(said, together), strict=True)
        ]

    def confidence_error(self, least: float | None, together: bool) -> float | None:
        """How far stated confidence is from accuracy, equivalent classes counting as right."""
        stated = [
            (
                np.array([guess.confidence for guess in _guesses(said, together)], dtype=np.float32),
                np.array(self.right(said, least, together)),
            )
            for said in self.said
        ]
        return Evaluation(confidence=stated).confidence_error()


def _guesses(said: ForcedAnswers, together: bool) -> tuple[Guess, ...]:
    return said.together if together else said.alone


def corrective(
    said: Sequence[ForcedAnswers], encoder: Encoder, thresholds: Sequence[float] = THRESHOLDS
) -> dict[str, Any]:
    """Return accuracy with and without correction by threshold, what support adds, and every correction."""
    corrector = Corrector(said, encoder)
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
    """Over tasks; none where no task that was tested is known."""
    return macro_average(list(shares.values())) if shares else None


def _at(corrector: Corrector, least: float, before: dict[str, float]) -> dict[str, Any]:
    after = corrector.accuracy(least)
    return {
        "final_accuracy": _average(after),
        "images": sum(correction.images for correction in corrector.corrections(least)),
        "tasks": {task: [before[task], share] for task, share in after.items() if share != before[task]},
    }


def _support(corrector: Corrector, least: float) -> dict[str, Any]:
    """Every task on its own against equivalent classes together: plain and corrected accuracy, calibration."""
    guesses = [guess for said in corrector.said for guess in said.together]
    figures: dict[str, Any] = {
        name: {
            "final_accuracy": _average(corrector.accuracy(None, together)),
            "corrected_accuracy": _average(corrector.accuracy(least, together)),
            "confidence_error": corrector.confidence_error(least, together),
        }
        for name, together in (("alone", False), ("together", True))
    }
    return figures | {"images": len(guesses), "supported": sum(bool(guess.supported_by) for guess in guesses)}
