"""Fitting: which modules can be parts of one task.

Heads and anchors look at the same numbers, each part is of another teacher, every part shares a class name with
another, and of any two parts the classes of one name lie in one place. Any two: many who agree with each other
must not outvote the one whom they contradict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from skillmesh.backbone.calibration import Prior
from skillmesh.errors import SettingsMismatchError
from skillmesh.learning.class_names.union import Union, union
from skillmesh.module import Module
from skillmesh.module.card import MAX_CLASSES
from skillmesh.module.portable import refuse_strangers
from skillmesh.module.teachers import Signed, claimed
from skillmesh.vetting.agreement import disagreement

ASTRAY = 0.25
"""So many shared classes may lie nearer to another class of the other part than to their own."""


def misfit(parts: Sequence[Module], prior: Prior, name_of: Callable[[Signed], str] = claimed) -> str | None:
    """Say why modules cannot be parts of one task, or nothing."""
    try:
        refuse_strangers([part.card for part in parts])
    except SettingsMismatchError as error:
        return str(error)
    if any("sketch" not in part.card.anchors for part in parts):
        return "only tasks with sketch anchors can be merged: those of other kinds do not add up"
    classes = union([part.card.classes for part in parts])
    if len(classes.classes) > MAX_CLASSES:
        return f"together they have {len(classes.classes):,} classes, expected at most {MAX_CLASSES:,}"
    if (lonely := _unconnected(classes)) is not None:
        card = parts[lonely].card
        return (
            f"{card.task!r} by {name_of(card)} has no class in common with the others, expected one or more; to "
            "put different classes together, use `skillmesh compose`"
        )
    ((_, teacher), many) = Counter((p.card.teacher_key, name_of(p.card)) for p in parts).most_common(1)[0]
    if many > 1:
        return (
            f"{many} of them are by {teacher}, expected one of each teacher: nobody has more say by sending "
            "more; to add to a task of one's own, use `skillmesh learn --continue`"
        )
    compared, astray = disagreement(parts, prior)
    if astray > ASTRAY * compared:
        return (
            f"classes of one name do not look alike: of two teachers {astray} of {compared} lie nearer to another "
            f"class of the other, expected at most {int(ASTRAY * compared)}"
        )
    return None


def _unconnected(classes: Union) -> int | None:
    """The index of a part that no chain of shared classes leads to from the first."""
    reached, known = {0}, set(classes.places[0].tolist())
    while True:
        near = [i for i, places in enumerate(classes.places) if i not in reached and known & set(places.tolist())]
        if not near:
            return next((i for i in range(len(classes.places)) if i not in reached), None)
        reached |= set(near)
        known |= {number for i in near for number in classes.places[i].tolist()}
