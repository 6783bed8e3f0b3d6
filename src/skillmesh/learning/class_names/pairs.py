"""Which classes of different tasks are one thing under two names, by the similarity of the names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from skillmesh.errors import DataError
from skillmesh.learning.class_names.encoders import Encoder, Rows
from skillmesh.learning.class_names.plain import joined, plain

Scores = NDArray[np.float64]
NEGATIONS = frozenset({"no", "non", "not", "without", "never"})
SIDES = frozenset({"left", "right"})
SLACK = 1e-4
"""More than single precision can be wrong by."""


@dataclass(frozen=True)
class Match:
    """A class of one task and the class of another that it is like."""

    learned: str
    target: str
    score: float
    learned_task: str = ""
    target_task: str = ""


@dataclass(frozen=True)
class Encoded:
    """A task's class names, ready to be compared."""

    classes: tuple[str, ...]
    keys: tuple[str, ...]
    marks: tuple[tuple[str, ...], ...]
    rows: Rows

    @classmethod
    def of(cls, classes: Sequence[str], encoder: Encoder) -> Encoded:
        forms = [plain(name) for name in classes]
        keys, marks = tuple(map(joined, classes)), tuple(map(telling, forms))
        return cls(tuple(classes), keys, marks, encoder.encode(forms))


@lru_cache(maxsize=65536)
def telling(form: str) -> tuple[str, ...]:
    """Return the words of a plain form that encoders hardly see and that make another class of it.

    `speed limit 30` and `speed limit 50`, `letter a` and `letter b`, `mask` and `no mask`, `turn left` and `turn
    right` are neighbours to every encoder of sentences. Such words must agree, or the names do not match.
    """
    words = form.split()
    article = {"a"} if words[-1:] != ["a"] else set()
    marks = {word for word in words if len(word) == 1 or word in SIDES or any(map(str.isdigit, word))} - article
    return (*sorted(marks), *(["not"] if NEGATIONS & set(words) else []))


def similarity(learned: Encoded, target: Encoded) -> Scores:
    """Return the similarity of all pairs: 1 where the plain forms are equal, 0 where a telling word differs."""
    if not learned.classes or not target.classes:
        return np.zeros((len(learned.classes), len(target.classes)))
    scores = np.clip(learned.rows.astype(np.float64) @ target.rows.astype(np.float64).T, 0.0, 1.0)
    for i, (key, marks) in enumerate(zip(learned.keys, learned.marks, strict=True)):
        scores[i, [marks != other for other in target.marks]] = 0.0
        scores[i, [key == other for other in target.keys]] = 1.0
    return scores


def match_classes(
    learned: Sequence[str], target: Sequence[str], encoder: Encoder, threshold: float | None = None
) -> list[Match]:
    """Return the pairs of two tasks' classes at or above the threshold, the surest first."""
    return match_tasks({"": learned}, {"": target}, encoder, threshold)


def match_tasks(
    learned: Mapping[str, Sequence[str]],
    target: Mapping[str, Sequence[str]],
    encoder: Encoder,
    threshold: float | None = None,
) -> list[Match]:
    """As `match_classes`, for the classes by task of two sides."""
    least = checked(encoder, threshold)
    ready = [{task: Encoded.of(names, encoder) for task, names in side.items()} for side in (learned, target)]
    found = [
        Match(a.classes[i], b.classes[j], score, first, second)
        for first, a in ready[0].items()
        for second, b in ready[1].items()
        for i, j, score in pairs(a, b, least)
    ]
    return sorted(found, key=surest_first)


def pairs(learned: Encoded, target: Encoded, threshold: float) -> list[tuple[int, int, float]]:
    """Return places and scores of all pairs at or above the threshold.

    A product of all rows finds who comes close, then each pair is scored on its own: so a score is the same, to
    the bit, whatever else is compared at the same time.
    """
    if not learned.classes or not target.classes:
        return []
    near = np.argwhere(learned.rows @ target.rows.T >= threshold - SLACK)
    places = {(int(i), int(j)) for i, j in near}
    by_key: dict[str, list[int]] = {}
    for j, key in enumerate(target.keys):
        by_key.setdefault(key, []).append(j)
    places |= {(i, j) for i, key in enumerate(learned.keys) for j in by_key.get(key, ())}
    scored = [(i, j, _score(learned, i, target, j)) for i, j in sorted(places)]
    return [pair for pair in scored if pair[2] >= threshold]


def _score(learned: Encoded, i: int, target: Encoded, j: int) -> float:
    if learned.keys[i] == target.keys[j]:
        return 1.0
    if learned.marks[i] != target.marks[j]:
        return 0.0
    cosine = float(np.dot(learned.rows[i].astype(np.float64), target.rows[j].astype(np.float64)))
    return min(max(cosine, 0.0), 1.0)


def checked(encoder: Encoder, threshold: float | None) -> float:
    threshold = encoder.threshold if threshold is None else threshold
    if not 0 < threshold <= 1:
        raise DataError(f"the threshold is {threshold:g}; expected a similarity above 0 and at most 1")
    return threshold


def surest_first(match: Match) -> tuple[float, str, str, str, str]:
    return -match.score, match.learned_task, match.learned, match.target_task, match.target
