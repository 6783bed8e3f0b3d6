"""Open a collection of datasets: find them in a folder, subsample them, compare them with the published list."""

from __future__ import annotations

import csv
import sqlite3
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.folder import (
    ImageFile,
    Split,
    TaskImages,
    find_tasks,
    open_task,
    refuse_too_few_classes,
    survey_task,
)
from skillmesh.data.sources import FolderSource
from skillmesh.errors import DataError


@dataclass(frozen=True)
class DatasetRow:
    """One dataset in the list of a collection, with its published sizes."""

    name: str
    classes: int
    train: int
    val: int
    test: int


@dataclass(frozen=True)
class Collection:
    """A benchmark that consists of datasets."""

    name: str
    title: str
    table: str
    """Name of the list's file in this package."""
    count: int
    """Number of rows, from the top of the list, that belong to the collection."""
    source: str
    """Where to download it."""
    layout: str
    """Expected layout of its files."""
    subsampled: bool = False
    """Whether classes and images are subsampled as in the SKILL paper."""
    val_as_test: bool = False
    """Whether its test images have no labels, so that those of `val` are used for testing."""
    other_names: dict[str, str] = field(default_factory=dict)
    """Alternative folder names, by the name of the dataset."""

    @cached_property
    def rows(self) -> tuple[DatasetRow, ...]:
        text = files("skillmesh_challenge").joinpath(self.table).read_text()
        sizes = ("num_classes", "train_size", "val_size", "test_size")
        rows = [
            DatasetRow(row["task_name"], *(int(row[size]) for size in sizes))
            for row in csv.DictReader(text.splitlines())
        ]
        return tuple(rows[: self.count])

    def folder_names(self, row: DatasetRow) -> tuple[str, ...]:
        return (row.name, self.other_names[row.name]) if row.name in self.other_names else (row.name,)


SKILL102 = Collection(
    name="skill102",
    title="SKILL-102, the paper's benchmark",
    table="skill102.csv",
    count=102,  # of 107; with 500 classes of Insecta, these have the paper's 5,033 classes
    source="https://github.com/gyhandy/Shared-Knowledge-Lifelong-Learning",
    layout=(
        "DIR/<dataset>/{train,val,test}/<class>/… or DIR/<dataset>.zip with that inside, or the authors' "
        "collection: DIR/<dataset>/… listed by DIR/0_collection/all_images.sqlite"
    ),
    subsampled=True,
)
DECATHLON = Collection(
    name="decathlon",
    title="Visual Domain Decathlon",
    table="decathlon.csv",
    count=10,
    source="https://www.robots.ox.ac.uk/~vgg/decathlon/ (ImageNet at 72 pixels: https://image-net.org)",
    layout="DIR/<dataset>/{train,val}/<class number>/…, as its .tar files unpack; its test images have no labels",
    val_as_test=True,
    other_names={"imagenet12": "imagenet"},
)
COLLECTIONS = {known.name: known for known in (SKILL102, DECATHLON)}


def collection(name: str) -> Collection:
    if name not in COLLECTIONS:
        raise DataError(f"there is no dataset {name!r}; expected one of {', '.join(COLLECTIONS)}")
    return COLLECTIONS[name]


# Where tasks are: a path, or the name of a known collection and its folder, `skill102:DIR`.


@dataclass(frozen=True)
class DatasetPlace:
    """A folder or zip, and the collection that the user says it contains, if any."""

    path: Path
    dataset: str | None = None


def places(words: Sequence[str | Path], dataset: str | None = None) -> list[DatasetPlace]:
    """Parse `DIR` and `NAME:DIR`; `dataset` is the collection of every path that names none."""
    if dataset is not None:
        collection(dataset)  # raises on a wrong name, before any path is checked
    parsed = []
    for word in map(str, words):
        name, colon, rest = word.partition(":")
        named = bool(colon) and name in COLLECTIONS and not Path(word).exists()
        if named and dataset not in (None, name):
            raise DataError(f"{word} names another dataset than --dataset {dataset}; use only one of the two")
        parsed.append(DatasetPlace(Path(rest), name) if named else DatasetPlace(Path(word), dataset))
    return parsed


# Subsample a task as the paper does: round(54000/c) training images of each class, round(6000/c) test images.

TOTALS = {"train": 54_000, "val": 6_000, "test": 6_000}
MAX_CLASSES = 500
"""Number of classes drawn from datasets with more (in the paper only iNaturalist Insecta)."""

Rule = Literal["appendix", "list"]
"""Which splits are subsampled.

`appendix`: every split, as in the paper's appendix A. `list`: only splits with more than 54,000 (6,000) images, as
in the authors' published code; only this rule gives the sizes in the paper's list.
"""


