"""Tasks divided among several teachers, for tests: no image is in two of the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from skillmesh.data.folder import Split, TaskImages


def dealt(task: TaskImages, parts: int) -> list[TaskImages]:
    """Return parts of the task: every class's training and validation images in turn, and all test images."""
    return [
        replace(task, splits={name: _share(s, name, part, parts) for name, s in task.splits.items()})
        for part in range(parts)
    ]


def only(task: TaskImages, classes: Sequence[str]) -> TaskImages:
    """Return the task with some of its classes, in the given order."""
    return replace(
        task, classes=tuple(classes), splits={n: _chosen(s, task, classes) for n, s in task.splits.items()}
    )


def renamed(task: TaskImages, name: Callable[[str], str], backwards: bool = False) -> TaskImages:
    """Return the task with other class names, in the same or the reverse order."""
    order = task.classes[::-1] if backwards else task.classes
    return replace(only(task, order), classes=tuple(map(name, order)))


def _share(split: Split, name: str, part: int, parts: int) -> Split:
    if name == "test":
        return split
    turn = np.concatenate([np.arange(n) % parts for n in np.bincount(split.labels)]) if len(split) else np.zeros(0)
    rows = np.flatnonzero(turn == part)  # images are ordered by class
    return Split(tuple(split.files[i] for i in rows), split.labels[rows])


def _chosen(split: Split, task: TaskImages, classes: Sequence[str]) -> Split:
    files, labels = [], []
    for number, name in enumerate(classes):
        rows = np.flatnonzero(split.labels == task.classes.index(name))
        files += [split.files[i] for i in rows]
        labels += [number] * len(rows)
    return Split(tuple(files), np.array(labels, dtype=np.int64))
