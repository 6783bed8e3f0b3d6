"""Matching classes of different tasks: by name over a whole bank, and by sight, from a few images."""

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
    distinguishing_words,
    joined,
    pairs,
    plain,
    surest_first,
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
"""Number of forms in a block; one matrix product compares two blocks."""
Named = tuple[str, str]
"""A class: its task and its name."""


class ClassMatches:
    """All matches between classes of different tasks, kept up to date as tasks come and go.

    Plain forms of names are compared and kept, each once: a thousand teachers of one class cost as much as one.
    New forms are compared with the existing ones. A form that no task uses any more is removed with its pairs.
    The matches depend on the tasks alone, not on the order in which they were added.
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
        """Number of different plain forms of the class names."""
        return len(self._named)

    def add(self, task: str, classes: Sequence[str]) -> None:
        """Add a task and compare its classes with those of all other tasks; a task of this name is replaced."""
        self.add_all({task: classes})

    def add_all(self, tasks: Mapping[str, Sequence[str]]) -> None:
        """Add several tasks and compare their classes with those of all tasks and with each other's."""
        self.remove_all(tasks)
        added: dict[str, set[Named]] = {}
        for task, classes in tasks.items():
            self._tasks[task] = tuple(classes)
            for name in classes:
                added.setdefault(plain(name), set()).add((task, name))
        new = [form for form in added if form not in self._named]
        existing = list(self._named)
        self._rows |= zip(new, self.encoder.encode(new), strict=True) if new else ()
        self._named |= {form: self._named.get(form, frozenset()) | named for form, named in added.items()}
        self._compare(new, existing)

    def _compare(self, new: Sequence[str], existing: Sequence[str]) -> None:
        """Store all pairs of similar forms in which at least one form is new."""
        blocks = [self._encoded(new[start : start + AT_ONCE]) for start in range(0, len(new), AT_ONCE)]
        for start in range(0, len(existing), AT_ONCE):
            others = self._encoded(existing[start : start + AT_ONCE])
            for block in blocks:
                self._keep(block, others)
        for place, block in enumerate(blocks):
            for other in blocks[place:]:
                self._keep(block, other)

    def _encoded(self, forms: Sequence[str]) -> Encoded:
        rows = np.stack([self._rows[form] for form in forms])
        return Encoded(tuple(forms), tuple(map(joined, forms)), tuple(map(distinguishing_words, forms)), rows)

    def _keep(self, block: Encoded, others: Encoded) -> None:
        for i, j, score in pairs(block, others, self.threshold):
            one, other = block.classes[i], others.classes[j]
            if one != other:
                self._similar.setdefault(one, {})[other] = score
                self._similar.setdefault(other, {})[one] = score

    def remove(self, task: str) -> None:
        """Remove a task and its pairs; do nothing if there is no such task."""
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
        """Update to a bank's current modules: add new ones by their id, and remove those that are gone."""
        held = {module.id: module.card.classes for module in modules}
        self.remove_all(self._tasks.keys() - held.keys())
        self.add_all({new: held[new] for new in sorted(held.keys() - self._tasks.keys())})

    def copy(self) -> ClassMatches:
        """Return an independent copy of the matches; names are not encoded again."""
        copy = ClassMatches(self.encoder, self.threshold)
        copy._tasks, copy._named, copy._rows = dict(self._tasks), dict(self._named), dict(self._rows)
        copy._similar = {form: dict(others) for form, others in self._similar.items()}
        return copy

    def __iter__(self) -> Iterator[Match]:
        """Iterate over all matches, the surest first."""
        matches = []
        for form, named in self._named.items():
            similar = [(form, 1.0), *((other, s) for other, s in self._similar.get(form, {}).items())]
            for other, score in similar:
                matches += [
                    Match(name, target, score, task, in_task)
                    for task, name in named
                    for in_task, target in self._named[other]
                    if task < in_task
                ]
        return iter(sorted(matches, key=surest_first))

    def of(self, task: str, name: str) -> list[tuple[str, str, float]]:
        """Return the classes of other tasks that match a class: task, class and score, the surest first."""
        form = plain(name)
        if (task, name) not in self._named.get(form, ()):
            return []
        similar = {form: 1.0} | self._similar.get(form, {})
        matches = [
            (in_task, target, score)
            for other, score in similar.items()
            for in_task, target in self._named[other]
            if in_task != task
        ]
        return sorted(matches, key=lambda match: (-match[2], match[0], match[1]))

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
    """The matches of an agent's bank, computed at the first call of `now` and updated at each later one.

    A returned object is never changed afterwards, so a thread can keep reading the matches that it was given.
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


# Matching a new class to a known one by sight, from a few of its images.
#
# The images go through the mapper and the winning task's head. If most land on one known class, that is the match.
# Names and sight can also be combined: a match by name stays a match unless the head of the task that has the name
# contradicts it on the images.

IMAGES = 10
"""Number of images of each new class to check."""
FEWEST = 3
"""Fewest images for a match by sight: one or two land on some class by chance."""
MOST = 0.5
"""Share of the images, 0 to 1; more than this must land on one known class."""


@dataclass(frozen=True)
class Sighting:
    """A match of a known class with a new class, with the evidence from images."""

    learned: str
    learned_task: str
    teacher: str
    target: str
    target_task: str
    images: int
    share: float
    """Share of the images that the bank took for the known class, 0 to 1; unknown images count for no class."""
    agreement: float
    """Mean probability that the known task's head gives the known class, without the mapper."""
    even: float
    """Probability of one class if all were equal: 1 divided by the known task's number of classes."""
    name: float | None = None
    """Similarity of the names; None if they were not compared."""
    module: str = ""
    """Id of the known task's module: names of tasks and teachers are not unique."""


