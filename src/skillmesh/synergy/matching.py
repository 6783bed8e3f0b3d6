"""Which classes of different tasks are one thing: by name over a whole bank, and by sight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from skillmesh.errors import DataError
from skillmesh.learning.class_names.encoders import Encoder, Rows
from skillmesh.learning.class_names.pairs import (
    Encoded,
    Match,
    checked,
    joined,
    pairs,
    plain,
    surest_first,
    telling,
)
from skillmesh.learning.head import Labels, softmax

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from skillmesh.answering.answering import Mapped
    from skillmesh.data.folder import TaskImages
    from skillmesh.data.inputs import AnyImage
    from skillmesh.module import Module
    from skillmesh.numerics.arrays import Floats
    from skillmesh.synergy.holder import Holder

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


# Which known class is a new one, by looking at a few of its images.
#
# They go through the mapper and the winning task's head; if most land on one known class, that is the match. Names
# and sight also go together: a name that matches stays a match unless the images speak against it, in the eyes of
# the very task that has the name.

IMAGES = 10
"""So many of a class's images are looked at."""
FEWEST = 3
"""With fewer images of a class nothing is said of it by sight: one or two land somewhere by chance."""
MOST = 0.5
"""More than this share of the images must land on one known class."""


@dataclass(frozen=True)
class Sighting:
    """A known class and the new class that it is like."""

    learned: str
    learned_task: str
    teacher: str
    target: str
    target_task: str
    images: int
    share: float
    """Of the images, how many the bank took for the known class; those that it does not know count for none."""
    agreement: float
    """The mean probability that the known task's head gives the known class, no mapper asked."""
    even: float
    """What an even share of that would be: one by the known task's classes."""
    name: float | None = None
    """The similarity of the names, where they were compared."""
    module: str = ""
    """The known task's id: names of tasks and teachers may be anybody's."""


@dataclass(frozen=True)
class BankView:
    """A few images of new classes, as an agent's bank sees them."""

    agent: Holder
    task: str
    classes: tuple[str, ...]
    x: Floats
    images: Sequence[AnyImage]
    labels: Labels
    modules: list[Module]
    mapped: Mapped

    @classmethod
    def of(cls, agent: Holder, folder: TaskImages, each: int = IMAGES) -> BankView:
        """Look at some training images of every class of a task."""
        split = folder.splits["train"]
        rows = _some(split.labels, each, agent.config.seed)
        described = agent.backbone.describe([split.files[row] for row in rows])
        x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
        kept = rows[described.readable]
        modules, mapper = agent.mapper()
        files = [split.files[row] for row in kept]
        return cls(agent, folder.name, folder.classes, x, files, split.labels[kept], modules, mapper.map(x))

    def looked_at(self, target: int) -> int:
        return int(np.sum(self.labels == target))

    @cached_property
    def said(self) -> Labels:
        """The class that the winning task's head names, image by image."""
        said = np.empty(len(self.x), dtype=np.int64)
        for index in np.unique(self.mapped.task):
            rows = np.flatnonzero(self.mapped.task == index)
            said[rows] = self._given(self.modules[index], rows).argmax(axis=1)
        return said

    def landed(self, target: int) -> Counter[tuple[int, int]]:
        """How many images of a new class were taken for which known one, as places of module and class."""
        rows = np.flatnonzero((self.labels == target) & ~self.mapped.unknown)
        return Counter((int(self.mapped.task[row]), int(self.said[row])) for row in rows)

    def agreement(self, module: Module, target: int) -> Floats:
        """The mean probability of each of a module's classes over the images of a new class."""
        mean: Floats = self._given(module, np.flatnonzero(self.labels == target)).mean(axis=0)
        return mean

    def _given(self, module: Module, rows: Labels) -> Floats:
        seen = self.agent.seen_by(module, self.x[rows], [self.images[int(row)] for row in rows])
        return softmax(self.agent.head(module).logits(seen) / module.card.temperature)

    def sighting(self, place: int, known: int, target: int, name: float | None = None) -> Sighting:
        module, count = self.modules[place], self.looked_at(target)
        classes = module.card.classes
        share = self.landed(target)[place, known] / count
        agreement = float(self.agreement(module, target)[known])
        teacher = self.agent.teachers.of(module)
        ends = (classes[known], module.card.task, teacher, self.classes[target], self.task)
        return Sighting(*ends, count, share, agreement, 1 / len(classes), name, module.id)


def by_sight(view: BankView, least: float = MOST, fewest: int = FEWEST) -> list[Sighting]:
    """Return the known class on which most images of a new one land, for all new classes that have one."""
    found = []
    for target in range(len(view.classes)):
        landed, count = view.landed(target), view.looked_at(target)
        if count < fewest or not landed:
            continue
        (best, images), *_ = landed.most_common(1)
        if images / count > least:
            found.append(view.sighting(*best, target))
    return sorted(found, key=lambda s: (-s.share, s.target, s.learned_task, s.learned))


def by_both(
    view: BankView, encoder: Encoder, threshold: float | None = None, fewest: int = FEWEST
) -> list[Sighting]:
    """Return the matches by name that the images do not speak against, the surest first.

    They speak against a match where the known task's own head gives the class less than an even share: a signed
    digit is no written one, whatever it is called. Too few images say nothing, and the name decides.
    """
    new, least = Encoded.of(view.classes, encoder), checked(encoder, threshold)
    found = []
    for place, module in enumerate(view.modules):
        for known, target, score in pairs(Encoded.of(module.card.classes, encoder), new, least):
            if not view.looked_at(target):
                continue
            sighting = view.sighting(place, known, target, score)
            if sighting.images < fewest or sighting.agreement >= sighting.even:
                found.append(sighting)
    return sorted(found, key=lambda s: (-(s.name or 0), s.learned_task, s.learned, s.target))


def _some(labels: Labels, each: int, seed: int) -> Labels:
    """Rows of so many images of each class, at random."""
    if each < 1:
        raise DataError(f"{each} images of each class are to be looked at; expected one or more")
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(labels == c))[:each] for c in np.unique(labels)]
    return np.sort(np.concatenate(rows)) if rows else np.zeros(0, dtype=np.int64)
