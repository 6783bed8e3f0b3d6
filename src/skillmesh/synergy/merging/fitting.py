"""Fitting: which modules can be parts of one task.

Heads and anchors look at the same numbers, each part is of another teacher, every part shares a class name with
another, and of any two parts the classes of one name lie in one place. Any two: many who agree with each other
must not outvote the one whom they contradict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors.sketch import SketchAnchor, pooled_precision
from skillmesh.backbone.calibration import Prior
from skillmesh.errors import SettingsMismatchError
from skillmesh.module import Module
from skillmesh.module.card import MAX_CLASSES
from skillmesh.synergy.composition.head import closed_form
from skillmesh.synergy.merging.statistics import Places, Union, union
from skillmesh.synergy.rows.portable import refuse_strangers
from skillmesh.teachers import Signed, claimed

ASTRAY = 0.25
"""So many shared classes may lie nearer to another class of the other part than to their own."""
COMPARED = 64
"""Of so many classes of two parts it is seen whether they agree, or all: tasks of thousands would take minutes."""


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


def disagreement(parts: Sequence[Module], prior: Prior) -> tuple[int, int]:
    """Of classes of one name in two parts, how many there are, and how many lie nearer to a class of another.

    Of several parts, those two count that agree the least.
    """
    worst = (0, 0)
    for seen in _compared(parts, prior).values():
        compared, astray = seen.there.size + seen.back.size, int(seen.there.sum() + seen.back.sum())
        if compared and astray * max(worst[0], 1) >= worst[1] * compared:
            worst = compared, astray
    return worst


def disputed(parts: Sequence[Module], index: int, prior: Prior) -> Places:
    """Which classes of one part lie nearer to a class of another name in any other, or others' nearer to its."""
    found = np.zeros(len(parts[index].card.classes), dtype=np.bool_)
    places = union([part.card.classes for part in parts]).places
    for (i, j), seen in _compared(parts, prior).items():
        if index in (i, j):
            found |= np.isin(places[index], seen.places[seen.there | seen.back])
    return np.flatnonzero(found)


class _Compared(NamedTuple):
    """Classes that two parts share, and which of them the second takes for another, or the first does."""

    places: Places
    there: NDArray[np.bool_]
    back: NDArray[np.bool_]


def _compared(parts: Sequence[Module], prior: Prior) -> dict[tuple[int, int], _Compared]:
    """Compare all pairs; each part's closed form is made once."""
    places = union([part.card.classes for part in parts]).places
    anchors = [SketchAnchor.read(part.tensors) for part in parts]
    precision = pooled_precision(anchors, prior)
    closed = [closed_form(anchor.means, precision) for anchor in anchors]

    def astray(i: int, j: int, shared: Places) -> NDArray[np.bool_]:
        rows = [places[i].tolist().index(place) for place in shared]
        return np.asarray(places[j][closed[j].logits(anchors[i].means[rows]).argmax(axis=1)] != shared)

    found = {}
    for i, j in combinations(range(len(parts)), 2):
        shared = np.intersect1d(places[i], places[j])
        if len(shared):
            shared = shared[:: -(-len(shared) // COMPARED)]
            found[i, j] = _Compared(shared, astray(i, j, shared), astray(j, i, shared))
    return found


def _unconnected(classes: Union) -> int | None:
    """The index of a part that no chain of shared classes leads to from the first."""
    reached, known = {0}, set(classes.places[0].tolist())
    while True:
        near = [i for i, places in enumerate(classes.places) if i not in reached and known & set(places.tolist())]
        if not near:
            return next((i for i in range(len(classes.places)) if i not in reached), None)
        reached |= set(near)
        known |= {number for i in near for number in classes.places[i].tolist()}
