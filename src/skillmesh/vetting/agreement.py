"""Agreement: whether classes of one name lie in one place in the eyes of several modules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors.sketch import SketchAnchor, pooled_precision
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.class_names.union import Places, union
from skillmesh.learning.closed_form import closed_form
from skillmesh.module import Module

COMPARED = 64
"""Of so many classes of two parts it is seen whether they agree, or all: tasks of thousands would take minutes."""


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
