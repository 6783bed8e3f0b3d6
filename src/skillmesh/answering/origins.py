"""Is a task composed of what it says? Its card is a claim; where a named module is here, the claim can be checked.

A task that was composed without images has its sources' class means, and these are copied: only rounding may tell
them apart. With images of its own it has means of its own, and nothing can be said: its counts then tell of more
images than its sources have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from skillmesh.anchors import KINDS
from skillmesh.module import Module
from skillmesh.module.joint import parts_of
from skillmesh.numerics.tensors import Floats


def parts_here(tasks: Iterable[Module]) -> dict[str, Module]:
    """All modules that tasks consist of, by their ids."""
    return {part.id: part for task in tasks for part in parts_of(task)}


def is_copy(module: Module, here: Mapping[str, Module], kind: str) -> bool | None:
    """Whether a composed task has its sources' means; None where that cannot be seen, or not of all of them."""
    rows = [(row, here[source], name) for row, (source, name) in enumerate(module.card.origins) if source in here]
    if not rows or (own := _means(module, kind)) is None:
        return None
    if any(name not in source.card.classes for _, source, name in rows):
        return False
    if any(
        module.card.counts[row] > source.card.counts[source.card.classes.index(name)] for row, source, name in rows
    ):
        return None
    known = {source.id: _means(source, kind) for _, source, _ in rows}
    for row, source, name in rows:
        if (others := known[source.id]) is None:
            return None
        ours, theirs = own[row], others[source.card.classes.index(name)]
        if np.abs(ours - theirs).max() > np.abs(theirs).max() / 127:  # a step of its rounding
            return False
    return True if len(rows) == len(module.card.origins) else None


def _means(module: Module, kind: str) -> Floats | None:
    return KINDS[kind].read(module.tensors).class_means()
