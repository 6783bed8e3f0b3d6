"""Pairs of old and new tasks for the measurements of warm start.

There are four situations. A task split in two: one half is known, the other, with other images, is learned. Two
tasks with classes of the same name: one is known, the other is learned, and the name may mislead (a written digit
is not a digit in sign language). A bank: all other tasks are known, and several have classes of the new one. And
the paper's EXP-1 and EXP-2: five classes of one task, each similar to a class of another old task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from synergy_tasks import Task

from skillmesh.learning.class_names.encoders import Encoder
from skillmesh.learning.class_names.pairs import Encoded, similarity
from skillmesh.learning.head import Head, Labels, fit_head
from skillmesh.learning.rows import (
    EpochSettings,
    KnownClass,
    Norm,
    RowSource,
    one_to_one,
    started_rows,
    train_rows,
)
from skillmesh.numerics.arrays import Floats

HALF = 10
"""Training images of every class that each half must have for a task to be split."""
MOST = 100
"""Maximum of training images per class of a new task, of both halves if split: more would only take longer."""
EXP_CLASSES = 5
EXP_SIMILAR = 0.7
"""Mean similarity of its five pairs from which a task is used for EXP."""

Images = tuple[Floats, Labels]


@dataclass(frozen=True)
class Teacher:
    """A task that was learned before."""

    name: str
    classes: tuple[str, ...]
    train: Images
    val: Images
    matches: dict[int, tuple[int, float]]
    """New class → old class and similarity."""
    seed: int = 0
    """Halves differ by seed, whole tasks do not."""


@dataclass(frozen=True)
class Pair:
    """Old tasks that are known, and a new task to learn."""

    sort: str
    old: str
    new: str
    teachers: tuple[Teacher, ...]
    train: Images
    val: Images
    test: Images
    classes: int

    @property
    def matched(self) -> int:
        return len({index for teacher in self.teachers for index in teacher.matches})


class Knowledge:
    """Old rows, learned once: ours as stored in a module, and the paper's for each norm."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._kept: dict[tuple[Any, ...], Floats] = {}

    def rows(self, teacher: Teacher, norm: Norm | None) -> Floats:
        key = teacher.name, teacher.seed, norm
        if key not in self._kept:
            self._kept[key] = self._learned(teacher, norm)
        return self._kept[key]

    def _learned(self, teacher: Teacher, norm: Norm | None) -> Floats:
        (x, labels), classes = teacher.train, len(teacher.classes)
        if norm is None:
            return Head.read(fit_head(x, labels, *teacher.val, classes).head.tensors()).weight
        start = started_rows(classes, x.shape[1], {}, 0)
        return train_rows(x, labels, start, EpochSettings(self._epochs, norm=norm))

    def sources(self, pair: Pair) -> list[RowSource]:
        """Return the sources as `skillmesh learn` finds them in a bank."""
        found = []
        for teacher in pair.teachers:
            rows = self.rows(teacher, None)
            known = {
                new: KnownClass(teacher.classes[old], s, rows[old]) for new, (old, s) in teacher.matches.items()
            }
            found.append(RowSource(teacher.name, "teacher", teacher.name, known))
        return found

    def surest(self, pair: Pair, norm: Norm) -> dict[int, Floats]:
        """Return the row of the most similar name for each class, as in the paper."""
        best: dict[int, tuple[float, Teacher, int]] = {}
        for teacher in pair.teachers:
            for new, (old, similar) in teacher.matches.items():
                if new not in best or similar > best[new][0]:
                    best[new] = similar, teacher, old
        return {new: self.rows(teacher, norm)[old] for new, (_, teacher, old) in best.items()}


