"""All matches between the classes of many tasks, and how they follow a bank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from skillmesh.learning.class_names.encoders import Encoder, Rows
from skillmesh.learning.class_names.pairs import Encoded, Match, checked, pairs, surest_first, telling
from skillmesh.learning.class_names.plain import joined, plain

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from skillmesh.module import Module

AT_ONCE = 1024
"""So many forms are compared with as many others in one product."""
Named = tuple[str, str]
"""A class: its task and its name."""


class ClassMatches:
    """All matches between classes of different tasks, kept up to date as tasks come and go.

    What is compared and kept are plain forms, each once: a thousand teachers of one class cost what one does.
    Forms that come are compared with those that are there, a form that nobody has any more goes with its pairs.
    What is held depends on the tasks alone, not on the order of their coming.
    """

    def __init__(self, encoder: Encoder, threshold: float | None = None) -> None:
        self.encoder = encoder
        self.threshold = checked(encoder, threshold)
        self._tasks: dict[str, tuple[str, ...]] = {}
        self._named: dict[str, frozenset[Named]] = {}
        self._rows: dict[str, Rows] = {}
        self._similar: dict[str, dict[str, float]] = {}

    @property
    def tasks(self) -> list[str]:
        return sorted(self._tasks)

    @property
    def forms(self) -> int:
        """How many different plain forms the classes have."""
        return len(self._named)

    def add(self, task: str, classes: Sequence[str]) -> None:
        """Compare a task's classes with those of all tasks here; a task of this name is replaced."""
        self.add_all({task: classes})

    def add_all(self, tasks: Mapping[str, Sequence[str]]) -> None:
        """Compare the classes of several tasks with those of all tasks here and with each other's."""
        self.remove_all(tasks)
        came: dict[str, set[Named]] = {}
        for task, classes in tasks.items():
            self._tasks[task] = tuple(classes)
            for name in classes:
                came.setdefault(plain(name), set()).add((task, name))
        new = [form for form in came if form not in self._named]
        here = list(self._named)
        self._rows |= zip(new, self.encoder.encode(new), strict=True) if new else ()
        self._named |= {form: self._named.get(form, frozenset()) | named for form, named in came.items()}
        self._compare(new, here)

    def _compare(self, new: Sequence[str], here: Sequence[str]) -> None:
        """Find all similar forms of which one is new."""
        blocks = [self._encoded(new[start : start + AT_ONCE]) for start in range(0, len(new), AT_ONCE)]
        for start in range(0, len(here), AT_ONCE):
            others = self._encoded(here[start : start + AT_ONCE])
            for block in blocks:
                self._keep(block, others)
        for place, block in enumerate(blocks):
            for other in blocks[place:]:
                self._keep(block, other)

    def _encoded(self, forms: Sequence[str]) -> Encoded:
        rows = np.stack([self._rows[form] for form in forms])
        return Encoded(tuple(forms), tuple(map(joined, forms)), tuple(map(telling, forms)), rows)

    def _keep(self, block: Encoded, others: Encoded) -> None:
        for i, j, score in pairs(block, others, self.threshold):
            one, other = block.classes[i], others.classes[j]
            if one != other:
                self._similar.setdefault(one, {})[other] = score
                self._similar.setdefault(other, {})[one] = score

    def remove(self, task: str) -> None:
        """Forget a task and its pairs; one that is not here is no fault."""
        self.remove_all((task,))

    def remove_all(self, tasks: Collection[str]) -> None:
        for task in self._tasks.keys() & set(tasks):
            for name in self._tasks.pop(task):
                form = plain(name)
                self._named[form] -= {(task, name)}
                if not self._named[form]:
                    self._forget(form)

    def _forget(self, form: str) -> None:
        del self._named[form], self._rows[form]
        for other in self._similar.pop(form, ()):
            del self._similar[other][form]

    def follow(self, modules: Iterable[Module]) -> None:
        """Take in what a bank holds now: modules that came are added by their id, those that went are removed."""
        held = {module.id: module.card.classes for module in modules}
        self.remove_all(self._tasks.keys() - held.keys())
        self.add_all({new: held[new] for new in sorted(held.keys() - self._tasks.keys())})

    def copy(self) -> ClassMatches:
        """The same matches in an object of its own; names stay encoded once."""
        made = ClassMatches(self.encoder, self.threshold)
        made._tasks, made._named, made._rows = dict(self._tasks), dict(self._named), dict(self._rows)
        made._similar = {form: dict(others) for form, others in self._similar.items()}
        return made

    def __iter__(self) -> Iterator[Match]:
        """All matches, the surest first."""
        found = []
        for form, named in self._named.items():
            similar = [(form, 1.0), *((other, s) for other, s in self._similar.get(form, {}).items())]
            for other, score in similar:
                found += [
                    Match(name, target, score, task, in_task)
                    for task, name in named
                    for in_task, target in self._named[other]
                    if task < in_task
                ]
        return iter(sorted(found, key=surest_first))

    def of(self, task: str, name: str) -> list[tuple[str, str, float]]:
        """Return the classes of other tasks that match one: task, class and score, the surest first."""
        form = plain(name)
        if (task, name) not in self._named.get(form, ()):
            return []
        similar = {form: 1.0} | self._similar.get(form, {})
        found = [
            (in_task, target, score)
            for other, score in similar.items()
            for in_task, target in self._named[other]
            if in_task != task
        ]
        return sorted(found, key=lambda match: (-match[2], match[0], match[1]))

    def matrix(self) -> tuple[list[Named], csr_array]:
        """Return all classes, as task and name, and the sparse symmetric matrix of their similarities."""
        from scipy.sparse import csr_array

        classes = [(task, name) for task in self.tasks for name in self._tasks[task]]
        place = {named: index for index, named in enumerate(classes)}
        cells = [(place[m.learned_task, m.learned], place[m.target_task, m.target], m.score) for m in self]
        cells += [(j, i, score) for i, j, score in cells]
        i, j, scores = (np.array(column) for column in zip(*cells, strict=True)) if cells else ([], [], [])
        return classes, csr_array((scores, (i, j)), shape=(len(classes), len(classes)))


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
