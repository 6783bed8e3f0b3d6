"""One sentence on what would help a task that was learned less than perfectly, from measurements on real tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skillmesh.learning.outcome import Outcome

FEW_TO_JUDGE = 20
"""Validation images below which the accuracy says little: 95 % of the time it is off by up to 22 points."""
TO_JUDGE_A_CLASS = 20
WEAK = 0.98
"""Validation accuracy below which there is something to gain."""
FEW_PER_CLASS = 30
"""Training images per class up to which more of them help most."""
ENOUGH_TO_ADAPT = 800
"""Training images from which biases were kept; fewer were tried on one task only, where they were not."""


@dataclass(frozen=True)
class Measured:
    """What something was worth on real tasks: their number, and the points of accuracy on average."""

    tasks: int
    points: float


MORE_OF_FEW = Measured(11, 6.9)
"""The second half of the training images, on tasks with up to `FEW_PER_CLASS` of a class (docs/learning.md)."""
MORE_OF_MANY = Measured(29, 0.9)
"""The same on tasks with more."""
ADAPTING_TASKS = 16
ADAPTING = Measured(9, 3.7)
"""Biases, on those of the `ADAPTING_TASKS` where `--adapt auto` kept them."""


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
    training_accuracy
        That of the same head. Where it is no better, the head lacks something that more images do not give.
    """
    accuracy = outcome.accuracy
    if accuracy is None or len(outcome) < FEW_TO_JUDGE:
        return _too_few(outcome)
    if accuracy >= WEAK:
        return None
    weakest = _weakest(outcome)
    few = counts[weakest] <= FEW_PER_CLASS
    if not few and not adapting_tried and sum(counts) >= ENOUGH_TO_ADAPT:
        return (
            f"--adapt auto may help: on {ADAPTING.tasks} of {ADAPTING_TASKS} real tasks it did, by "
            f"{ADAPTING.points} points on average, and on the others it kept the head as it is"
        )
    if training_accuracy is not None and training_accuracy <= accuracy:
        return _alike(outcome)
    worth = MORE_OF_FEW if few else MORE_OF_MANY
    name, images = outcome.classes[weakest], counts[weakest]
    return (
        f"more images of {name!r} (it has {images:,}){'' if few else ' help a little'}: on {worth.tasks} real "
        f"tasks with {'up to' if few else 'over'} {FEW_PER_CLASS} per class, the second half of the images was "
        f"worth {worth.points} points"
    )


def _alike(outcome: Outcome) -> str | None:
    """Say that the head lacks something which more images do not give, where two classes are to blame."""
    confusions = outcome.confusions()
    if not confusions:
        return None
    return (
        f"{confusions[0]}: it is no better on its own training images, so more of the same will not help; look "
        "whether these classes can be told apart in the images, or make one of them"
    )


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
