"""Find the tasks that a check is to look at; what cannot be opened becomes a problem, never an exception."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skillmesh.data.folder import SPLIT_FOLDERS, TaskImages, survey_task, task_name, tasks_at
from skillmesh.errors import DataError
from skillmesh_challenge.data.problems import Problem
from skillmesh_challenge.datasets import DatasetPlace, Rule, collection, survey_collection
from skillmesh_challenge.datasets.opening import how_to_get, missing_words


@dataclass(frozen=True)
class Settings:
    """How tasks are opened."""

    seed: int = 0
    rule: Rule = "appendix"
    partial: bool = False


@dataclass
class Found:
    """Tasks that can be opened, where each lies, and what is wrong with the others."""

    tasks: list[TaskImages] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(self, task: TaskImages, path: Path) -> None:
        self.tasks.append(task)
        self.paths.append(path)


def find(places: Sequence[DatasetPlace], settings: Settings) -> Found:
    found = Found()
    for place in places:
        try:
            if place.dataset is None:
                _find_tasks(place.path, settings, found)
            else:
                _find_collection(place.dataset, place.path, settings, found)
        except (DataError, OSError) as error:
            found.problems.append(Problem("nothing-there", str(error), fatal=True))
    return found


def _find_tasks(path: Path, settings: Settings, found: Found) -> None:
    if path.is_dir() and _lacks_train(path):
        found.problems.append(_no_train(path))
        return
    paths = tasks_at(path)
    if not paths:
        text = (
            f"no task was found in {path}; expected folders or zips with class/image.jpg or "
            "train/class/image.jpg inside"
        )
        found.problems.append(Problem("nothing-there", text, fatal=True))
    for task in paths:
        try:
            found.add(_survey(task, settings.seed), task)
        except (DataError, OSError) as error:
            found.problems.append(Problem("unreadable-task", str(error), task_name(task), fatal=True))
    if paths != [path]:
        _name_left_out(path, paths, found)


def _survey(path: Path, seed: int) -> TaskImages:
    """Cut test images only from a task without folders for splits: the others say what to test on."""
    task = survey_task(path, hold_out=("val",), seed=seed)
    return task if task.split_folders else survey_task(path, hold_out=("val", "test"), seed=seed)


def _name_left_out(path: Path, tasks: list[Path], found: Found) -> None:
    """Folders beside tasks that are none themselves: a run would pass over them without a word."""
    for folder in sorted(path.iterdir()):
        if not folder.is_dir() or folder.name.startswith(".") or folder in tasks:
            continue
        if _lacks_train(folder):
            found.problems.append(_no_train(folder))
        else:
            text = f"{folder} is left out: it has no class folders with images"
            found.problems.append(Problem("left-out", text))


def _lacks_train(folder: Path) -> bool:
    """Whether all its folders are named after splits, none of them for training."""
    names = [p.name.lower() for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")]
    return bool(names) and all(SPLIT_FOLDERS.get(name) in ("val", "test") for name in names)


def _no_train(folder: Path) -> Problem:
    names = ", ".join(sorted(p.name for p in folder.iterdir() if p.is_dir()))
    text = f"there is {names} but no train folder; expected train/class/image.jpg beside it"
    return Problem("no-train-folder", text, task_name(folder), fatal=True)


def _find_collection(name: str, path: Path, settings: Settings, found: Found) -> None:
    known = collection(name)
    members = survey_collection(name, path, seed=settings.seed, rule=settings.rule)
    missing = missing_words(known, path, members)
    if all(member.missing for member in members):
        text = f"none of the {len(members)} datasets of {name} is in {path}; {how_to_get(known)}"
        found.problems.append(Problem("missing", text, fatal=True))
        return
    if missing:
        names = tuple(member.row.name for member in members if member.missing)
        found.problems.append(Problem("missing", missing, fatal=not settings.partial, files=names))
    for member in members:
        task = member.row.name
        if member.task is None and member.fault:
            found.problems.append(Problem("unreadable-task", member.fault, task, fatal=True))
        elif member.fault:
            found.problems.append(Problem("other-classes", member.fault, task, fatal=not settings.partial))
        if member.difference:
            hint = "; they were made by --rule list" if known.subsampled and settings.rule != "list" else ""
            found.problems.append(Problem("other-size", member.difference + hint, task))
        if member.task is not None:
            found.add(member.task, member.path)
