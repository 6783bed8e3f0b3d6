"""Problems that a check of data finds: unreadable images, duplicate images, faults of each task."""

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
"""Number of images processed together; limits memory."""


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """One image after reading and decoding it."""

    task: int
    """Index of the task; names need not be unique."""
    split: str
    label: str
    file: str
    content: bytes = b""
    pixels: bytes = b""
    reason: str = ""
    """Why the image cannot be read; empty if it can."""


def read_images(tasks: Sequence[TaskImages], progress: Progress | None = None) -> list[CheckedImage]:
    """Read and decode every image of every split, several in parallel."""
    images = [
        (index, split, task.classes[label], file)
        for index, task in enumerate(tasks)
        for split, part in task.splits.items()
        for file, label in zip(part.files, part.labels, strict=True)
    ]
    advance = begin(progress, "checking images", len(images))
    checked: list[CheckedImage] = []
    with ThreadPoolExecutor(cores()) as pool:
        for start in range(0, len(images), WINDOW):
            window = images[start : start + WINDOW]
            checked += pool.map(lambda image: _check_image(*image), window)
            if advance is not None:
                advance(len(window))
    return checked


def _check_image(task: int, split: str, label: str, file: ImageFile) -> CheckedImage:
    try:
        with CONTENTS.taken(file.size()):
            content = file.content()
            pixels = pixel_hash(content)
            key = hashlib.blake2b(content, digest_size=16).digest()
            del content
    except UnreadableImageError as error:
        return CheckedImage(task, split, label, file.name, reason=str(error))
    return CheckedImage(task, split, label, file.name, key, pixels)


# Images that occur more than once: in a split, in two splits, under two classes, in two tasks.


@dataclass(frozen=True)
class Twins:
    """Files with the same picture, pixel for pixel."""

    images: tuple[CheckedImage, ...]

    @property
    def same_bytes(self) -> bool:
        return len({image.content for image in self.images}) == 1

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        files = [
            {"task": names[image.task], "split": image.split, "class": image.label, "file": image.file}
            for image in self.images
        ]
        return {"same_bytes": self.same_bytes, "files": files}


def find_twins(checked: Iterable[CheckedImage]) -> list[Twins]:
    """Return groups of images with equal pixels; equal bytes have equal pixels."""
    readable = [image for image in checked if not image.reason]
    groups = equal_groups(image.pixels for image in readable)
    return [Twins(tuple(readable[index] for index in group)) for group in groups]


def by_task(twins: Iterable[Twins]) -> dict[int, TaskTwins]:
    """Return the duplicates of each task."""
    twins_of: dict[int, TaskTwins] = defaultdict(TaskTwins)
    for group in twins:
        tasks = {image.task for image in group.images}
        for task in tasks:
            mine = [image for image in group.images if image.task == task]
            twins_of[task].note(mine)
            twins_of[task].elsewhere += len(mine) if len(tasks) > 1 else 0
    return twins_of


