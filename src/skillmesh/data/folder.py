"""Read a task: `class/…` or `train|val|test/class/…`, in a folder or a zip; make the splits that are missing."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.images import Pixels, UnreadableImageError, decode
from skillmesh.data.sources import Source, open_source
from skillmesh.errors import DataError

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""Names that a split's folder may have, in any case."""
SHARE = {"val": 0.15, "test": 0.2}
"""The share of a class's images that a split takes where the folder brings none."""


@dataclass(frozen=True)
class ImageFile:
    """One image, still encoded, where it lies."""

    source: Source
    name: str

    def content(self) -> bytes:
        try:
            return self.source.read(self.name)
        except OSError as error:
            raise UnreadableImageError(f"{self.name} cannot be read: {error}") from error

    def pixels(self, content: bytes, size: int) -> Pixels:
        return decode(content, size)


@dataclass(frozen=True)
class Split:
    """Images with the index of each one's class."""

    files: tuple[ImageFile, ...]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.files)


@dataclass(frozen=True)
class TaskFolder:
    """A task as found on disk; nothing is decoded yet."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, Split]
    notes: tuple[str, ...]
    """What was left out and why, for the user to read."""
    split_folders: bool = False
    """Whether it came with folders for splits; otherwise all splits but `train` were cut from its images."""


def open_task(
    path: str | Path, *, name: str | None = None, hold_out: Collection[str] = ("val",), seed: int = 0
) -> TaskFolder:
    """Find classes and splits of the task at `path`.

    Parameters
    ----------
    hold_out
        Splits that are cut from the training images, class by class, where the folder brings none. Learning
        needs no test images of its own, so it asks for `val` alone and loses none; measuring asks for `test` too.
    """
    task = survey_task(path, name=name, hold_out=hold_out, seed=seed)
    refuse_too_few_classes(task.classes, Path(path))
    return task


def survey_task(
    path: str | Path,
    *,
    name: str | None = None,
    hold_out: Collection[str] = ("val",),
    seed: int = 0,
    val_as_test: bool = False,
) -> TaskFolder:
    """As `open_task`, but what cannot be learned (no class, or one) is handed out too, for a report of all faults.

    Parameters
    ----------
    val_as_test
        Where the test images have no labels, those of `val` take their place.
    """
    path = Path(path)
    source = open_source(path)
    notes: list[str] = []
    found, split_folders = _sort_into_splits(source, notes)
    classes = tuple(sorted(found["train"]))
    for split in ("val", "test"):
        _drop_foreign_classes(found[split], split, classes, notes)
    if val_as_test and not any(found["test"].values()):
        found["val"], found["test"] = found["test"], found["val"]
    for split in ("val", "test"):
        if not any(found[split].values()) and split in hold_out:
            _cut(found, split, seed)
    splits = {split: _as_split(source, by_class, classes) for split, by_class in found.items()}
    return TaskFolder(_nfc(name or task_name(path)), classes, splits, tuple(notes), split_folders)


def task_name(path: Path) -> str:
    """Name a task after its folder, or after its zip without the ending."""
    if path.is_file():
        return _nfc(path.stem)
    return _nfc(path.name if path.name not in {"", ".."} else path.resolve().name)


def find_tasks(paths: Collection[str | Path]) -> list[Path]:
    """Expand folders of tasks into the tasks inside; a task itself stands for itself.

    A folder is a task when images lie one level down (or below `train`), and a folder of tasks otherwise.
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
    """Expand one path; a folder with no task in it stands for none."""
    if not path.exists():
        raise DataError(f"there is nothing at {path}; expected a task or a folder of tasks")
    if path.is_file() or _looks_like_a_task(path):
        return [path]
    children = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    return [p for p in children if p.suffix.lower() == ".zip" or (p.is_dir() and _looks_like_a_task(p))]


def _looks_like_a_task(folder: Path) -> bool:
    children = [p for p in folder.iterdir() if p.is_dir() and not _is_hidden(p.name)]
    return any(_split_of(p.name) == "train" for p in children) or any(
        f.suffix.lower() in IMAGE_SUFFIXES for p in children for f in p.iterdir() if f.is_file()
    )


def _refuse_equal_names(tasks: list[Path]) -> None:
    by_name: dict[str, Path] = {}
    for task in tasks:
        name = task_name(task)
        if (other := by_name.setdefault(name, task)) is not task:
            raise DataError(f"two tasks are named {name!r}: {other} and {task}; rename one")