@dataclass(frozen=True)
class BankView:
    """A few images of new classes, and how an agent's bank maps them."""

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
        """Describe and map up to `each` training images of every class of a task."""
        split = folder.splits["train"]
        rows = _sample(split.labels, each, agent.config.seed)
        described = agent.backbone.describe([split.files[row] for row in rows])
        x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
        kept = rows[described.readable]
        modules, mapper = agent.mapper()
        files = [split.files[row] for row in kept]
        return cls(agent, folder.name, folder.classes, x, files, split.labels[kept], modules, mapper.map(x))

    def image_count(self, target: int) -> int:
        return int(np.sum(self.labels == target))

    @cached_property
    def predicted(self) -> Labels:
        """Class index that the winning task's head gives each image."""
        predicted = np.empty(len(self.x), dtype=np.int64)
        for index in np.unique(self.mapped.task):
            rows = np.flatnonzero(self.mapped.task == index)
            predicted[rows] = self._probabilities(self.modules[index], rows).argmax(axis=1)
        return predicted

    def landed(self, target: int) -> Counter[tuple[int, int]]:
        """Count the images of a new class by the known class they land on, as indices of module and class."""
        rows = np.flatnonzero((self.labels == target) & ~self.mapped.unanswered)
        return Counter((int(self.mapped.task[row]), int(self.predicted[row])) for row in rows)

    def agreement(self, module: Module, target: int) -> Floats:
        """Return the mean probability of each of a module's classes over the images of a new class."""
        mean: Floats = self._probabilities(module, np.flatnonzero(self.labels == target)).mean(axis=0)
        return mean

    def _probabilities(self, module: Module, rows: Labels) -> Floats:
        x = self.agent.seen_by(module, self.x[rows], [self.images[int(row)] for row in rows])
        return softmax(self.agent.head(module).logits(x) / module.card.temperature)

    def sighting(self, place: int, known: int, target: int, name: float | None = None) -> Sighting:
        module, count = self.modules[place], self.image_count(target)
        classes = module.card.classes
        share = self.landed(target)[place, known] / count
        agreement = float(self.agreement(module, target)[known])
        teacher = self.agent.teachers.of(module)
        names = (classes[known], module.card.task, teacher, self.classes[target], self.task)
        return Sighting(*names, count, share, agreement, 1 / len(classes), name, module.id)


def by_sight(view: BankView, least: float = MOST, fewest: int = FEWEST) -> list[Sighting]:
    """Return the known class on which most images of a new one land, for all new classes that have one."""
    sightings = []
    for target in range(len(view.classes)):
        landed, count = view.landed(target), view.image_count(target)
        if count < fewest or not landed:
            continue
        (best, images), *_ = landed.most_common(1)
        if images / count > least:
            sightings.append(view.sighting(*best, target))
    return sorted(sightings, key=lambda s: (-s.share, s.target, s.learned_task, s.learned))


def by_both(
    view: BankView, encoder: Encoder, threshold: float | None = None, fewest: int = FEWEST
) -> list[Sighting]:
    """Return the matches by name that the images do not contradict, the surest first.

    They contradict a match if the known task's own head gives the class less than an even share: a signed digit is
    not a written one, whatever its name. With fewer than `fewest` images the name alone decides.
    """
    new, least = Encoded.of(view.classes, encoder), checked(encoder, threshold)
    sightings = []
    for place, module in enumerate(view.modules):
        for known, target, score in pairs(Encoded.of(module.card.classes, encoder), new, least):
            if not view.image_count(target):
                continue
            sighting = view.sighting(place, known, target, score)
            if sighting.images < fewest or sighting.agreement >= sighting.even:
                sightings.append(sighting)
    return sorted(sightings, key=lambda s: (-(s.name or 0), s.learned_task, s.learned, s.target))


def _sample(labels: Labels, each: int, seed: int) -> Labels:
    """Return the sorted rows of up to `each` random images of each class."""
    if each < 1:
        raise DataError(f"found {each} images per class to check, expected one or more")
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(labels == c))[:each] for c in np.unique(labels)]
    return np.sort(np.concatenate(rows)) if rows else np.zeros(0, dtype=np.int64)
