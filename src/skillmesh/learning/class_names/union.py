"""The classes of several tasks as one list, each class once by its plain name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skillmesh.learning.class_names.plain import joined

Places = NDArray[np.int64]
"""Where each class of a part stands among the classes of the whole."""


@dataclass(frozen=True)
class Union:
    """The classes of several parts, each once, by their plain names."""

    classes: tuple[str, ...]
    places: tuple[Places, ...]

    @property
    def shared(self) -> NDArray[np.bool_]:
        """Which classes more than one part has."""
        counted = np.bincount(np.concatenate(self.places), minlength=len(self.classes))
        return counted > 1


def union(parts: Sequence[Sequence[str]]) -> Union:
    """Number the classes of parts in order of first sight; each is spelled as most of them do.

    Where a teacher tells apart what has one plain form (`a` and `A`), such names are compared as they are.
    """
    told_apart = {form for names in parts for form, n in Counter(map(joined, names)).items() if n > 1}
    spellings: dict[tuple[str, bool], Counter[str]] = {}
    places = []
    for names in parts:
        keys = [(name, True) if joined(name) in told_apart else (joined(name), False) for name in names]
        for key, name in zip(keys, names, strict=True):
            spellings.setdefault(key, Counter())[name] += 1
        numbers = {key: number for number, key in enumerate(spellings)}
        places.append(np.array([numbers[key] for key in keys], dtype=np.int64))
    classes = tuple(min(spelled, key=lambda name: (-spelled[name], name)) for spelled in spellings.values())
    return Union(classes, tuple(places))
