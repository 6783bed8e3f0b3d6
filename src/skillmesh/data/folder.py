"""Read a task from a folder or zip: `class/…` or `train|val|test/class/…`; create the splits that are missing."""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.formats import IMAGE_SUFFIXES, Skipped, split_by_reading, suffix_of
from skillmesh.data.images import Pixels, UnreadableImageError, decode
from skillmesh.data.inputs import AnyImage
from skillmesh.data.sources import Source, files_below, open_source
from skillmesh.errors import DataError, FolderOfTasksError, option

SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""Names that a split's folder may have, in upper or lower case."""
SHARE = {"val": 0.15, "test": 0.2}
"""Share of a class's images, 0 to 1, that a split takes if the folder has no such split."""


@dataclass(frozen=True)
class ImageFile:
    """One image file in a folder or zip, not decoded yet."""

    source: Source
    name: str

    def size(self) -> int:
        return self.source.size(self.name)

    def content(self) -> bytes:
        try:
            return self.source.read(self.name)
        except OSError as error:
            raise UnreadableImageError(f"{self.name} cannot be read: {error}") from error

    def pixels(self, content: bytes, size: int) -> Pixels:
        return decode(content, size)


@dataclass(frozen=True)
class Split:
    """Images, with the index of the class of each."""

    files: tuple[AnyImage, ...]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.files)


@dataclass(frozen=True)
class TaskImages:
    """A task's images by class and split, on disk or elsewhere; not decoded yet."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, Split]
    notes: tuple[str, ...]
    """Messages for the user about what was left out and why."""
    split_folders: bool = False
    """Whether the task has folders for splits; otherwise all splits except `train` were cut from its images."""
    skipped: Skipped = field(default_factory=Skipped)
    """Files that are not images, or whose format cannot be read here."""
    tasks_inside: tuple[str, ...] = ()
    """Folders and zips inside that look like tasks, if this looks like a folder of tasks."""


def open_task(
    path: str | Path,
    *,
    name: str | None = None,
    hold_out: Collection[str] = ("val",),
    seed: int = 0,
    one_task: bool = False,
) -> TaskImages:
    """Return the task at `path`, with its classes and splits.

    Parameters
    ----------
    hold_out
        Splits that are cut from the training images, class by class, if the folder has none. Learning needs no
        test images, so it asks for `val` only and loses no others; measuring asks for `test` too.
    one_task
        Treat the folders directly inside as classes, even if they look like tasks.

    Raises
    ------
    FolderOfTasksError
        The folders in `path` hold no images themselves, only folders with images: task/class/image.jpg.
    """
    task = survey_task(path, name=name, hold_out=hold_out, seed=seed)
    if not one_task:
        refuse_folder_of_tasks(task, path)
    refuse_too_few_classes(task, path)
    return task


def survey_task(
    path: str | Path,
    *,
    name: str | None = None,
    hold_out: Collection[str] = ("val",),
    seed: int = 0,
    val_as_test: bool = False,
) -> TaskImages:
    """Return a task like `open_task`, even one that cannot be learned (no class, or one), to report all faults.

    Parameters
    ----------
    val_as_test
        Use the images of `val` for `test` if the test images have no labels.
    """
    path = as_path(path)
    source = open_source(path)
    notes: list[str] = []
    files = _visible_files(source, notes)
    by_split = _sort_into_splits(source, files, notes)
    classes = tuple(sorted(by_split["train"]))
    for split in ("val", "test"):
        _drop_foreign_classes(by_split[split], split, classes, notes)
    if val_as_test and not any(by_split["test"].values()):
        by_split["val"], by_split["test"] = by_split["test"], by_split["val"]
    for split in ("val", "test"):
        if not any(by_split[split].values()) and split in hold_out:
            cut_split(by_split, split, seed)
    splits = {split: _as_split(source, by_class, classes) for split, by_class in by_split.items()}
    label = nfc(name or task_name(path))
    return TaskImages(label, classes, splits, tuple(notes), files.has_splits, files.skipped, _tasks_inside(files))


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return a `Path`; raise `DataError` if the argument is not a path."""
    if not isinstance(path, str | os.PathLike):
        raise DataError(
            f"found an object of type {type(path).__name__} as a task, expected the path of a folder or zip with "
            "class/image.jpg inside; save the images in such a folder and pass its path"
        )
    return Path(path)


def task_name(path: Path) -> str:
    """Return a task's name: that of its folder, or of its zip without the extension."""
    if path.is_file():
        return nfc(path.stem)
    return nfc(path.name if path.name not in {"", ".."} else path.resolve().name)


