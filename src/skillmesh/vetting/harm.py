"""Is a bank worse for its newcomers? The rules, each with a tolerance that few images demand.

Thirty validation images cannot tell a loss of one point from none: a single image is three. So an image count is
compared with what a binomial of the allowed rate hardly ever exceeds, and honest modules pass whatever their luck.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, replace

import numpy as np
from numpy.typing import NDArray

from skillmesh.module import Module
from skillmesh.vetting.exam import Result, Sitting, Taken

LOSS = 0.01
"""A newcomer may cost so much accuracy over all of an agent's own images, and over all probes of others."""
TASK_LOSS = 0.05
"""So much on any one task, and so much by all of a teacher's modules: tasks that look alike do take images."""
UNKNOWN = 0.05
"""So many more may become unknown: the threshold is every module's, and moves a little with each."""
RISK = 1e-4
"""How probable it may be that a newcomer which costs exactly that much is held back by bad luck."""

OWN_IMAGES = "the agent's own validation images"
PROBES = "the probes of other modules"


def tolerance(images: int, rate: float, excused: float = 0.0) -> int:
    """How many of so many images may be lost: more are improbable (`RISK`) where the true loss is `rate`.

    `excused` are errors to expect besides.

    >>> tolerance(30, 0.01), tolerance(200, 0.01), tolerance(4, 0.05), tolerance(200, 0.01, excused=20)
    (4, 9, 3, 40)
    """
    expected = rate + max(excused, 0.0) / max(images, 1)
    if expected >= 1:
        return images
    return int(np.argmax(_more_than_each(images, expected) <= RISK))


def _more_than_each(images: int, rate: float) -> NDArray[np.float64]:
    """The probabilities that a binomial exceeds 0, 1, … up to all images; scipy's would cost a node 16 MB."""
    steps = np.arange(1, images + 1)
    ratios = np.log((images - steps + 1) / steps * rate / (1 - rate))
    exactly = np.exp(images * np.log1p(-rate) + np.concatenate([[0.0], np.cumsum(ratios)]))
    at_least = np.cumsum(exactly[::-1])[::-1]
    return np.append(at_least[1:], 0.0)


def harm(before: Sitting, after: Sitting, newcomers: list[Module], max_claim: float) -> str | None:
    """Say how a bank is worse for its newcomers, in a sentence with figures, or nothing."""
    known = dict(before.others)
    if len(newcomers) > 1:  # nor may one of them take what another brings
        known |= {m.id: _undisturbed(after.others[m.id]) for m in newcomers if m.id in after.others}
    return (
        _loss(before.own, after, OWN_IMAGES)
        or _loss(known, after, PROBES)
        or _claim(before, after, newcomers, max_claim)
        or _greed(before, after, newcomers)
    )


def own_loss(before: Sitting, after: Sitting) -> str | None:
    """Say how the agent's own images suffer, or nothing."""
    return _loss(before.own, after, OWN_IMAGES)


def _undisturbed(result: Result) -> Result:
    """What a newcomer's exam would be if no other module answered it."""
    return replace(result, right=result.images, excused=0.0)


def _loss(before: dict[str, Result], after: Sitting, what: str) -> str | None:
    """Compare the results of exams, over all tasks and for each."""
    later = after.own | after.others
    examined = [m for m in after.modules if m.id in before and m.id in later]
    if not examined:
        return None
    old, new = ([results[m.id] for m in examined] for results in (before, later))
    complaint = worse(_summed(old), _summed(new), LOSS, what)
    for module in examined:
        task = f"{what} of {module.card.task!r}"
        complaint = complaint or worse(before[module.id], later[module.id], TASK_LOSS, task)
    return complaint


def _summed(results: Iterable[Result]) -> Result:
    return Result(*map(sum, zip(*map(astuple, results), strict=True)))


def worse(before: Result, after: Result, rate: float, what: str) -> str | None:
    """Compare the results of one exam."""
    images = after.images
    allowed = tolerance(images, rate, after.excused - before.excused)
    if before.right - after.right > allowed:
        return (
            f"with it {after.right} instead of {before.right} of {images} answers to {what} are right, "
            f"expected at most {allowed} fewer"
        )
    allowed = tolerance(images, UNKNOWN)
    if before.known - after.known > allowed:
        return (
            f"with it {after.known} instead of {before.known} of {images} of {what} are known, "
            f"expected at most {allowed} fewer"
        )
    return None


def _claim(before: Sitting, after: Sitting, newcomers: list[Module], max_claim: float) -> str | None:
    """Look at the background: what newcomers claim, and what older modules know only since they came."""
    images, places = len(after.claims), [after.modules.index(m) for m in newcomers]
    most = max(int(np.sum(after.claims == place)) for place in places)
    opened = int(np.sum((before.claims < 0) & (after.claims >= 0) & ~np.isin(after.claims, places)))
    allowed = int(max_claim * images)
    if most > allowed:
        return f"it claims {most} of {images} background images, expected at most {allowed}"
    if opened > allowed:
        return (
            f"with it other modules claim {opened} of {images} background images that were unknown before, "
            f"expected at most {allowed}"
        )
    return None


def _greed(before: Sitting, after: Sitting, newcomers: list[Module]) -> str | None:
    """Look at all that a teacher sent: many modules must not take bit by bit what one may not."""
    for teacher in sorted({m.card.teacher_key for m in newcomers}):
        count = sum(m.card.teacher_key == teacher for m in after.modules)
        for own, what in ((True, OWN_IMAGES), (False, PROBES)):
            old, new = (sitting.taken.get((teacher, own), Taken()) for sitting in (before, after))
            images = _images_of_others(after, teacher, own)
            allowed = tolerance(images, min(count * LOSS, TASK_LOSS), new.excused)
            if new.wrong > max(allowed, old.wrong):
                return (
                    f"with it the {count} modules of its teacher answer {new.wrong} of {images} of {what} "
                    f"wrongly, expected at most {allowed}"
                )
    return None


def _images_of_others(sitting: Sitting, teacher: str, own: bool) -> int:
    """Count the images that a teacher's modules could take."""
    results = sitting.own if own else sitting.others
    return sum(results[m.id].images for m in sitting.modules if m.id in results and m.card.teacher_key != teacher)
