"""Banks whose overlap is known by construction: tasks taught twice from different images, or by half."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from skillmesh.common.choices import WarmStart
from skillmesh.core import Core
from skillmesh.data.folder import Split, TaskImages, find_tasks, open_task
from skillmesh.store.home import create_home


def opened(tasks: Path, seed: int = 0) -> list[TaskImages]:
    return [open_task(path, hold_out=("val", "test"), seed=seed) for path in find_tasks([tasks])]


def half_of(labels: np.ndarray, rng: np.random.Generator, larger: bool = True) -> np.ndarray:
    """Return a mask of a random half of each class's images; of an odd number the larger or the smaller half."""
    mine = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        of = rng.permutation(np.flatnonzero(labels == c))
        mine[of[: (len(of) + larger) // 2]] = True
    return mine


def halves(folder: TaskImages, seed: int = 0) -> tuple[TaskImages, TaskImages]:
    """Return the task twice, with no training or validation image in common and the same test images."""
    rng = np.random.default_rng(seed)
    parts: tuple[dict[str, Split], dict[str, Split]] = ({}, {})
    for name in ("train", "val"):
        split = folder.splits[name]
        mine = half_of(split.labels, rng)
        for part, kept in zip(parts, (mine, ~mine), strict=True):
            part[name] = _kept(split, np.flatnonzero(kept))
    first, second = (
        TaskImages(f"{folder.name}-{letter}", folder.classes, part | {"test": folder.splits["test"]}, ())
        for letter, part in zip("ab", parts, strict=True)
    )
    return first, second


def every_second_class(folder: TaskImages) -> TaskImages:
    """Return the task without half of its classes; one with fewer than four keeps all."""
    if len(folder.classes) < 4:
        return folder
    kept = list(range(0, len(folder.classes), 2))
    splits = {}
    for name, split in folder.splits.items():
        chosen = _kept(split, np.flatnonzero(np.isin(split.labels, kept)))
        splits[name] = Split(chosen.files, np.searchsorted(kept, chosen.labels))
    return TaskImages(folder.name, tuple(folder.classes[c] for c in kept), splits, ())


def _kept(split: Split, rows: Sequence[int] | np.ndarray) -> Split:
    return Split(tuple(split.files[row] for row in rows), split.labels[rows])


def taught(home: Path, folders: Iterable[TaskImages], **settings: object) -> Core:
    """Return an agent that has these tasks, each by its own teacher; an existing home is used as it is."""
    if not (home / "agent.json").exists():
        create_home(home, name="benchmark", **settings)
        agent = Core(home)
        for number, folder in enumerate(folders):
            teacher = home.with_name(f"{home.name}-teachers") / str(number)
            create_home(teacher, name=f"teacher {number}", **settings)
            module, _ = (there := Core(teacher, backbone=agent.backbone)).learn(
                folder, warm_start=WarmStart("never")
            )
            agent.import_bytes(there.bank.file_of(module))
    return Core(home)
