"""Images that lie there more than once: in a split, in two splits, under two classes, in two tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from skillmesh.data.twins import TaskTwins, equal_groups
from skillmesh_challenge.data.looks import Look


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
