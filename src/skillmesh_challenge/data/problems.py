"""What a check of data finds: every image looked at once, those that lie there twice, faults of each task."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from skillmesh.common.text import some
from skillmesh.data.folder import SPLIT_FOLDERS, ImageFile, TaskImages
from skillmesh.data.images import CONTENTS, UnreadableImageError, pixel_hash
from skillmesh.errors import CardError
from skillmesh.learning.examine import (
    Finding,
    TaskTwins,
    check_balance,
    check_names,
    equal_groups,
    twins_across_classes,
    twins_across_splits,
)
from skillmesh.numerics.process import Progress, begin, cores

WINDOW = 256
"""Images under way at once: bounds memory."""


@dataclass(frozen=True, slots=True)
class Look:
    """One image, looked at."""

    task: int
    """Which of the tasks: names may be given twice."""
    split: str
    label: str
    file: str
    content: bytes = b""
    pixels: bytes = b""
    reason: str = ""
    """Why it cannot be read."""


def look_at(tasks: Sequence[TaskImages], progress: Progress | None = None) -> list[Look]:
    """Read and decode every image of every split, several at once."""
    images = [
        (index, split, task.classes[label], file)
        for index, task in enumerate(tasks)
        for split, part in task.splits.items()
        for file, label in zip(part.files, part.labels, strict=True)
    ]
    advance = begin(progress, "looking at images", len(images))
    looks: list[Look] = []
    with ThreadPoolExecutor(cores()) as pool:
        for start in range(0, len(images), WINDOW):
            window = images[start : start + WINDOW]
            looks += pool.map(lambda image: _look(*image), window)
            if advance is not None:
                advance(len(window))
    return looks


def _look(task: int, split: str, label: str, file: ImageFile) -> Look:
    try:
        with CONTENTS.taken(file.size()):
            content = file.content()
            pixels = pixel_hash(content)
            key = hashlib.blake2b(content, digest_size=16).digest()
            del content
    except UnreadableImageError as error:
        return Look(task, split, label, file.name, reason=str(error))
    return Look(task, split, label, file.name, key, pixels)


# Images that lie there more than once: in a split, in two splits, under two classes, in two tasks.


@dataclass(frozen=True)
class Twins:
    """Files that show the same picture, pixel by pixel."""

    looks: tuple[Look, ...]

    @property
    def same_bytes(self) -> bool:
        return len({look.content for look in self.looks}) == 1

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        files = [
            {"task": names[look.task], "split": look.split, "class": look.label, "file": look.file}
            for look in self.looks
        ]
        return {"same_bytes": self.same_bytes, "files": files}


def find_twins(looks: Iterable[Look]) -> list[Twins]:
    """Group images by their pixels; equal bytes have equal pixels."""
    readable = [look for look in looks if not look.reason]
    groups = equal_groups(look.pixels for look in readable)
    return [Twins(tuple(readable[index] for index in group)) for group in groups]


def by_task(twins: Iterable[Twins]) -> dict[int, TaskTwins]:
    """Sort what was found by task."""
    found: dict[int, TaskTwins] = defaultdict(TaskTwins)
    for group in twins:
        tasks = {look.task for look in group.looks}
        for task in tasks:
            mine = [look for look in group.looks if look.task == task]
            found[task].note(mine)
            found[task].elsewhere += len(mine) if len(tasks) > 1 else 0
    return found


def shared_by_tasks(twins: Iterable[Twins]) -> Counter[tuple[int, int]]:
    """How many pictures each two tasks share."""
    return Counter(
        pair for group in twins for pair in combinations(sorted({look.task for look in group.looks}), 2)
    )


Kind = Literal[
    "nothing-there",
    "missing",
    "other-classes",
    "other-size",
    "unreadable-task",
    "left-out",
    "duplicate-name",
    "bad-name",
    "no-classes",
    "one-class",
    "no-train-folder",
    "no-test-images",
    "no-validation-images",
    "class-untested",
    "class-unreadable",
    "unreadable",
    "note",
    "twins-in-split",
    "twins-across-splits",
    "twins-across-classes",
    "twins-across-tasks",
    "same-name",
    "merged-names",
    "twins-not-searched",
    "unbalanced",
]


@dataclass(frozen=True)
class Problem:
    """One fault of one task, or of the whole."""

    kind: Kind
    text: str
    task: str = ""
    fatal: bool = False
    """Whether it keeps a run from being started."""
    files: tuple[str, ...] = ()
    """All the files that it is about."""

    @classmethod
    def of(cls, finding: Finding, task: str) -> Problem:
        """Make a warning of what a check shared with `learn` has found."""
        return cls(finding.kind, finding.text, task, files=finding.files)

    def __str__(self) -> str:
        return f"{self.task}: {self.text}" if self.task else self.text


@dataclass(frozen=True)
class DataTaskFacts:
    """A task as a run would see it."""

    name: str
    place: str
    classes: int
    images: dict[str, int]
    """How many images each split has, the unreadable ones among them."""
    unreadable: int = 0
    twins_in_splits: int = 0
    """Images that lie in their own split already."""
    twins_across_splits: dict[str, int] = field(default_factory=dict)
    """Of which split's images how many lie in which earlier split too: "test in train"."""
    twins_in_other_tasks: int = 0
    """Images that another task has too."""