def folders_to_learn(path: Path) -> list[Path]:
    """Return the folders with images, and the zips, in a folder of tasks; raise `DataError` if it has none."""
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; expected a folder with task/class/image.jpg; unpack a zip first")
    images_here, others = split_by_reading(n for n in files_below(path) if not any(map(_is_hidden, n.split("/"))))
    wrapped = _common_folder(images_here)
    images = ["/".join(PurePosixPath(name).parts[len(wrapped) :]) for name in images_here]
    deep = {name.split("/")[0] for name in images if name.count("/") > 1}
    zips = {name for name in others if "/" not in name and suffix_of(name) == ".zip"}
    if not deep and not zips:
        raise DataError(
            f"no task was found in {path}; expected task/class/image.jpg or zips of tasks inside; if it is a task "
            f"itself, {option('give it to agent.learn', 'learn it without --each-folder')}"
        )
    shallow = {name.split("/")[0] for name in images if name.count("/") == 1}
    return [*(path.joinpath(*wrapped, name) for name in sorted(deep | shallow)), *(path / z for z in sorted(zips))]


def find_tasks(paths: Collection[str | Path]) -> list[Path]:
    """Return the tasks at several paths: each path is a task itself, or a folder of tasks.

    A folder is a task if there are images one level down (or below `train`), otherwise a folder of tasks.
    """
    tasks = [task for path in paths for task in tasks_at(Path(path))]
    if not tasks:
        raise DataError(
            f"no task was found in {', '.join(map(str, paths))}; expected folders or zips with class/image.jpg "
            "or train/class/image.jpg inside"
        )
    _refuse_equal_names(tasks)
    return tasks


def tasks_at(path: Path) -> list[Path]:
    """Return the task or tasks at one path; an empty list for a folder without tasks."""
    if not path.exists():
        raise DataError(f"there is nothing at {path}; expected a task or a folder of tasks")
    if path.is_file() or _looks_like_a_task(path):
        return [path]
    children = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    return [p for p in children if p.suffix.lower() == ".zip" or (p.is_dir() and _looks_like_a_task(p))]


def _looks_like_a_task(folder: Path) -> bool:
    children = [p for p in folder.iterdir() if p.is_dir() and not _is_hidden(p.name)]
    return any(_split_of(p.name) == "train" for p in children) or any(
        suffix_of(f.name) in IMAGE_SUFFIXES for p in children for f in p.iterdir() if f.is_file()
    )


def _refuse_equal_names(tasks: list[Path]) -> None:
    by_name: dict[str, Path] = {}
    for task in tasks:
        name = task_name(task)
        if (other := by_name.setdefault(name, task)) is not task:
            raise DataError(f"two tasks are named {name!r}: {other} and {task}; rename one")


ByClass = dict[str, list[str]]
Item = TypeVar("Item", str, int)


@dataclass(frozen=True)
class _Files:
    """The files in a source."""

    images: dict[str, tuple[str, ...]]
    """Images that can be read here, each with the parts of its path inside the folder that contains them all."""
    skipped: Skipped
    zips: tuple[str, ...]
    wrapped: bool
    has_splits: bool


def _visible_files(source: Source, notes: list[str]) -> _Files:
    """Return the images that can be read here; add notes about hidden and skipped files."""
    names = source.names()
    visible = [n for n in names if not any(_is_hidden(part) for part in PurePosixPath(n).parts)]
    images, others = split_by_reading(visible)
    prefix = _common_folder(images + [n for n in others if suffix_of(n) in IMAGE_SUFFIXES])
    skipped = Skipped.of(others)
    _note(notes, len(names) - len(visible), "hidden file(s) ignored")
    if skipped:
        notes.append(str(skipped))
    inside = {n: PurePosixPath(n).parts[len(prefix) :] for n in visible}
    has_splits = any(len(parts) > 2 and _split_of(parts[0]) == "train" for parts in inside.values())
    zips = tuple(n for n in others if "/" not in n and suffix_of(n) == ".zip")
    return _Files({n: inside[n] for n in images}, skipped, zips, bool(prefix), has_splits)


def _sort_into_splits(source: Source, files: _Files, notes: list[str]) -> dict[str, ByClass]:
    """Group image names by split and class; add a note about images that are in neither."""
    has_splits = files.has_splits
    by_split: dict[str, ByClass] = {split: defaultdict(list) for split in ("train", "val", "test")}
    loose = 0
    for name, parts in files.images.items():
        if has_splits and len(parts) > 2 and (split := _split_of(parts[0])):
            by_split[split][nfc(parts[1])].append(name)
        elif not has_splits and len(parts) > 1:
            by_split["train"][nfc(parts[0])].append(name)
        else:
            loose += 1
    _note(notes, loose, "image(s) ignored that are not in a class folder")
    if not files.wrapped and not has_splits:
        empty = [f for f in source.folders() if nfc(f) not in by_split["train"] and not _is_hidden(f)]
        if empty:
            notes.append(f"folder(s) without images ignored: {', '.join(empty)}")
    return by_split