def shared_by_tasks(twins: Iterable[Twins]) -> Counter[tuple[int, int]]:
    """Return the number of pictures that each pair of tasks shares."""
    return Counter(
        pair for group in twins for pair in combinations(sorted({image.task for image in group.images}), 2)
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
    """One fault of one task, or of the whole data."""

    kind: Kind
    text: str
    task: str = ""
    fatal: bool = False
    """Whether it prevents a run."""
    files: tuple[str, ...] = ()
    """All files concerned."""

    @classmethod
    def of(cls, finding: Finding, task: str) -> Problem:
        """Return a warning from a finding of a check that `learn` uses too."""
        return cls(finding.kind, finding.text, task, files=finding.files)

    def __str__(self) -> str:
        return f"{self.task}: {self.text}" if self.task else self.text


@dataclass(frozen=True)
class DataTaskFacts:
    """Facts about a task as a run would open it."""

    name: str
    place: str
    classes: int
    images: dict[str, int]
    """Number of images in each split, including unreadable ones."""
    unreadable: int = 0
    twins_in_splits: int = 0
    """Number of images that duplicate another image of their own split."""
    twins_across_splits: dict[str, int] = field(default_factory=dict)
    """Number of images of one split that are also in an earlier one, by pair of splits: "test in train"."""
    twins_in_other_tasks: int = 0
    """Number of images that another task has too."""


@dataclass(frozen=True)
class DataReport:
    """All results of a check; `ok` is true if a run may start."""

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
        """Return the report as a JSON-compatible dict."""
        return {
            "ok": self.ok,
            "errors": [asdict(problem) for problem in self.errors],
            "warnings": [asdict(problem) for problem in self.warnings],
            "tasks": [asdict(task) for task in self.tasks],
            "twins": [group.as_dict([task.name for task in self.tasks]) for group in self.twins],
        }

    def words(self) -> str:
        """Return the faults that prevent a run, one per line."""
        errors = self.errors
        lines = [f"  {problem}" for problem in errors]
        return "\n".join([f"the data has {len(errors)} fault(s) that prevent a run:", *lines])


# Faults of one task: its classes and splits, unreadable files, duplicate images.


def structure_faults(task: TaskImages, path: Path) -> list[Problem]:
    """Return faults of the task's classes and splits."""
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
        text = "no validation images: its classes have too few images to hold any out; add images"
        problems.append(Problem("no-validation-images", text, task.name))
    if not len(task.splits["test"]):
        why = (
            "there is no test folder with images of its classes"
            if task.split_folders
            else "its classes have too few images"
        )
        text = (
            f"no test images: {why}; add test/class/image.jpg, or use no split folders: a share is then held out"
        )
        return [*problems, Problem("no-test-images", text, task.name, fatal=True)]
    counts = np.bincount(task.splits["test"].labels, minlength=len(task.classes))
    if untested := tuple(task.classes[i] for i in np.flatnonzero(counts == 0)):
        text = f"{len(untested):,} class(es) without test images: {some(untested)}"
        problems.append(Problem("class-untested", text, task.name, files=untested))
    return problems


def _bad_names(task: TaskImages) -> str:
    """Return why a module's card cannot hold the names of task and classes; empty if it can."""
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
        return f"a module's card cannot hold these names: {error}"
    return ""


def unreadable_faults(task: TaskImages, bad: list[CheckedImage], skip: bool) -> list[Problem]:
    if not bad:
        return []
    files = tuple(image.file for image in bad)
    reasons = some(f"{image.file} ({image.reason})" for image in bad)
    advice = "skipped" if skip else "repair or remove them, or continue without them (--skip-unreadable)"
    text = f"{len(bad):,} image(s) cannot be read: {reasons}; {advice}"
    problems = [Problem("unreadable", text, task.name, fatal=not skip, files=files)]
    lost = Counter(image.label for image in bad if image.split == "train")
    counts = np.bincount(task.splits["train"].labels, minlength=len(task.classes))
    gone = tuple(name for name, count in zip(task.classes, counts, strict=True) if lost[name] == count)
    if gone:
        text = f"no training image of {some(map(repr, gone))} can be read; repair or remove the class folder(s)"
        problems.append(Problem("class-unreadable", text, task.name, fatal=True, files=gone))
    if sum(image.split == "test" for image in bad) == len(task.splits["test"]) > 0:
        text = "no test image can be read; repair or remove the test folder"
        problems.append(Problem("no-test-images", text, task.name, fatal=True))
    return problems


def twin_faults(task: TaskImages, twins: TaskTwins) -> list[Problem]:
    totals = {split: len(part) for split, part in task.splits.items()}
    findings = [*twins_across_splits(twins, totals), *twins_across_classes(twins)]
    problems = [Problem.of(finding, task.name) for finding in findings]
    if twins.in_split:
        text = f"{len(twins.in_split):,} image(s) duplicate another image of their split: {some(twins.in_split)}"
        problems.append(Problem("twins-in-split", text, task.name, files=tuple(twins.in_split)))
    return problems
