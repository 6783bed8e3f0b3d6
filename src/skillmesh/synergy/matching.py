"""Which classes of different tasks are one thing under two names, by the similarity of the names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh.errors import DataError
from skillmesh.synergy.encoders import Encoder, Rows
from skillmesh.synergy.names import joined, plain

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from skillmesh.module import Module

Scores = NDArray[np.float64]
NEGATIONS = frozenset({"no", "non", "not", "without", "never"})
SIDES = frozenset({"left", "right"})


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
    least = _checked(encoder, threshold)
    ready = [{task: Encoded.of(names, encoder) for task, names in side.items()} for side in (learned, target)]
    found = [
        Match(a.classes[i], b.classes[j], score, first, second)
        for first, a in ready[0].items()
        for second, b in ready[1].items()
        for i, j, score in _pairs(a, b, least)
    ]
    return sorted(found, key=_surest_first)


def _pairs(learned: Encoded, target: Encoded, threshold: float) -> list[tuple[int, int, float]]:
    scores = similarity(learned, target)
    return [(int(i), int(j), float(scores[i, j])) for i, j in np.argwhere(scores >= threshold)]


def _checked(encoder: Encoder, threshold: float | None) -> float:
    threshold = encoder.threshold if threshold is None else threshold
    if not 0 < threshold <= 1:
        raise DataError(f"the threshold is {threshold:g}; expected a similarity above 0 and at most 1")
    return threshold


def _surest_first(match: Match) -> tuple[float, str, str, str, str]:
    return -match.score, match.learned_task, match.learned, match.target_task, match.target


class ClassMatches:
    """All matches between classes of different tasks, kept up to date as tasks come and go.

    Only pairs at or above the threshold are kept. A task that comes is compared with those that are there, a task
    that goes takes its pairs with it. What is held depends on the tasks alone, not on the order in which they
    came: every two tasks are compared on their own, in the order of their names.
    """

    def __init__(self, encoder: Encoder, threshold: float | None = None) -> None:
        self.encoder = encoder
        self.threshold = _checked(encoder, threshold)
        self._tasks: dict[str, Encoded] = {}
        self._pairs: dict[tuple[str, str], list[tuple[int, int, float]]] = {}

    @property
    def tasks(self) -> list[str]:
        return sorted(self._tasks)

    def add(self, task: str, classes: Sequence[str]) -> None:
        """Compare a task's classes with those of all tasks here; a task of this name is replaced."""
        self.remove(task)
        new = Encoded.of(classes, self.encoder)
        for other, old in self._tasks.items():
            first, second = (task, other) if task < other else (other, task)
            pairs = _pairs(*((new, old) if first == task else (old, new)), self.threshold)
            if pairs:
                self._pairs[first, second] = pairs
        self._tasks[task] = new

    def remove(self, task: str) -> None:
        """Forget a task and its pairs; one that is not here is no fault."""
        if self._tasks.pop(task, None) is not None:
            self._pairs = {tasks: pairs for tasks, pairs in self._pairs.items() if task not in tasks}

    def follow(self, modules: Iterable[Module]) -> None:
        """Take in what a bank holds now: modules that came are added by their id, those that went are removed."""
        held = {module.id: module.card.classes for module in modules}
        for gone in set(self._tasks) - set(held):
            self.remove(gone)
        for new in sorted(set(held) - set(self._tasks)):
            self.add(new, held[new])

    def __iter__(self) -> Iterator[Match]:
        """All matches, the surest first."""
        found = [
            Match(self._tasks[a].classes[i], self._tasks[b].classes[j], score, a, b)
            for (a, b), pairs in self._pairs.items()
            for i, j, score in pairs
        ]
        return iter(sorted(found, key=_surest_first))

    def of(self, task: str, name: str) -> list[tuple[str, str, float]]:
        """Return the classes of other tasks that match one: task, class and score, the surest first."""
        found = []
        for m in self:
            if (m.learned_task, m.learned) == (task, name):
                found.append((m.target_task, m.target, m.score))
            elif (m.target_task, m.target) == (task, name):
                found.append((m.learned_task, m.learned, m.score))
        return found

    def matrix(self) -> tuple[list[tuple[str, str]], csr_array]:
        """Return all classes, as task and name, and the sparse symmetric matrix of their similarities."""
        from scipy.sparse import csr_array

        classes = [(task, name) for task in self.tasks for name in self._tasks[task].classes]
        start: Mapping[str, int] = self._starts()
        cells = [
            (start[a] + i, start[b] + j, score) for (a, b), pairs in self._pairs.items() for i, j, score in pairs
        ]
        cells += [(j, i, score) for i, j, score in cells]
        i, j, scores = (np.array(column) for column in zip(*cells, strict=True)) if cells else ([], [], [])
        return classes, csr_array((scores, (i, j)), shape=(len(classes), len(classes)))

    def _starts(self) -> dict[str, int]:
        sizes = [len(self._tasks[task].classes) for task in self.tasks]
        return dict(zip(self.tasks, np.cumsum([0, *sizes]).tolist(), strict=False))