def subsample(task: TaskImages, *, rule: Rule = "appendix", seed: int = 0) -> TaskImages:
    """Keep at most 500 classes, and at most round(total / classes) images of each in each split."""
    key = [seed, zlib.crc32(task.name.encode())]
    kept = _draw(np.arange(len(task.classes)), MAX_CLASSES, key)
    splits = {}
    for index, (split, part) in enumerate(task.splits.items()):
        limit = None if rule == "list" and len(part) <= TOTALS[split] else round(TOTALS[split] / max(len(kept), 1))
        splits[split] = _subsampled(part, kept, limit, [*key, index])
    return replace(task, classes=tuple(task.classes[i] for i in kept), splits=splits)


def _subsampled(part: Split, classes: NDArray[np.int64], limit: int | None, key: list[int]) -> Split:
    """Return images of the given classes, with new class numbers; each class is sampled separately."""
    files, labels = [], []
    for label, old in enumerate(classes):
        mine = _draw(np.flatnonzero(part.labels == old), limit, [*key, int(old)])
        files += [part.files[i] for i in mine]
        labels += [label] * len(mine)
    return Split(tuple(files), np.array(labels, dtype=np.int64))


def _draw(items: NDArray[np.int64], limit: int | None, key: list[int]) -> NDArray[np.int64]:
    """Return `limit` random items in their order, or all items if there are fewer."""
    if limit is None or len(items) <= limit:
        return items
    return np.sort(np.random.default_rng(key).choice(items, limit, replace=False))


# The authors of SKILL-102 keep a catalogue beside their images, which gives the class and split of each file.
#
# Their published loader shows its format: `0_collection/all_images.sqlite` has one table `images` with the
# columns dataset, relative_path (below the dataset's folder), class_id, set_id (0 train, 1 validation, 2 test) and
# problem (0: none).

FILE = Path("0_collection") / "all_images.sqlite"
SPLITS = ("train", "val", "test")
IMAGES = (
    "SELECT set_id, class_id, relative_path FROM images WHERE dataset = ? AND problem = 0 ORDER BY relative_path"
)


def has_catalogue(folder: Path) -> bool:
    return (folder / FILE).is_file()


def catalogued_names(folder: Path) -> set[str]:
    """Return the names of all datasets that the catalogue lists."""
    return {str(name) for (name,) in _query(folder, "SELECT DISTINCT dataset FROM images", ())}


def open_catalogued(folder: Path, name: str) -> TaskImages:
    """Return the task of a dataset; its classes are named by number, as the catalogue has no other names."""
    images_of: dict[str, list[tuple[int, str]]] = {split: [] for split in SPLITS}
    for split, label, path in _query(folder, IMAGES, (name,)):
        if split in range(len(SPLITS)):
            images_of[SPLITS[split]].append((int(label), str(path).lstrip("/")))
    classes = sorted({label for label, _ in images_of["train"]})
    source = FolderSource(folder / name)
    splits = {split: _split(source, images, classes) for split, images in images_of.items()}
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
            "class_id, set_id, problem): unpack the download again, or arrange the images in class folders"
        ) from error


@dataclass(frozen=True)
class ArchiveMember:
    """One dataset of a collection as found in a folder, with its faults."""

    row: DatasetRow
    path: Path
    task: TaskImages | None
    """None if it is missing or cannot be read."""
    fault: str = ""
    """Why it cannot be opened, or is not the dataset in the list."""
    difference: str = ""
    """Sizes that differ from the list's."""

    @property
    def missing(self) -> bool:
        return self.task is None and not self.fault


def open_collection(
    name: str, folder: str | Path, *, seed: int = 0, rule: Rule = "appendix", partial: bool = False
) -> list[TaskImages]:
    """Open the datasets of a collection in its order, subsampled by the seed if the collection asks for it.

    Parameters
    ----------
    partial
        Accept missing datasets and other numbers of classes than listed; otherwise both are refused.
    """
    members = survey_collection(name, Path(folder), seed=seed, rule=rule)
    missing = missing_words(collection(name), Path(folder), members)
    faults = [f"{member.row.name}: {member.fault}" for member in members if member.fault]
    tasks = [_with_notes(member) for member in members if member.task is not None]
    broken = any(member.fault and member.task is None for member in members)
    if (not partial and (missing or faults)) or broken or not tasks:
        raise DataError("\n".join(filter(None, [missing, *faults])))
    return tasks


