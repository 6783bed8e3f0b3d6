"""Drawn pictures, each with a file name of its own, so that an answer can be found by its picture."""

from __future__ import annotations

from pathlib import Path

from skillmesh.data.demo import write_demo_tasks

TEACHING, ASKING = 14, 4
"""Pictures of a class to teach with, and to ask about."""


class Pictures:
    """Pictures of some drawn tasks."""

    def __init__(self, folder: Path, *tasks: str) -> None:
        self._folder = folder
        write_demo_tasks(folder, train=TEACHING, val=1, test=ASKING, names=list(tasks))
        for path in [*folder.glob("*/*/*/*")]:
            task, split, name = path.relative_to(folder).parts[:3]
            path.rename(path.with_name(f"{task} {name} {split} {path.name}"))

    def to_teach(self, task: str, *classes: str) -> dict[str, list[Path]]:
        return {name: self._of(task, "train", name) for name in classes}

    def to_ask(self, task: str, *classes: str) -> list[Path]:
        return [path for name in classes for path in self._of(task, "test", name)]

    def _of(self, task: str, split: str, name: str) -> list[Path]:
        return sorted((self._folder / task / split / name).iterdir())
