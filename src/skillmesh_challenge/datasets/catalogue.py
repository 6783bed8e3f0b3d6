"""The catalogue that the authors of SKILL-102 keep beside their images: which file is of which class and split.

Their published loader reads it like this: `0_collection/all_images.sqlite` has one table `images` with the columns
dataset, relative_path (below the dataset's folder), class_id, set_id (0 train, 1 validation, 2 test) and problem
(0: none).
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from skillmesh.data.folder import ImageFile, Split, TaskImages
from skillmesh.data.sources import FolderSource
from skillmesh.errors import DataError

FILE = Path("0_collection") / "all_images.sqlite"
SPLITS = ("train", "val", "test")
IMAGES = (
    "SELECT set_id, class_id, relative_path FROM images WHERE dataset = ? AND problem = 0 ORDER BY relative_path"
)


def has_catalogue(folder: Path) -> bool:
    return (folder / FILE).is_file()


def catalogued_names(folder: Path) -> set[str]:
    """Names of all datasets that the catalogue lists."""
    return {str(name) for (name,) in _query(folder, "SELECT DISTINCT dataset FROM images", ())}


def open_catalogued(folder: Path, name: str) -> TaskImages:
    """A dataset's task; its classes are named by their numbers, since the catalogue has no other names."""
    found: dict[str, list[tuple[int, str]]] = {split: [] for split in SPLITS}
    for split, label, path in _query(folder, IMAGES, (name,)):
        if split in range(len(SPLITS)):
            found[SPLITS[split]].append((int(label), str(path).lstrip("/")))
    classes = sorted({label for label, _ in found["train"]})
    source = FolderSource(folder / name)
    splits = {split: _split(source, images, classes) for split, images in found.items()}
    return TaskImages(name, tuple(map(str, classes)), splits, (), split_folders=True)


def _split(source: FolderSource, images: list[tuple[int, str]], classes: list[int]) -> Split:
    by_class: dict[int, list[str]] = defaultdict(list)
    for label, path in images:
        by_class[label].append(path)
    files = [ImageFile(source, path) for label in classes for path in by_class[label]]
    labels = [index for index, label in enumerate(classes) for _ in by_class[label]]
    return Split(tuple(files), np.array(labels, dtype=np.int64))


def _query(folder: Path, query: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
    path = folder / FILE
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise DataError(
            f"{path} cannot be read ({error}); expected SQLite with a table images (dataset, relative_path, "
            "class_id, set_id, problem): unpack the download again, or lay the images out in class folders"
        ) from error
