"""Images that lie in a task more than once: in one split, in two splits, under two classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

SPLITS = ("train", "val", "test")
SPLIT_WORDS = {"train": "training", "val": "validation", "test": "test"}


class Placed(Protocol):
    """Where an image lies in its task."""

    @property
    def split(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def file(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """The plainest `Placed`."""

    split: str
    label: str
    file: str


@dataclass
class TaskTwins:
    """One task's images that lie there more than once."""

    in_split: list[str] = field(default_factory=list)
    across_splits: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By words like "test in train": the files of the later split."""
    across_classes: list[str] = field(default_factory=list)
    elsewhere: int = 0
    """Number of images that another task has too."""
    originals: dict[str, str] = field(default_factory=dict)
    """For a file in `across_splits` or `across_classes`, one that shows the same picture."""

    def note(self, same: Sequence[Placed]) -> None:
        """Note what it means that these files show the same picture."""
        files = {split: [place.file for place in same if place.split == split] for split in SPLITS}
        for split in SPLITS:
            self.in_split += files[split][1:]
        for earlier, later in combinations(SPLITS, 2):
            if files[earlier] and files[later]:
                self.across_splits[f"{later} in {earlier}"] += files[later]
                self.originals |= dict.fromkeys(files[later], files[earlier][0])
        if len({place.label for place in same}) > 1:
            self.across_classes += [place.file for place in same]
            for place in same:
                other = next(twin.file for twin in same if twin.label != place.label)
                self.originals[place.file] = other


def equal_groups(keys: Iterable[bytes]) -> list[list[int]]:
    """Return the positions of keys that are there more than once, those of each key together."""
    positions: dict[bytes, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        positions[key].append(index)
    return [group for group in positions.values() if len(group) > 1]
