"""Check tasks before a run: report all faults together, and separate errors from warnings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skillmesh.data.folder import SPLIT_FOLDERS, TaskImages, survey_task, task_name, tasks_at
from skillmesh.errors import DataError
from skillmesh.learning.examine import TaskTwins
from skillmesh.numerics.process import Progress
from skillmesh_challenge.data.problems import (
    CheckedImage,
    DataReport,
    DataTaskFacts,
    Problem,
    Twins,
    by_task,
    find_twins,
    read_images,
    shared_by_tasks,
    structure_faults,
    twin_faults,
    unreadable_faults,
)
from skillmesh_challenge.datasets import DatasetPlace, Rule, collection, places, survey_collection
from skillmesh_challenge.datasets.opening import how_to_get, missing_words


@dataclass(frozen=True)
class Settings:
    """Settings for opening tasks."""

    seed: int = 0
    rule: Rule = "appendix"
    partial: bool = False


@dataclass
class Found:
    """Tasks that can be opened, their paths, and the problems of the others."""

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
    """Open a task; hold out test images only if it has no split folders, which would define the test images."""
    task = survey_task(path, hold_out=("val",), seed=seed)
    return task if task.split_folders else survey_task(path, hold_out=("val", "test"), seed=seed)


def _name_left_out(path: Path, tasks: list[Path], found: Found) -> None:
    """Report folders beside tasks that are not tasks themselves: a run would skip them silently."""
    for folder in sorted(path.iterdir()):
        if not folder.is_dir() or folder.name.startswith(".") or folder in tasks:
            continue
        if _lacks_train(folder):
            found.problems.append(_no_train(folder))
        else:
            text = f"{folder} is left out: it has no class folders with images"
            found.problems.append(Problem("left-out", text))


def _lacks_train(folder: Path) -> bool:
    """Return whether all subfolders are named after splits, but none of them for training."""
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
            hint = "; --rule list gives its sizes" if known.subsampled and settings.rule != "list" else ""
            found.problems.append(Problem("other-size", member.difference + hint, task))
        if member.task is not None:
            found.add(member.task, member.path)


class BadDataError(DataError):
    """The data has faults that prevent a run; `report` lists them all."""

    def __init__(self, report: DataReport) -> None:
        super().__init__(report.words())
        self.report = report


def refuse_bad_data(report: DataReport) -> DataReport:
    """Raise a BadDataError if a fault prevents a run; otherwise return the report with its warnings."""
    if not report.ok:
        raise BadDataError(report)
    return report


def check(
    paths: Sequence[str | Path],
    *,
    dataset: str | None = None,
    seed: int = 0,
    rule: Rule = "appendix",
    partial: bool = False,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> DataReport:
    """Check every image of every task at `paths`, as a run with this seed would open them.

    Parameters
    ----------
    dataset
        Collection that the paths contain; a path may also name it: `skill102:DIR`.
    rule, partial
        See `open_collection`.
    skip_unreadable
        Treat unreadable images as a warning, as long as every class keeps at least one image.
    """
    found = find(places(paths, dataset), Settings(seed, rule, partial))
    checked = read_images(found.tasks, progress)
    twins = find_twins(checked)
    twins_of, bad_of = by_task(twins), _unreadable(checked)
    problems = found.problems + _equal_names(found)
    facts = []
    for index, (task, path) in enumerate(zip(found.tasks, found.paths, strict=True)):
        bad, mine = bad_of[index], twins_of[index]
        problems += structure_faults(task, path)
        problems += unreadable_faults(task, bad, skip_unreadable) + twin_faults(task, mine)
        facts.append(_facts(task, path, bad, mine))
    problems += _shared(found, twins)
    return DataReport(facts, problems, twins)


def _unreadable(checked: list[CheckedImage]) -> dict[int, list[CheckedImage]]:
    bad: dict[int, list[CheckedImage]] = defaultdict(list)
    for image in checked:
        if image.reason:
            bad[image.task].append(image)
    return bad


def _facts(task: TaskImages, path: Path, bad: list[CheckedImage], twins: TaskTwins) -> DataTaskFacts:
    return DataTaskFacts(
        name=task.name,
        place=str(path),
        classes=len(task.classes),
        images={split: len(part) for split, part in task.splits.items()},
        unreadable=len(bad),
        twins_in_splits=len(twins.in_split),
        twins_across_splits={words: len(files) for words, files in twins.across_splits.items()},
        twins_in_other_tasks=twins.elsewhere,
    )


def _equal_names(found: Found) -> list[Problem]:
    counts = Counter(task.name for task in found.tasks)
    problems = []
    for name in sorted(name for name, count in counts.items() if count > 1):
        where = tuple(str(p) for task, p in zip(found.tasks, found.paths, strict=True) if task.name == name)
        text = f"{len(where)} tasks have this name: {', '.join(where)}; rename all but one"
        problems.append(Problem("duplicate-name", text, name, fatal=True, files=where))
    return problems


def _shared(found: Found, twins: list[Twins]) -> list[Problem]:
    problems = []
    for (a, b), count in sorted(shared_by_tasks(twins).items()):
        one, other = found.tasks[a].name, found.tasks[b].name
        text = f"{count:,} image(s) of {one!r} are images of {other!r} too: no mapper can recognise their task"
        problems.append(Problem("twins-across-tasks", text))
    return problems