def _tasks_inside(files: _Files) -> tuple[str, ...]:
    """Return the folders and zips that look like tasks, if the whole source looks like a folder of tasks.

    It does if no top-level folder holds an image itself and at least one of them could be a task: it has two or
    more folders with images, or one for training. A single folder inside each, as in class/images/1.jpg, does not
    make it a task. If there are no images at all, zips count as tasks.
    """
    below: dict[str, set[str]] = defaultdict(set)
    trained = False
    for parts in files.images.values():
        if len(parts) == 2:
            return ()
        if len(parts) > 2:
            below[nfc(parts[0])].add(parts[1])
            trained = trained or (len(parts) > 3 and _split_of(parts[1]) == "train")
    if not below:
        return files.zips
    if len(below) < 2 or any(map(_split_of, below)):
        return ()
    if not trained and not any(len([f for f in folders if not _split_of(f)]) > 1 for folders in below.values()):
        return ()
    return (*sorted(below), *files.zips)


def _common_folder(images: Iterable[str]) -> tuple[str, ...]:
    """Return the folder(s) that contain all classes, as zips often have; never a split or the only class."""
    folders = [PurePosixPath(n).parent.parts for n in images]
    prefix: tuple[str, ...] = ()
    while any(len(f) > len(prefix) + 1 for f in folders):
        next_down = {f[len(prefix)] for f in folders if len(f) > len(prefix)}
        if len(next_down) > 1 or any(map(_split_of, next_down)):
            break
        prefix += (*next_down,)
    return prefix


def refuse_folder_of_tasks(task: TaskImages, path: str | Path) -> None:
    """Raise `FolderOfTasksError` for what looks like several tasks, before anything is learned from it."""
    if not (inside := task.tasks_inside):
        return
    names = ", ".join(inside[:10]) + (f" and {len(inside) - 10} more" if len(inside) > 10 else "")
    raise FolderOfTasksError(
        f"{path} looks like a folder of tasks, not like one task: found {names}, and no image right inside these; "
        "expected class/image.jpg; learn each of them separately, or pass one_task=True if they are the classes "
        "of one task",
        inside,
    )


def refuse_too_few_classes(task: TaskImages, path: str | Path) -> None:
    if len(task.classes) > 1:
        return
    skipped = f"; {task.skipped}" if task.skipped else ""
    if task.classes:
        raise DataError(
            f"{path} has one class only ({task.classes[0]!r}); a task needs two or more class folders with images"
            f"{skipped}"
        )
    if task.skipped.readable_with_more:
        raise DataError(f"no class folder in {path} holds an image that can be read here: {task.skipped}")
    raise DataError(
        f"{path} holds no class folders with images; expected class/image.jpg or train/class/image.jpg inside"
        f"{skipped}"
    )


def _drop_foreign_classes(by_class: ByClass, split: str, classes: tuple[str, ...], notes: list[str]) -> None:
    foreign = sorted(set(by_class) - set(classes))
    for name in foreign:
        del by_class[name]
    if foreign:
        notes.append(f"class(es) of {split} ignored that are not in train: {', '.join(foreign)}")


def cut_split(by_split: Mapping[str, dict[str, list[Item]]], split: str, seed: int) -> None:
    """Move a random share (by `seed`) of every class's training images to `split`; keep at least one.

    Images are given as anything that can be sorted: file names, or positions in a dataset.
    """
    for index, (name, files) in enumerate(sorted(by_split["train"].items())):
        share = round(len(files) * SHARE[split])
        if len(files) >= 3:
            share = max(share, 1)
        share = min(share, len(files) - 1)
        order = np.random.default_rng([seed, index, len(split)]).permutation(len(files))
        by_split[split][name] = sorted(files[i] for i in order[:share])
        by_split["train"][name] = sorted(files[i] for i in order[share:])


def _as_split(source: Source, by_class: ByClass, classes: tuple[str, ...]) -> Split:
    files = [ImageFile(source, name) for c in classes for name in by_class.get(c, [])]
    labels = [i for i, c in enumerate(classes) for _ in by_class.get(c, [])]
    return Split(tuple(files), np.array(labels, dtype=np.int64))


def _split_of(folder: str) -> str | None:
    return SPLIT_FOLDERS.get(folder.lower())


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part == "__MACOSX"


def nfc(name: str) -> str:
    """Return a name in Unicode form NFC, since file systems store accents in different ways."""
    return unicodedata.normalize("NFC", name)


def _note(notes: list[str], count: int, text: str) -> None:
    if count:
        notes.append(f"{count} {text}")
