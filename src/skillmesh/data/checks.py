"""Faults of a task that its names and numbers show, before any image is opened, and the words for all faults."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.twins import SPLIT_WORDS, TaskTwins

if TYPE_CHECKING:
    from skillmesh.data.folder import TaskImages

SHOWN = 3
"""Number of files that a sentence names; a program gets all of them."""
UNBALANCED = 10
"""Ratio of the largest class to the smallest that is worth a word; the most in forty real tasks is 6.7."""

Kind = Literal[
    "same-name",
    "merged-names",
    "unbalanced",
    "twins-in-split",
    "twins-across-splits",
    "twins-across-classes",
    "twins-not-searched",
    "unreadable",
]


@dataclass(frozen=True)
class Finding:
    """Something about a task's images that its owner should know."""

    kind: Kind
    text: str
    files: tuple[str, ...] = ()
    """All the files, or classes, that it is about."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self) | {"files": list(self.files)}


def some(items: Iterable[str], shown: int = SHOWN) -> str:
    """Name the first few."""
    every = list(items)
    rest = len(every) - shown
    return ", ".join(every[:shown]) + (f" and {rest:,} more" if rest > 0 else "")


def check_names(task: TaskImages) -> list[Finding]:
    """Find classes whose names are nearly equal, and folders that were joined because their names are equal."""
    return [*_nearly_equal(task.classes), *_joined(task)]


def _nearly_equal(classes: Sequence[str]) -> list[Finding]:
    alike: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike[_plain(name)].append(name)
    return [
        Finding(
            "same-name",
            f"{' and '.join(map(repr, names))} are {len(names)} classes whose names differ only in case or "
            "spacing; if they are one, put their images into one folder",
            tuple(names),
        )
        for names in alike.values()
        if len(names) > 1
    ]


def _plain(name: str) -> str:
    """Return the name without case, spaces, underscores and hyphens, unless nothing is left of it."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in folded if not letter.isspace() and letter not in "_-") or name


def _joined(task: TaskImages) -> list[Finding]:
    """Find folders side by side whose names are equal in Unicode's NFC; `data.folder` takes them as one class."""
    spellings: dict[tuple[str, str], set[str]] = defaultdict(set)
    if all(file.name.isascii() for split in task.splits.values() for file in split.files):
        return []
    for split in task.splits.values():
        for file, label in zip(split.files, split.labels, strict=True):
            name, parts = task.classes[label], file.name.split("/")
            place = next((i for i, part in enumerate(parts) if unicodedata.normalize("NFC", part) == name), None)
            if place is not None:
                spellings[("/".join(parts[:place]), name)].add("/".join(parts[: place + 1]))
    return [
        Finding(
            "merged-names",
            f"{len(folders)} folders are named {name!r}, spelled in different ways of Unicode; they were taken as "
            "one class; if they are not one, rename one",
            tuple(sorted(folders)),
        )
        for (_, name), folders in spellings.items()
        if len(folders) > 1
    ]


def check_balance(task: TaskImages) -> list[Finding]:
    """Find a class with many times the training images of another."""
    counts: NDArray[np.int64] = np.bincount(task.splits["train"].labels, minlength=len(task.classes))
    if len(counts) < 2 or min(counts) == 0 or max(counts) < UNBALANCED * min(counts):
        return []
    most, least = int(np.argmax(counts)), int(np.argmin(counts))
    text = (
        f"{task.classes[most]!r} has {counts[most]:,} training images, {task.classes[least]!r} {counts[least]:,} "
        f"({counts[most] / counts[least]:.0f} × as many): answers lean towards the larger; add images of the other"
    )
    return [Finding("unbalanced", text, (task.classes[most], task.classes[least]))]


def twins_across_splits(twins: TaskTwins, totals: dict[str, int], left_out: bool = False) -> list[Finding]:
    """Say which images of a later split lie in an earlier one; those under two classes are said elsewhere."""
    are = "left out: they are" if left_out else "are"
    findings = []
    two_classes = set(twins.across_classes)
    for words, files in twins.across_splits.items():
        later, _, earlier = words.split()
        leaked = tuple(dict.fromkeys(file for file in files if file not in two_classes))
        if leaked:
            text = (
                f"{len(leaked):,} of {totals[later]:,} {SPLIT_WORDS[later]} images {are} {SPLIT_WORDS[earlier]} "
                f"images too: {_with_originals(leaked, twins)}"
            )
            findings.append(Finding("twins-across-splits", text, leaked))
    return findings


def twins_across_classes(twins: TaskTwins, left_out: bool = False) -> list[Finding]:
    """Say which images lie under two classes."""
    files = tuple(dict.fromkeys(twins.across_classes))
    if not files:
        return []
    lie = "left out: they lie" if left_out else "lie"
    text = f"{len(files):,} images {lie} in two classes, neither of them sure: {_with_originals(files, twins)}"
    return [Finding("twins-across-classes", text, files)]


def _with_originals(files: Sequence[str], twins: TaskTwins) -> str:
    return some(f"{file} (= {twins.originals[file]})" for file in files)


def unreadable(reasons: Sequence[tuple[str, str]]) -> list[Finding]:
    """Say which files cannot be read, and why; each is given with its reason."""
    if not reasons:
        return []
    images = "1 image that cannot" if len(reasons) == 1 else f"{len(reasons):,} images that cannot"
    text = f"{images} be read: {some(f'{name} ({reason})' for name, reason in reasons)}"
    return [Finding("unreadable", text, tuple(name for name, _ in reasons))]
