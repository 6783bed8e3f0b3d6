"""What can be wrong with one task: its classes and splits, unreadable files, images that lie there twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from skillmesh.data.checks import check_balance, check_names, some, twins_across_classes, twins_across_splits
from skillmesh.data.folder import SPLIT_FOLDERS, TaskImages
from skillmesh.data.twins import TaskTwins
from skillmesh.errors import CardError
from skillmesh_challenge.data.looks import Look
from skillmesh_challenge.data.problems import Problem


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