@dataclass(frozen=True)
class DataReport:
    """All that was found; `ok` says whether a run may start."""

    tasks: list[DataTaskFacts]
    problems: list[Problem]
    twins: list[Twins]

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.fatal]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.problems if not problem.fatal]

    @property
    def ok(self) -> bool:
        return not self.errors

    def as_dict(self) -> dict[str, Any]:
        """As JSON would have it."""
        return {
            "ok": self.ok,
            "errors": [asdict(problem) for problem in self.errors],
            "warnings": [asdict(problem) for problem in self.warnings],
            "tasks": [asdict(task) for task in self.tasks],
            "twins": [group.as_dict([task.name for task in self.tasks]) for group in self.twins],
        }

    def words(self) -> str:
        """All that keeps a run from being started, a line each."""
        errors = self.errors
        lines = [f"  {problem}" for problem in errors]
        return "\n".join([f"the data has {len(errors)} fault(s) that keep a run from being started:", *lines])


# What can be wrong with one task: its classes and splits, unreadable files, images that lie there twice.


def structure_faults(task: TaskImages, path: Path) -> list[Problem]:
    """What classes and splits are there, and what is missing of them."""
    problems = [Problem("note", note, task.name) for note in task.notes]
    if not task.classes:
        text = (
            f"{path} holds no class folders with images; expected class/image.jpg or train/class/image.jpg inside"
        )
        return [*problems, Problem("no-classes", text, task.name, fatal=True)]
    if splits := [name for name in task.classes if name.lower() in SPLIT_FOLDERS and not task.split_folders]:
        text = f"there is {', '.join(splits)} but no train folder; expected train/class/image.jpg beside it"
        return [*problems, Problem("no-train-folder", text, task.name, fatal=True)]
    if len(task.classes) == 1:
        text = f"one class only ({task.classes[0]!r}); expected two or more class folders with images"
        problems.append(Problem("one-class", text, task.name, fatal=True))
    elif words := _bad_names(task):
        problems.append(Problem("bad-name", words, task.name, fatal=True))
    findings = [*check_names(task), *check_balance(task)]
    problems += [Problem.of(finding, task.name) for finding in findings]
    return problems + _untested(task)


def _untested(task: TaskImages) -> list[Problem]:
    problems = []
    if not len(task.splits["val"]):
        text = "no validation images: its classes have too few images to spare any; add images"
        problems.append(Problem("no-validation-images", text, task.name))
    if not len(task.splits["test"]):
        why = (
            "there is no test folder with images of its classes"
            if task.split_folders
            else "its classes have too few images"
        )
        text = (
            f"no test images: {why}; add test/class/image.jpg, or leave the folders for splits out: a share is cut"
        )
        return [*problems, Problem("no-test-images", text, task.name, fatal=True)]
    counts = np.bincount(task.splits["test"].labels, minlength=len(task.classes))
    if untested := tuple(task.classes[i] for i in np.flatnonzero(counts == 0)):
        text = f"{len(untested):,} class(es) without test images: {some(untested)}"
        problems.append(Problem("class-untested", text, task.name, files=untested))
    return problems


def _bad_names(task: TaskImages) -> str:
    """Ask the card, which every module must have, what it says of the task's and the classes' names."""
    from skillmesh.module.card import Card, now

    facts: dict[str, Any] = {
        "task": task.name,
        "classes": task.classes,
        "counts": (1,) * len(task.classes),
        "backbone": "0" * 64,
        "backbone_name": "any",
        "representation": "descriptor",
        "dim": 1,
        "compact": False,
        "anchors": ("sketch",),
        "validation_images": 0,
        "temperature": 1.0,
        "version": 1,
        "created": now(),
        "teacher": "any",
        "teacher_key": "0" * 64,
    }
    try:
        Card(**facts)
    except CardError as error:
        return f"a module cannot be named like this: {error}"
    return ""


def unreadable_faults(task: TaskImages, bad: list[Look], skip: bool) -> list[Problem]:
    if not bad:
        return []
    files = tuple(look.file for look in bad)
    reasons = some(f"{look.file} ({look.reason})" for look in bad)
    advice = "skipped" if skip else "mend or remove them, or go on without them (--skip-unreadable)"
    text = f"{len(bad):,} image(s) cannot be read: {reasons}; {advice}"
    problems = [Problem("unreadable", text, task.name, fatal=not skip, files=files)]
    lost = Counter(look.label for look in bad if look.split == "train")
    counts = np.bincount(task.splits["train"].labels, minlength=len(task.classes))
    gone = tuple(name for name, count in zip(task.classes, counts, strict=True) if lost[name] == count)
    if gone:
        text = f"no training image of {some(map(repr, gone))} can be read; mend or remove the class folder(s)"
        problems.append(Problem("class-unreadable", text, task.name, fatal=True, files=gone))
    if sum(look.split == "test" for look in bad) == len(task.splits["test"]) > 0:
        text = "no test image can be read; mend or remove the test folder"
        problems.append(Problem("no-test-images", text, task.name, fatal=True))
    return problems


def twin_faults(task: TaskImages, twins: TaskTwins) -> list[Problem]:
    totals = {split: len(part) for split, part in task.splits.items()}
    findings = [*twins_across_splits(twins, totals), *twins_across_classes(twins)]
    problems = [Problem.of(finding, task.name) for finding in findings]
    if twins.in_split:
        text = f"{len(twins.in_split):,} image(s) lie in their split already: {some(twins.in_split)}"
        problems.append(Problem("twins-in-split", text, task.name, files=tuple(twins.in_split)))
    return problems
