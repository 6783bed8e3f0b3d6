"""List all demo tasks, draw one of their images, and write the tasks as folders of images."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from skillmesh.data.demo import (
    barcodes,
    charts,
    clocks,
    faces,
    flags,
    flowers,
    games,
    letters,
    maps,
    shapes,
    signs,
    snowflakes,
    textures,
)
from skillmesh.data.demo.canvas import DrawnTask, finish, stable_seed
from skillmesh.errors import DataError

#: The order in which the demo learns; the alphabets, which are easily confused, come early.
FAMILIES = (
    shapes,
    letters,
    textures,
    flags,
    games,
    clocks,
    signs,
    faces,
    flowers,
    charts,
    snowflakes,
    barcodes,
    maps,
)
TASKS: dict[str, DrawnTask] = {task.name: task for family in FAMILIES for task in family.TASKS}
LEARNED: tuple[str, ...] = tuple(name for name, task in TASKS.items() if not task.hidden)
HIDDEN: tuple[str, ...] = tuple(name for name, task in TASKS.items() if task.hidden)


def find(name: str) -> DrawnTask:
    """Return the task of this name; raise `DataError` with all names if there is none."""
    if name not in TASKS:
        raise DataError(f"no demo task is called {name!r}; choose one of: {', '.join(TASKS)}")
    return TASKS[name]


def demo_task_classes(name: str) -> tuple[str, ...]:
    """Return the names of a task's classes."""
    return find(name).classes


def draw(name: str, cls: str, seed: int, size: int = 160) -> Image.Image:
    """Draw one RGB image; the same name, class, seed and size always give the same image."""
    task = find(name)
    if cls not in task.classes:
        raise DataError(f"the demo task {name!r} has no class {cls!r}; choose one of: {', '.join(task.classes)}")
    rng = np.random.default_rng(stable_seed(name, cls, seed))
    return finish(task.drawer(cls, rng, 2 * size), rng, size)


# Demo tasks as folders of images.


def write_demo_tasks(
    folder: Path,
    *,
    train: int = 16,
    val: int = 4,
    test: int = 8,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> list[Path]:
    """Write `folder/<task>/{train,val,test}/<class>/<n>.jpg` and return the task folders.

    A task folder gets its name only when all its images are written. So an existing folder that has all requested
    images is kept; one that lacks some was not written by this function, and raises `DataError`.

    Parameters
    ----------
    folder
        Folder for the task folders; created if missing.
    train, val, test
        Images per class in each split.
    seed
        Another seed gives other images.
    names
        The tasks to write; by default all, learned and hidden.
    """
    counts = {"train": train, "val": val, "test": test}
    if min(counts.values()) < 0:
        raise DataError(f"a number of images per class is negative: {counts}; expected 0 or more")
    tasks = [find(name) for name in (TASKS if names is None else names)]
    folder.mkdir(parents=True, exist_ok=True)
    return [_write_task(folder, task, counts, seed) for task in tasks]


def _write_task(folder: Path, task: DrawnTask, counts: Mapping[str, int], seed: int) -> Path:
    target = folder / task.name
    if _is_there(target, task, counts):
        return target
    with tempfile.TemporaryDirectory(prefix=f".{task.name}-", dir=folder) as temporary:
        draft = Path(temporary) / task.name
        for path, split, cls, number in _images(draft, task, counts):
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(task.name, cls, stable_seed(seed, split, number)).save(path, quality=90)
        try:
            draft.rename(target)
        except OSError:  # another process was faster
            if not _is_there(target, task, counts):
                raise
    return target


def _is_there(target: Path, task: DrawnTask, counts: Mapping[str, int]) -> bool:
    if not target.exists():
        return False
    missing = next((path for path, *_ in _images(target, task, counts) if not path.is_file()), None)
    if missing is not None:
        raise DataError(
            f"{target} exists but lacks {missing.relative_to(target)}; remove it or choose another folder"
        )
    return True


def _images(target: Path, task: DrawnTask, counts: Mapping[str, int]) -> Iterator[tuple[Path, str, str, int]]:
    """Yield path, split, class and number of every image of a task."""
    for split, count in counts.items():
        for cls in task.classes:
            for number in range(count):
                yield target / split / cls / f"{number}.jpg", split, cls, number
