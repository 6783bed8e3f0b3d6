"""All demo tasks by name, and one image of any of them."""

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
from skillmesh.data.demo.canvas import finish
from skillmesh.data.demo.task import DrawnTask, stable_seed
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
    """The task of this name, or an error that lists the names there are."""
    if name not in TASKS:
        raise DataError(f"no demo task is called {name!r}; choose one of: {', '.join(TASKS)}")
    return TASKS[name]


def demo_task_classes(name: str) -> tuple[str, ...]:
    """Names of a task's classes."""
    return find(name).classes


def draw(name: str, cls: str, seed: int, size: int = 160) -> Image.Image:
    """Draw one RGB image; the same name, class, seed and size give the same image, whatever came before."""
    task = find(name)
    if cls not in task.classes:
        raise DataError(f"the demo task {name!r} has no class {cls!r}; choose one of: {', '.join(task.classes)}")
    rng = np.random.default_rng(stable_seed(name, cls, seed))
    return finish(task.drawer(cls, rng, 2 * size), rng, size)
