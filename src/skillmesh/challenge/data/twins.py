"""Images that lie there more than once: in a split, in two splits, under two classes, in two tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from skillmesh.challenge.data.looks import Look

SPLITS = ("train", "val", "test")


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


@dataclass
class TaskTwins:
    """One task's images that lie there more than once."""

    in_split: list[str] = field(default_factory=list)
    across_splits: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By words like "test in train": the files of the later split."""
    across_classes: list[str] = field(default_factory=list)
    elsewhere: int = 0


def find_twins(looks: Iterable[Look]) -> list[Twins]:
    """Group images by their pixels; equal bytes have equal pixels."""
    groups: dict[bytes, list[Look]] = defaultdict(list)
    for look in looks:
        if not look.reason:
            groups[look.pixels].append(look)
    return [Twins(tuple(group)) for group in groups.values() if len(group) > 1]


def by_task(twins: Iterable[Twins]) -> dict[int, TaskTwins]:
    """Sort what was found by task."""
    found: dict[int, TaskTwins] = defaultdict(TaskTwins)
    for group in twins:
        tasks = {look.task for look in group.looks}
        for task in tasks:
            mine = [look for look in group.looks if look.task == task]
            _note(mine, found[task])
            found[task].elsewhere += len(mine) if len(tasks) > 1 else 0
    return found


def _note(looks: list[Look], found: TaskTwins) -> None:
    """Note what one picture's files in one task mean for it."""
    files = {split: [look.file for look in looks if look.split == split] for split in SPLITS}
    for split in SPLITS:
        found.in_split += files[split][1:]
    for earlier, later in combinations(SPLITS, 2):
        if files[earlier] and files[later]:
            found.across_splits[f"{later} in {earlier}"] += files[later]
    if len({look.label for look in looks}) > 1:
        found.across_classes += [look.file for look in looks]


def shared_by_tasks(twins: Iterable[Twins]) -> Counter[tuple[int, int]]:
    """How many pictures each two tasks share."""
    return Counter(
        pair for group in twins for pair in combinations(sorted({look.task for look in group.looks}), 2)
    )