class Pairs:
    """All pairs of the given tasks; names are encoded once."""

    def __init__(self, tasks: Sequence[Task], encoder: Encoder) -> None:
        self.tasks = tasks
        names = {task.name: Encoded.of(task.classes, encoder) for task in tasks}
        self._scores = {
            (old.name, new.name): similarity(names[old.name], names[new.name])
            for old in tasks
            for new in tasks
            if old is not new
        }
        self._matches = {
            key: matches
            for key in self._scores
            if (matches := one_to_one(names[key[0]], names[key[1]], encoder.threshold))
        }

    def cut(self, seed: int) -> Iterator[Pair]:
        for task in self.tasks:
            if np.bincount(task.labels["train"]).min() >= 2 * HALF:
                yield _cut(task, seed)

    def named(self, seed: int) -> Iterator[Pair]:
        for old in self.tasks:
            for new in self.tasks:
                if (old.name, new.name) in self._matches:
                    yield self._learned("same names", old.name, [old], new, seed)

    def bank(self, seed: int) -> Iterator[Pair]:
        for new in self.tasks:
            known = [old for old in self.tasks if (old.name, new.name) in self._matches]
            if len(known) > 1:  # else it is the pair above
                yield self._learned("whole bank", "the other tasks", known, new, seed)

    def _learned(self, sort: str, name: str, olds: Sequence[Task], new: Task, seed: int) -> Pair:
        teachers = tuple(_teacher(old, self._matches[old.name, new.name]) for old in olds)
        train, val = dealt_again(new, seed)
        return Pair(sort, name, new.name, teachers, train, val, new.split("test"), len(new.classes))

    def exp(self, seed: int) -> Iterator[Pair]:
        """Yield, for every task, the best five classes that are each similar to a class of another task."""
        for new in self.tasks:
            chosen = self._five(new)
            if len(chosen) == EXP_CLASSES and np.mean([s for *_, s in chosen]) >= EXP_SIMILAR:
                yield _five_classes(new, chosen, seed)

    def _five(self, new: Task) -> list[tuple[int, Task, int, float]]:
        """Return (new class, old task, old class, similarity) for five classes; each old task is used once."""
        from scipy.optimize import linear_sum_assignment

        olds = [task for task in self.tasks if task is not new]
        scores = np.stack([self._scores[old.name, new.name].max(axis=0) for old in olds], axis=1)
        pairs = [
            (float(scores[i, j]), int(i), int(j)) for i, j in zip(*linear_sum_assignment(-scores), strict=True)
        ]
        return [
            (i, olds[j], int(self._scores[olds[j].name, new.name][:, i].argmax()), score)
            for score, i, j in sorted(pairs, reverse=True)[:EXP_CLASSES]
        ]


def dealt_again(task: Task, seed: int) -> tuple[Images, Images]:
    """Return training and validation images, shuffled again, as many as before but at most `MOST` to train on."""
    x = np.concatenate([task.seen["train"], task.seen["val"]])
    labels = np.concatenate([task.labels["train"], task.labels["val"]])
    rng, parts = np.random.default_rng(seed), ([], [])
    for c in np.unique(labels):
        count = int((task.labels["val"] == c).sum())
        of = rng.permutation(np.flatnonzero(labels == c))
        parts[0].append(of[count : count + MOST])
        parts[1].append(of[:count])
    train, val = (np.sort(np.concatenate(part)) for part in parts)
    return (x[train], labels[train]), (x[val], labels[val])


def _teacher(old: Task, matches: dict[int, tuple[int, float]]) -> Teacher:
    return Teacher(old.name, old.classes, old.split("train"), old.split("val"), matches)


def _cut(task: Task, seed: int) -> Pair:
    """Split each class's images into an old and a new task; the seed decides the halves."""
    x, labels = task.split("train")
    rng = np.random.default_rng(seed)
    dealt = [rng.permutation(np.flatnonzero(labels == c))[:MOST] for c in np.unique(labels)]
    old = np.concatenate([of[: len(of) // 2] for of in dealt])
    new = np.concatenate([of[len(of) // 2 :] for of in dealt])
    matches = {c: (c, 1.0) for c in range(len(task.classes))}
    teacher = Teacher(task.name, task.classes, (x[old], labels[old]), (x[:0], labels[:0]), matches, seed=1 + seed)
    split = (x[new], labels[new]), task.split("val"), task.split("test")
    return Pair("cut in two", task.name, task.name, (teacher,), *split, len(task.classes))


def _five_classes(new: Task, chosen: list[tuple[int, Task, int, float]], seed: int) -> Pair:
    kept = sorted(index for index, *_ in chosen)
    place = {index: at for at, index in enumerate(kept)}

    def only(images: Images) -> Images:
        of = np.isin(images[1], kept)
        return images[0][of], np.array([place[int(c)] for c in images[1][of]], dtype=np.int64)

    teachers = tuple(_teacher(old, {place[i]: (c, score)}) for i, old, c, score in chosen)
    train, val = dealt_again(new, seed)
    about = ", ".join(f"{new.classes[i]} ← {old.name}: {old.classes[c]} ({s:.2f})" for i, old, c, s in chosen)
    return Pair("exp", about, new.name, teachers, only(train), only(val), only(new.split("test")), EXP_CLASSES)
