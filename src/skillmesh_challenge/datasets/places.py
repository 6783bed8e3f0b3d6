"""Where the user says that tasks are: a path, or a known dataset's name and its folder, `skill102:DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skillmesh.errors import DataError
from skillmesh_challenge.datasets.collection import COLLECTIONS, collection


@dataclass(frozen=True)
class DatasetPlace:
    """A folder or zip, and the dataset that it is said to hold, if any."""

    path: Path
    dataset: str | None = None


def places(words: Sequence[str | Path], dataset: str | None = None) -> list[DatasetPlace]:
    """Read `DIR` and `NAME:DIR`; `dataset` names that of every path that names none."""
    if dataset is not None:
        collection(dataset)  # a wrong name is said here, before any path is looked at
    found = []
    for word in map(str, words):
        name, colon, rest = word.partition(":")
        named = bool(colon) and name in COLLECTIONS and not Path(word).exists()
        if named and dataset not in (None, name):
            raise DataError(f"{word} names another dataset than --dataset {dataset}; leave one of them out")
        found.append(DatasetPlace(Path(rest), name) if named else DatasetPlace(Path(word), dataset))
    return found
