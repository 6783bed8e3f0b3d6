"""All matches between the classes of many tasks, and how they follow a bank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from skillmesh.synergy.encoders import Encoder
from skillmesh.synergy.matching import Encoded, Match, checked, pairs, surest_first

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from skillmesh.module import Module

AT_ONCE = 1024
"""About so many classes are compared with as many others in one product."""
Places = list[tuple[int, int, float]]


class ClassMatches:
    """All matches between classes of different tasks, kept up to date as tasks come and go.

    Only pairs at or above the threshold are kept. Tasks that come are compared with those that are there, a task
    that goes takes its pairs with it. What is held depends on the tasks alone, not on the order of their coming.
    """

    def __init__(self, encoder: Encoder, threshold: float | None = None) -> None:
        self.encoder = encoder
        self.threshold = checked(encoder, threshold)
        self._tasks: dict[str, Encoded] = {}
        self._pairs: dict[tuple[str, str], Places] = {}

    @property
    def tasks(self) -> list[str]:
        return sorted(self._tasks)

    def add(self, task: str, classes: Sequence[str]) -> None:
        """Compare a task's classes with those of all tasks here; a task of this name is replaced."""
        self.add_all({task: classes})

    def add_all(self, tasks: Mapping[str, Sequence[str]]) -> None:
        """Compare the classes of several tasks with those of all tasks here and with each other's."""
        self.remove_all(tasks)
        new = {task: Encoded.of(classes, self.encoder) for task, classes in tasks.items()}
        came, here = _blocks(new), _blocks(self._tasks)
        for block in came:
            for other in here:
                self._compare(block, other)
            self._compare(block, block)
        for block, other in combinations(came, 2):
            self._compare(block, other)
        self._tasks |= new

    def _compare(self, block: dict[str, Encoded], other: dict[str, Encoded]) -> None:
        """Keep the pairs between two groups of tasks; of a group with itself every two tasks meet once."""
        sides = [(_owners(group), Encoded.joined(list(group.values()))) for group in (block, other)]
        (owners, left), (others, right) = sides
        found: dict[tuple[str, str], Places] = {}
        for i, j, score in pairs(left, right, self.threshold):
            (a, place), (b, place_b) = owners[i], others[j]
            if a < b:
                found.setdefault((a, b), []).append((place, place_b, score))
            elif a > b and block is not other:
                found.setdefault((b, a), []).append((place_b, place, score))
        self._pairs |= {tasks: sorted(places) for tasks, places in found.items()}

    def remove(self, task: str) -> None:
        """Forget a task and its pairs; one that is not here is no fault."""
        self.remove_all((task,))

    def remove_all(self, tasks: Collection[str]) -> None:
        if gone := self._tasks.keys() & set(tasks):
            self._tasks = {task: encoded for task, encoded in self._tasks.items() if task not in gone}
            self._pairs = {tasks: places for tasks, places in self._pairs.items() if gone.isdisjoint(tasks)}

    def follow(self, modules: Iterable[Module]) -> None:
        """Take in what a bank holds now: modules that came are added by their id, those that went are removed."""
        held = {module.id: module.card.classes for module in modules}
        self.remove_all(self._tasks.keys() - held.keys())
        self.add_all({new: held[new] for new in sorted(held.keys() - self._tasks.keys())})

    def copy(self) -> ClassMatches:
        """The same matches in an object of its own; names stay encoded once."""
        made = ClassMatches(self.encoder, self.threshold)
        made._tasks, made._pairs = dict(self._tasks), dict(self._pairs)
        return made

    def __iter__(self) -> Iterator[Match]:
        """All matches, the surest first."""
        found = [
            Match(self._tasks[a].classes[i], self._tasks[b].classes[j], score, a, b)
            for (a, b), places in self._pairs.items()
            for i, j, score in places
        ]
        return iter(sorted(found, key=surest_first))

    def of(self, task: str, name: str) -> list[tuple[str, str, float]]:
        """Return the classes of other tasks that match one: task, class and score, the surest first."""
        found = []
        for (a, b), places in self._pairs.items():
            if task not in (a, b):
                continue
            for i, j, score in places:
                ends = (a, self._tasks[a].classes[i]), (b, self._tasks[b].classes[j])
                if (task, name) in ends:
                    found.append((*ends[ends[0] == (task, name)], score))
        return sorted(found, key=lambda match: (-match[2], match[0], match[1]))

    def matrix(self) -> tuple[list[tuple[str, str]], csr_array]:
        """Return all classes, as task and name, and the sparse symmetric matrix of their similarities."""
        from scipy.sparse import csr_array

        classes = [(task, name) for task in self.tasks for name in self._tasks[task].classes]
        start: Mapping[str, int] = self._starts()
        cells = [
            (start[a] + i, start[b] + j, score) for (a, b), places in self._pairs.items() for i, j, score in places
        ]
        cells += [(j, i, score) for i, j, score in cells]
        i, j, scores = (np.array(column) for column in zip(*cells, strict=True)) if cells else ([], [], [])
        return classes, csr_array((scores, (i, j)), shape=(len(classes), len(classes)))

    def _starts(self) -> dict[str, int]:
        sizes = [len(self._tasks[task].classes) for task in self.tasks]
        return dict(zip(self.tasks, np.cumsum([0, *sizes]).tolist(), strict=False))


class BankMatches:
    """The matches of an agent's bank: made when they are first asked for, and in step with it whenever they are.

    What was handed out is never changed: a thread that reads goes on with the matches that it was given.
    """

    def __init__(self, modules: Callable[[], Iterable[Module]], encoder: Callable[[], Encoder]) -> None:
        self._modules, self._encoder = modules, encoder
        self._lock = Lock()
        self._current: ClassMatches | None = None

    def now(self) -> ClassMatches:
        with self._lock:
            modules = list(self._modules())
            current = self._current or ClassMatches(self._encoder())
            if current.tasks != sorted(module.id for module in modules):
                current = current.copy()
                current.follow(modules)
            self._current = current
            return current


def _blocks(tasks: Mapping[str, Encoded]) -> list[dict[str, Encoded]]:
    """Tasks in groups of about as many classes as are compared at once; those without a class match nothing."""
    blocks: list[dict[str, Encoded]] = []
    room = 0
    for task, encoded in tasks.items():
        if not encoded.classes:
            continue
        if room < len(encoded.classes):
            blocks.append({})
            room = AT_ONCE
        blocks[-1][task] = encoded
        room -= len(encoded.classes)
    return blocks


def _owners(block: Mapping[str, Encoded]) -> list[tuple[str, int]]:
    return [(task, place) for task, encoded in block.items() for place in range(len(encoded.classes))]