def open_tasks(
    words: Sequence[str | Path],
    *,
    dataset: str | None = None,
    seed: int = 0,
    rule: Rule = "appendix",
    partial: bool = False,
) -> list[TaskImages]:
    """Open tasks, folders of tasks and `NAME:DIR`, in the order given."""
    tasks: list[TaskImages] = []
    for place in places(words, dataset):
        if place.dataset is not None:
            tasks += open_collection(place.dataset, place.path, seed=seed, rule=rule, partial=partial)
        else:
            tasks += [
                open_task(path, hold_out=("val", "test"), seed=seed, one_task=True)
                for path in find_tasks([place.path])
            ]
    twice = sorted(name for name, count in Counter(task.name for task in tasks).items() if count > 1)
    if twice:
        raise DataError(f"several tasks are named {', '.join(twice)}; rename one, or give its folder only once")
    return tasks


def task_paths(words: Sequence[str | Path], *, dataset: str | None = None) -> list[Path]:
    """Return the paths of the tasks that `open_tasks` opens, without missing ones."""
    paths: list[Path] = []
    for place in places(words, dataset):
        if place.dataset is None:
            paths += find_tasks([place.path])
        else:
            known = collection(place.dataset)
            paths += [path for row in known.rows if (path := _place_of(known, row, place.path)) is not None]
    return paths


def survey_collection(name: str, folder: Path, *, seed: int = 0, rule: Rule = "appendix") -> list[ArchiveMember]:
    """Find every dataset of the list, in its order; raise a DataError only if the folder does not exist."""
    known = collection(name)
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; {how_to_get(known)}")
    catalogued = catalogued_names(folder) if known.subsampled and has_catalogue(folder) else set()
    return [_survey(known, row, folder, catalogued, seed, rule) for row in known.rows]


def _survey(
    known: Collection, row: DatasetRow, folder: Path, catalogued: set[str], seed: int, rule: Rule
) -> ArchiveMember:
    path = _place_of(known, row, folder)
    if path is None:
        return ArchiveMember(row, folder / row.name, None)
    try:
        if row.name in catalogued:
            task = open_catalogued(folder, row.name)
        else:
            hold_out = ("val",) if known.val_as_test else ("val", "test")
            task = survey_task(path, name=row.name, hold_out=hold_out, seed=seed, val_as_test=known.val_as_test)
        refuse_too_few_classes(task, path)
    except (DataError, OSError) as error:
        return ArchiveMember(row, path, None, str(error))
    fault = _fault(row, len(task.classes), known.subsampled)
    if known.subsampled:
        task = subsample(task, rule=rule, seed=seed)
    return ArchiveMember(row, path, task, fault, _difference(known, row, task))


def _place_of(known: Collection, row: DatasetRow, folder: Path) -> Path | None:
    names = known.folder_names(row)
    candidates = [folder / name for name in names] + [folder / f"{name}.zip" for name in names]
    return next((path for path in candidates if path.exists()), None)


def _fault(row: DatasetRow, classes: int, subsampled: bool) -> str:
    allowed = {row.classes, min(row.classes, MAX_CLASSES) if subsampled else row.classes}
    if classes in allowed:
        return ""
    return f"{classes:,} classes were found, the list says {row.classes:,}; complete it, or use --partial"


def _difference(known: Collection, row: DatasetRow, task: TaskImages) -> str:
    """Return how sizes differ from the list's. If `val` is the test split, `val` was held out from `train`."""
    sizes_here = {split: len(part) for split, part in task.splits.items()}
    listed = {"train": row.train, "val": row.val, "test": row.test}
    if known.val_as_test:
        sizes_here = {"train and val": sizes_here["train"] + sizes_here["val"], "test": sizes_here["test"]}
        listed = {"train and val": row.train, "test": row.val}
    other = [split for split in sizes_here if sizes_here[split] != listed[split]]
    sizes = ", ".join(
        f"{sizes_here[split]:,} images in {split} (the list says {listed[split]:,})" for split in other
    )
    return f"other sizes than the list's: {sizes}" if other else ""


def _with_notes(member: ArchiveMember) -> TaskImages:
    assert member.task is not None
    return replace(member.task, notes=(*member.task.notes, *filter(None, (member.fault, member.difference))))


def missing_words(known: Collection, folder: Path, members: list[ArchiveMember]) -> str:
    """Return a message with the missing datasets, those found, and where to get the missing ones."""
    missing = [member.row.name for member in members if member.missing]
    if not missing:
        return ""
    present = [member.row.name for member in members if not member.missing]
    return (
        f"{known.name} at {folder}: {len(missing)} of {len(members)} datasets are missing ({', '.join(missing)}); "
        f"found {len(present)} ({', '.join(present) or 'none'}); {how_to_get(known)}; "
        "--partial continues with those found"
    )


def how_to_get(known: Collection) -> str:
    return f"get {known.title} from {known.source}; expected {known.layout}"
