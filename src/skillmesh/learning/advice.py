"""One sentence on what would help a task that was learned less than perfectly, from measurements on real tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from skillmesh.learning.outcome import Outcome

FEW_TO_JUDGE = 20
"""Validation images below which the accuracy says little: 95 % of the time it is off by up to 22 points."""
TO_JUDGE_A_CLASS = 20
WEAK = 0.98
"""Validation accuracy below which there is something to gain."""
FEW_PER_CLASS = 30
"""Training images of a class up to which more of them were found to help most."""
ENOUGH_TO_ADAPT = 800
"""Training images from which biases were kept; fewer were tried on one task only, where they were not."""

MORE_IMAGES = {"tasks": 0, "errors_removed": 0.0}
"""Tasks with up to 30 training images per class, and the share of their errors that twice the images removed."""
ADAPTING = {"tasks": 16, "kept": 9, "points": 3.7}
"""Tasks on which `--adapt auto` was measured, on how many it kept biases, and the points that it gained there."""


def advise(
    outcome: Outcome, counts: Sequence[int], training_accuracy: float | None, adapting_tried: bool
) -> str | None:
    """Say what helps most; nothing where nothing is to be gained.

    Parameters
    ----------
    outcome
        The validation images, by a head that has not seen them.
    counts
        Training images of each class.
    """
    accuracy = outcome.accuracy
    if accuracy is None or len(outcome) < FEW_TO_JUDGE:
        return _too_few(outcome)
    if accuracy >= WEAK:
        return None
    weakest = _weakest(outcome)
    if counts[weakest] <= FEW_PER_CLASS:
        return _more_images(outcome.classes[weakest], counts[weakest])
    if not adapting_tried and sum(counts) >= ENOUGH_TO_ADAPT:
        return (
            f"--adapt auto may help: on {ADAPTING['kept']} of {ADAPTING['tasks']} real tasks it did, by "
            f"{ADAPTING['points']:.1f} points on average, and on none it cost any"
        )
    if training_accuracy is not None and training_accuracy - accuracy > 0.05:
        return _more_images(outcome.classes[weakest], counts[weakest])
    return None


def _too_few(outcome: Outcome) -> str:
    images = len(outcome)
    if not images:
        return f"no validation images: how good it is cannot be said; {TO_JUDGE_A_CLASS} per class would tell"
    off = 100 * 1.96 * math.sqrt(0.25 / images)
    return (
        f"only {images} validation image{'s' if images > 1 else ''}: the figure says little (it may be off by "
        f"{min(off, 100):.0f} points); {TO_JUDGE_A_CLASS} per class would tell"
    )


def _weakest(outcome: Outcome) -> int:
    """Return the class with the most wrong answers about it, given or missed."""
    counts = outcome.matrix()[:, :-1]
    wrong = counts.sum(axis=1) + counts.sum(axis=0) - 2 * np.diagonal(counts)
    return int(np.argmax(wrong))


def _more_images(name: str, images: int) -> str:
    return (
        f"more images of {name!r} (it has {images}): on {MORE_IMAGES['tasks']} real tasks with up to "
        f"{FEW_PER_CLASS} per class, twice as many removed {MORE_IMAGES['errors_removed']:.0%} of the errors"
    )
