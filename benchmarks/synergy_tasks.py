"""Shared code of the warm start and composition benchmarks: tasks as descriptors, few images, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from overlap_tasks import half_of

from skillmesh.backbone.calibration import Prior
from skillmesh.learning.head import Head, Labels
from skillmesh.numerics.arrays import Floats
from skillmesh_challenge.studies.study import StudySettings
from skillmesh_challenge.studies.tasks import describe_tasks, views


@dataclass(frozen=True)
class Task:
    """A task's images in one representation, by split."""

    name: str
    classes: tuple[str, ...]
    seen: dict[str, Floats]
    labels: dict[str, Labels]

    def split(self, name: str) -> tuple[Floats, Labels]:
        return self.seen[name], self.labels[name]


def load(paths: Sequence[Path], representation: str) -> tuple[list[Task], Prior]:
    backbone, described = describe_tasks(StudySettings(folders=tuple(paths)))
    tasks = [
        Task(view.task.name, tuple(view.task.folder.classes), view.seen, view.labels)
        for view in views(described, backbone, representation)
    ]
    return tasks, backbone.calibration.prior(representation, False)


def halves(task: Task, seed: int) -> tuple[Task, Task]:
    """Return the task twice, with no training or validation image in common and the same test images."""
    rng = np.random.default_rng(seed)
    parts: tuple[dict, dict] = ({}, {})
    for split in ("train", "val"):
        labels = task.labels[split]
        mine = half_of(labels, rng, larger=False)
        for part, kept in zip(parts, (mine, ~mine), strict=True):
            part[split] = task.seen[split][kept], labels[kept]
    old, new = (
        Task(
            task.name,
            task.classes,
            {name: x for name, (x, _) in part.items()} | {"test": task.seen["test"]},
            {name: labels for name, (_, labels) in part.items()} | {"test": task.labels["test"]},
        )
        for part in parts
    )
    return old, new


def few(labels: Labels, each: int | None, rng: np.random.Generator) -> np.ndarray:
    """Return the indices of at most `each` random images of each class; all if it is None."""
    if each is None:
        return np.arange(len(labels))
    return np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:each] for c in np.unique(labels)])


def accuracy(head: Head, x: Floats, labels: Labels) -> float:
    return 100 * float(np.mean(head.logits(x).argmax(axis=1) == labels))


def row_accuracy(weight: Floats, x: Floats, labels: Labels) -> float:
    return 100 * float(np.mean((x @ weight.T).argmax(axis=1) == labels))


def interval(values: Sequence[float]) -> dict[str, float | int]:
    """Return the mean and its 95 % interval by Student's t."""
    from scipy.stats import t

    n, mean = len(values), float(np.mean(values))
    half = float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n)) if n > 1 else float("inf")
    found = {"mean": round(mean, 3), "n": n}
    return found if n < 2 else found | {"low": round(mean - half, 3), "high": round(mean + half, 3)}