ByClass = dict[str, list[str]]


def _sort_into_splits(source: Source, notes: list[str]) -> tuple[dict[str, ByClass], bool]:
    """Group image names by split and class, and say whether there were splits; what is neither becomes a note."""
    names = source.names()
    hidden = [n for n in names if any(_is_hidden(part) for part in PurePosixPath(n).parts)]
    visible = sorted(set(names) - set(hidden))
    prefix = _common_folder(n for n in visible if PurePosixPath(n).suffix.lower() in IMAGE_SUFFIXES)
    inside = {n: PurePosixPath(n).parts[len(prefix) :] for n in visible}
    has_splits = any(len(parts) > 2 and _split_of(parts[0]) == "train" for parts in inside.values())
    found: dict[str, ByClass] = {split: defaultdict(list) for split in ("train", "val", "test")}
    loose, other = 0, 0
    for name, parts in inside.items():
        if PurePosixPath(name).suffix.lower() not in IMAGE_SUFFIXES:
            other += 1
        elif has_splits and len(parts) > 2 and (split := _split_of(parts[0])):
            found[split][_nfc(parts[1])].append(name)
        elif not has_splits and len(parts) > 1:
            found["train"][_nfc(parts[0])].append(name)
        else:
            loose += 1
    _note(notes, len(hidden), "hidden file(s) ignored")
    _note(notes, other, f"file(s) ignored that are no images ({', '.join(sorted(IMAGE_SUFFIXES))} are)")
    _note(notes, loose, "image(s) ignored that lie in no class folder")
    if not prefix and not has_splits:
        empty = [f for f in source.folders() if _nfc(f) not in found["train"] and not _is_hidden(f)]
        if empty:
            notes.append(f"folder(s) without images ignored: {', '.join(empty)}")
    return found, has_splits


def _common_folder(images: Iterable[str]) -> tuple[str, ...]:
    """Return the folder(s) that wrap all classes, as zips often have; never a split or the only class."""
    folders = [PurePosixPath(n).parent.parts for n in images]
    prefix: tuple[str, ...] = ()
    while any(len(f) > len(prefix) + 1 for f in folders):
        next_down = {f[len(prefix)] for f in folders if len(f) > len(prefix)}
        if len(next_down) > 1 or any(map(_split_of, next_down)):
            break
        prefix += (*next_down,)
    return prefix


def refuse_too_few_classes(classes: tuple[str, ...], path: Path) -> None:
    if not classes:
        raise DataError(
            f"{path} holds no class folders with images; expected class/image.jpg or train/class/image.jpg inside"
        )
    if len(classes) < 2:
        raise DataError(
            f"{path} has one class only ({classes[0]!r}); a task needs two or more class folders with images"
        )


def _drop_foreign_classes(by_class: ByClass, split: str, classes: tuple[str, ...], notes: list[str]) -> None:
    foreign = sorted(set(by_class) - set(classes))
    for name in foreign:
        del by_class[name]
    if foreign:
        notes.append(f"classes of {split} that train does not have ignored: {', '.join(foreign)}")


def _cut(found: dict[str, ByClass], split: str, seed: int) -> None:
    """Move a seeded share of every class's training images to `split`; at least one image stays."""
    for index, (name, files) in enumerate(sorted(found["train"].items())):
        share = round(len(files) * SHARE[split])
        if len(files) >= 3:
            share = max(share, 1)
        share = min(share, len(files) - 1)
        order = np.random.default_rng([seed, index, len(split)]).permutation(len(files))
        found[split][name] = sorted(files[i] for i in order[:share])
        found["train"][name] = sorted(files[i] for i in order[share:])


def _as_split(source: Source, by_class: ByClass, classes: tuple[str, ...]) -> Split:
    files = [ImageFile(source, name) for c in classes for name in by_class.get(c, [])]
    labels = [i for i, c in enumerate(classes) for _ in by_class.get(c, [])]
    return Split(tuple(files), np.array(labels, dtype=np.int64))


def _split_of(folder: str) -> str | None:
    return SPLIT_FOLDERS.get(folder.lower())


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or part == "__MACOSX"


def _nfc(name: str) -> str:
    """One spelling for one name: file systems differ in how they store accents."""
    return unicodedata.normalize("NFC", name)


def _note(notes: list[str], count: int, text: str) -> None:
    if count:
        notes.append(f"{count} {text}")
