"""Read a task from Python: images with labels, a torch, torchvision or Hugging Face dataset, or a generator.

Images that can be read again at any time are read from the dataset itself. All others are read once and stored in
a temporary file, since learning reads images more than once. torch, torchvision and datasets are not imported.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from skillmesh.common.text import some
from skillmesh.data.folder import ImageFile, Split, TaskImages, cut_split, nfc
from skillmesh.data.formats import IMAGE_SUFFIXES, suffix_of
from skillmesh.data.images import UnreadableImageError
from skillmesh.data.inputs import AnyImage, BadImage, batch_of, holds_values
from skillmesh.data.items import ItemImage, RenamedImage, Spool, SpoolError, as_given
from skillmesh.data.sources import FolderSource
from skillmesh.errors import ArgumentError, DataError, SkillmeshError

IMAGE_COLUMNS = ("image", "img", "images", "picture", "photo")
"""Possible names of the column with images, the likeliest first."""
LABEL_COLUMNS = ("label", "labels", "target", "targets", "fine_label", "class", "category")
"""Possible names of the column with labels, the likeliest first."""
TARGETS = ("targets", "labels")
"""Attributes in which torch datasets keep the labels of all their images."""
PROBED, READINGS = 4, 4
"""Number of images that are read in advance to find random transforms, and how often each is read: a transform
that mirrors every other image goes unnoticed once in 4,000 times."""
_MISSING = object()


@contextmanager
def task_of(
    images: Any,
    labels: Any = None,
    *,
    name: str,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    hold_out: Collection[str] = ("val",),
    fewest_classes: int = 2,
) -> Iterator[TaskImages]:
    """Yield a task made from Python objects; its images can be read until the context ends.

    Parameters
    ----------
    images
        With `labels`: a list of images (paths, encoded bytes, Pillow images, arrays or tensors), an array of
        several, or any iterable of images. Without: a dataset of torch, torchvision or Hugging Face, a mapping of
        two columns, or any iterable of (image, label).
    labels
        A name or an integer for each image.
    classes
        Names of the classes that integers stand for, by position. By default the dataset's own (`classes` of
        torchvision, `ClassLabel` of Hugging Face); if there are none, 0 is called "0".
    seed
        Random seed that decides which 15 % of each class's images are for validation, as for folders.
    hold_out
        Splits that are cut from the images; if empty, all are training images.
    fewest_classes
        Smallest number of classes of a task.

    The task's classes are sorted by name, as for a folder, whatever the order of `classes`: the same images give
    the same module however they are passed. Classes without images are left out, with a note. For torchvision's
    ImageFolder and for Hugging Face, the files themselves are read, without the dataset's transform.

    Raises
    ------
    ArgumentError
        An argument has a type that cannot be a dataset, labels or names.
    DataError
        The images and labels do not match, or do not make a task. A single image that cannot be read is skipped
        and listed instead.
    """
    refuse_bad_classes(classes)
    with closing(Spool()) as spool:
        task = _task_from(_opened(images, labels, spool), nfc(name), classes, seed, hold_out)
        if len(task.classes) < fewest_classes:
            count = f"one class only ({task.classes[0]!r})" if task.classes else "no images"
            raise DataError(f"{name!r} has {count}; a task needs images of two or more classes")
        yield task


@dataclass
class _Items:
    """Images and their labels as the caller gave them, in the same order."""

    images: list[AnyImage]
    labels: list[Any]
    classes: Sequence[str] | None = None
    """The dataset's own names for integer labels."""
    notes: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    """Position of each image in the caller's data, for messages; empty if none was skipped or moved."""


# Recognise what kind of dataset was given.


def _opened(images: Any, labels: Any, spool: Spool) -> _Items:
    if isinstance(images, str | bytes | bytearray | os.PathLike):
        raise ArgumentError(
            f"images: found {_shown(images)}, one {type(images).__name__}; expected several images with labels, "
            "or a dataset; give a folder of class/image.jpg without labels, and single images in a list"
        )
    if hasattr(images, "dataset") and hasattr(images, "batch_size"):
        raise ArgumentError(
            f"images: found a {type(images).__name__}, which yields batches; expected a dataset; give the "
            "loader's own: loader.dataset"
        )
    if labels is not None:
        return _with_labels(images, labels, spool)
    if _is_table(images):
        return _table(images, spool)
    if isinstance(images, Mapping):
        return _mapping(images, spool)
    if holds_values(images):
        raise ArgumentError(f"labels: found none for an array of images; expected one for each; {_HOW}")
    if isinstance(images, list | tuple):
        return _listed(images)
    if _is_sequence(images):
        return _map_dataset(images, spool)
    if isinstance(images, Iterable):
        return _spooled(enumerate(images), spool, _classes_of(images))
    raise ArgumentError(
        f"images: found {type(images).__name__}; expected images with labels, or a dataset; {_HOW}"
    )


_HOW = "call learn(images, labels, name=…) or learn(dataset, name=…) with a dataset of (image, label)"


def _with_labels(images: Any, labels: Any, spool: Spool) -> _Items:
    """Return images and labels that were given as two arguments."""
    if isinstance(labels, str | bytes | Mapping) or not isinstance(labels, Iterable):
        raise ArgumentError(f"labels: found {_shown(labels)}; expected a list with one label for each image")
    if isinstance(images, Mapping) or not (isinstance(images, Iterable) or _is_sequence(images)):
        raise ArgumentError(f"images: found {_shown(images)}; expected a list of images, or an array of several")
    listed = _listed_labels(labels)
    if holds_values(images) and not hasattr(images, "to_list"):
        images = _rows(images)
    elif hasattr(images, "to_list"):  # a pandas column: its [i] is not the i-th value
        images = images.to_list()
    if not _is_sequence(images):
        return _spooled(enumerate(zip_longest(images, listed, fillvalue=_MISSING)), spool, None)
    _refuse_other_length(len(images), len(listed))
    in_memory = isinstance(images, list | np.ndarray | tuple)
    if not in_memory and (note := _unsteady(images, listed)):
        pairs = ((index, (images[index], label)) for index, label in enumerate(listed))
        return _spooled(pairs, spool, None, [note])
    return _lazy(images, listed, None)


def _listed_labels(labels: Any) -> list[Any]:
    """Return labels as plain values; read a tensor's all at once, since each alone costs 1 to 10 microseconds."""
    if hasattr(labels, "tolist") and hasattr(labels, "ndim"):
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1:
            raise ArgumentError(
                f"labels: found an array of shape {tuple(labels.shape)}; expected one label for each image; for "
                "one-hot rows, give labels.argmax(1)"
            )
        return list(labels.tolist())
    return list(labels)


def _rows(images: Any) -> Any:
    """Return an array whose rows are images; since there are labels, three axes are a batch of grey images."""
    batch = batch_of(images)
    if batch is None:
        batch = np.asarray(images)
        if batch.ndim != 3:
            raise DataError(
                f"the images are an array of {batch.dtype} and shape {batch.shape}; expected (n, height, width), "
                "(n, height, width, 1, 3 or 4) or (n, 1 or 3, height, width)"
            )
    return batch


def _refuse_other_length(images: int, labels: int) -> None:
    if images != labels:
        raise DataError(
            f"found {images:,} images and {labels:,} labels; expected one label for each image, in the same order"
        )


def _is_sequence(value: Any) -> bool:
    """Return whether value[i] works. Torch's IterableDataset has a length, but its `__getitem__` is empty."""
    if isinstance(value, Mapping) or any(cls.__name__ == "IterableDataset" for cls in type(value).__mro__):
        return False
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _listed(pairs: Sequence[Any]) -> _Items:
    """Return the items of a list of (image, label), or of rows with two known columns."""
    rows = [_pair(item, index) for index, item in enumerate(pairs)]
    return _lazy([image for image, _ in rows], [label for _, label in rows], None)


# Datasets of torch and torchvision.


def _map_dataset(dataset: Any, spool: Spool) -> _Items:
    """Return the items of a dataset with dataset[i]: read lazily if its labels are known in advance, else once."""
    names = _classes_of(dataset)
    base, chosen = _unwrapped(dataset)
    targets = _targets(base)
    if targets is not None and (files := _image_files(base)) is not None:
        notes = []
        if getattr(base, "transform", None) is not None:
            notes.append(f"the files of {type(base).__name__} were read as they are, without its transform")
        order = sorted(chosen, key=lambda position: files[position].name)  # as for a folder
        return _Items([files[i] for i in order], [targets[i] for i in order], names, notes, order)
    notes = []
    if targets is not None:
        images, labels = _Firsts(dataset), [targets[position] for position in chosen]
        if (note := _unsteady(images, labels, lambda index: _pair(dataset[index], index)[1])) is None:
            return _lazy(images, labels, names)
        notes.append(note)
    return _spooled(_each(dataset), spool, names, notes)


def _unwrapped(dataset: Any) -> tuple[Any, Sequence[int]]:
    """Return the dataset inside a `torch.utils.data.Subset` (from `random_split`), and the positions in it."""
    chosen: Sequence[int] = range(len(dataset))
    while _is_subset(dataset):
        chosen = [int(dataset.indices[position]) for position in chosen]
        dataset = dataset.dataset
    return dataset, chosen


def _is_subset(dataset: Any) -> bool:
    return type(dataset).__name__ == "Subset" and hasattr(dataset, "dataset") and hasattr(dataset, "indices")


def _classes_of(dataset: Any) -> Sequence[str] | None:
    while _is_subset(dataset):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        return names
    return None


def _targets(dataset: Any) -> list[Any] | None:
    """Return the labels that a dataset lists for all its images; None if it has none or transforms them."""
    if getattr(dataset, "target_transform", None) is not None:
        return None
    for attribute in TARGETS:
        stated = getattr(dataset, attribute, None)
        if (
            isinstance(stated, str | bytes | Mapping)
            or not isinstance(stated, Iterable)
            or not _is_sequence(stated)
        ):
            continue
        try:
            listed = _listed_labels(stated)
            if len(listed) == len(dataset):
                for label in listed:
                    _plain_label(label, 0)
                return listed
        except SkillmeshError:  # boxes, masks or several labels: use those of dataset[i]
            continue
    return None


def _image_files(dataset: Any) -> list[ImageFile] | None:
    """Return the files of torchvision's ImageFolder, named by their paths in it; None for other datasets."""
    reads = getattr(type(dataset), "__getitem__", None)
    loads = getattr(dataset, "loader", None)
    if {getattr(each, "__module__", None) for each in (reads, loads)} != {"torchvision.datasets.folder"}:
        return None  # it may crop or mask what it reads
    samples, root = getattr(dataset, "samples", None), getattr(dataset, "root", None)
    if not isinstance(samples, list) or not isinstance(root, str | os.PathLike) or len(samples) != len(dataset):
        return None
    paths = [sample[0] if isinstance(sample, tuple) and len(sample) == 2 else None for sample in samples]
    source, names = FolderSource(Path(root)), []
    for path in paths:
        if not isinstance(path, str) or suffix_of(path) not in IMAGE_SUFFIXES:
            return None
        try:
            names.append(Path(path).relative_to(root).as_posix())
        except ValueError:
            return None
    return [ImageFile(source, name) for name in names]


class _Firsts:
    """The images of a dataset of (image, label)."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return _pair(self._dataset[index], index)[0]


def _each(dataset: Any) -> Iterator[tuple[int, Any]]:
    """Yield a dataset's items with their positions; in place of an item that fails, its exception."""
    for index in range(len(dataset)):
        try:
            yield index, dataset[index]
        except Exception as error:  # the dataset's own code may raise anything
            yield index, error


# Datasets of Hugging Face, and other columns.


def _is_table(value: Any) -> bool:
    return hasattr(value, "column_names") and hasattr(value, "features") and hasattr(value, "cast_column")


def _table(table: Any, spool: Spool) -> _Items:
    """Return the items of a `datasets.Dataset` or `IterableDataset`: image files as stored, not decoded by it."""
    features = table.features or {}
    columns = list(table.column_names or features)
    notes = []
    if (getattr(table, "format", None) or {}).get("type") == "custom":
        notes.append("the dataset's images were read as they are, without its transform")
    if hasattr(table, "with_format"):
        table = table.with_format(None)  # rows as plain Python objects
    if not columns:  # a streaming dataset that does not know its columns yet
        return _spooled(enumerate(table), spool, None)
    image = _column(columns, features, IMAGE_COLUMNS, "Image")
    label = _column(columns, features, LABEL_COLUMNS, "ClassLabel")
    names = getattr(features.get(label), "names", None)
    table = table.select_columns([image, label])
    stored = features.get(image)
    if dataclasses.is_dataclass(stored) and not isinstance(stored, type) and getattr(stored, "decode", False):
        table = table.cast_column(image, dataclasses.replace(stored, decode=False))
    if not hasattr(table, "__len__"):
        rows = ((index, (row[image], row[label])) for index, row in enumerate(table))
        return _spooled(rows, spool, names, notes)
    return dataclasses.replace(_lazy(_Column(table, image), list(table[label]), names), notes=notes)


class _Column:
    """One column of a table, read row by row."""

    def __init__(self, table: Any, name: str) -> None:
        self._table, self._name = table, name

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Any:
        return self._table[index][self._name]


def _mapping(columns: Mapping[Any, Any], spool: Spool) -> _Items:
    if any(_is_table(value) for value in columns.values()):
        splits = ", ".join(map(repr, columns))
        raise ArgumentError(
            f"images: found a {type(columns).__name__} of several datasets ({splits}); expected one of them; give "
            f"dataset[{next(iter(columns))!r}]"
        )
    image, label = (_column(list(columns), {}, names, "") for names in (IMAGE_COLUMNS, LABEL_COLUMNS))
    return _with_labels(columns[image], columns[label], spool)


def _column(columns: Sequence[Any], features: Mapping[str, Any], known: Sequence[str], kind: str) -> str:
    """Return a column found by its name, or else because it is the only one of its type."""
    if named := [name for name in known if name in columns]:
        return named[0]
    alike = [column for column in columns if type(features.get(column)).__name__ == kind]
    if len(alike) == 1:
        return str(alike[0])
    raise DataError(
        f"found the columns {', '.join(map(repr, columns)) or 'none'}; expected one named "
        f"{' or '.join(map(repr, known))}; give images and labels separately: "
        "learn(images=dataset['…'], labels=dataset['…'], name=…)"
    )


def _pair(item: Any, index: int) -> tuple[Any, Any]:
    """Return image and label of a dataset's item."""
    if isinstance(item, Mapping):
        image, label = (_column(list(item), {}, names, "") for names in (IMAGE_COLUMNS, LABEL_COLUMNS))
        return item[image], item[label]
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    found = f"{type(item).__name__} of {len(item)}" if isinstance(item, tuple | list) else type(item).__name__
    raise DataError(
        f"item {index} of the dataset is a {found}; expected (image, label), or a mapping with 'image' and 'label'"
        "; if the labels are elsewhere, give them separately: learn(images, labels, name=…)"
    )


# Images that are read from the dataset itself, and images that are stored in a temporary file.


def _lazy(images: Any, labels: list[Any], names: Sequence[str] | None) -> _Items:
    """Return items whose images can be read at any time; nothing is copied."""
    lock = None if isinstance(images, list | tuple | np.ndarray) else threading.Lock()
    kept: list[AnyImage] = [ItemImage(images, index, lock) for index in range(len(labels))]
    if isinstance(images, list | tuple):  # paths are better names than numbers
        for index, value in enumerate(images):
            if isinstance(value, str | os.PathLike):
                kept[index] = as_given(value, index)
    _refuse_all_unusable(kept[position] for position in _probed(len(kept)))
    return _Items(kept, labels, names)


def _probed(count: int) -> list[int]:
    """Return up to `PROBED` positions, evenly spread."""
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, PROBED))})


def _refuse_all_unusable(images: Iterable[AnyImage]) -> None:
    """Raise the first image's error if no image has an accepted type: the others will not have one either."""
    faults: list[DataError] = []
    for image in images:
        if not isinstance(image, ItemImage):
            return
        try:
            image.read()
            return
        except UnreadableImageError:  # a fault of this one image
            return
        except DataError as error:
            faults.append(error)
    if faults:
        raise faults[0]


def _unsteady(images: Any, labels: list[Any], label_of: Callable[[int], Any] | None = None) -> str | None:
    """Return why a dataset must be read only once; None if several readings of a few images agree.

    `label_of` reads the label that the dataset returns with an image.
    """
    for position in _probed(len(labels)):
        image = ItemImage(images, position)
        try:
            if len({image.content() for _ in range(READINGS)}) > 1:
                return "the dataset's images change each time they are read; each was read once and kept"
            if label_of and _plain_label(label_of(position), position) != _plain_label(labels[position], position):
                return "the dataset lists other labels than it returns with images; the returned ones were used"
        except UnreadableImageError:
            continue
    return None


def _spooled(
    items: Iterable[tuple[int, Any]], spool: Spool, names: Sequence[str] | None, notes: Iterable[str] = ()
) -> _Items:
    """Read (position, (image, label)) once, and store the images in a temporary file."""
    kept = _Items([], [], names, list(notes))
    skipped: list[str] = []
    faults: list[DataError] = []
    usable = 0
    for index, item in _guarded(items):
        if item is None or isinstance(item, Exception):
            reason = "it is None" if item is None else f"{type(item).__name__}: {item}"
            skipped.append(f"item {index} ({reason})")
            continue
        value, label = _pair(item, index)
        if value is _MISSING or label is _MISSING:
            counts = (
                (f"only {index:,} images", "more") if value is _MISSING else ("more images", f"only {index:,}")
            )
            raise DataError(
                f"found {counts[0]} and {counts[1]} labels; expected one label for each image, in the same order"
            )
        _plain_label(label, index)
        try:
            image = spool.put(value, index)
            usable += 1
        except SpoolError:
            raise
        except DataError as error:
            image = BadImage(f"image {index}", str(error))
            if not isinstance(error, UnreadableImageError):
                faults.append(error)
            if not usable and len(faults) == PROBED:
                break
        kept.images.append(image)
        kept.labels.append(label)
        kept.positions.append(index)
    if faults and not usable:
        raise faults[0]
    if skipped:
        if not kept.images:
            raise DataError(f"no item of the dataset can be read: {some(skipped)}; correct the dataset")
        kept.notes.append(f"{len(skipped):,} item(s) of the dataset skipped that cannot be read: {some(skipped)}")
    return kept


def _guarded(items: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield the items of a dataset; turn exceptions of its own code into a `DataError`."""
    read = 0
    try:
        for item in items:
            yield item
            read += 1
    except (SkillmeshError, GeneratorExit):
        raise
    except Exception as error:
        raise DataError(
            f"reading the dataset failed after {read:,} items: {type(error).__name__}: {error}; correct that, "
            "or leave the item out"
        ) from error


# Labels and classes.


def refuse_bad_classes(classes: Any) -> None:
    """Raise `ArgumentError` for class names that are not names, or that two classes share."""
    if classes is None:
        return
    if isinstance(classes, str | bytes | Mapping) or not isinstance(classes, Sequence):
        raise ArgumentError(
            f"classes: found {_shown(classes)}; expected a list of names, as in classes=['cat', 'dog']"
        )
    for index, name in enumerate(classes):
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"classes: found {_shown(name)} at position {index}; expected a name")
    _refuse_equal(classes, "classes")


def _refuse_equal(names: Sequence[str], where: str) -> None:
    twice = [name for name, count in Counter(map(nfc, names)).items() if count > 1]
    if twice:
        raise ArgumentError(
            f"{where}: found {some(map(repr, twice))} more than once; expected a different name for each class; "
            "give them with classes=[…]"
        )


def _shown(value: Any) -> str:
    if not isinstance(value, str | bytes | int | float | None):
        return f"a {type(value).__name__}"
    text = repr(value)
    return f"{text[:57]}…" if len(text) > 60 else text


def _plain_label(label: Any, index: int) -> str | int:
    """Return a label of any library as a name or an integer."""
    value = label
    if hasattr(value, "item") and hasattr(value, "ndim") and (value.ndim == 0 or tuple(value.shape) == (1,)):
        value = value.item()  # a NumPy or torch scalar
    if isinstance(value, str) and value:
        return nfc(str(value))
    try:
        number = operator.index(value)
    except TypeError:
        advice = {
            "NoneType": "leave out images without a label",
            "float": "convert whole numbers with int(label)",
        }.get(type(value).__name__, "for several numbers, as in one-hot rows, give the position of the largest")
        found = _shown(value) if value is not None else "missing"
        raise DataError(
            f"the label of image {index} is {found}; expected the name of its class, or a whole number; {advice}"
        ) from None
    if number < 0:
        raise DataError(
            f"the label of image {index} is {number}; expected 0 or more; in many datasets this marks images "
            "without a label: leave them out"
        )
    return number


def _task_from(
    items: _Items, name: str, classes: Sequence[str] | None, seed: int, hold_out: Collection[str]
) -> TaskImages:
    """Return the task, with each image in its class and split."""
    if classes is None and items.classes is not None:
        _refuse_equal(items.classes, "the dataset's own classes")
    names = classes if classes is not None else items.classes
    positions = items.positions or range(len(items.images))
    by_class: dict[str, list[int]] = defaultdict(list)
    first: dict[type, int] = {}
    allowed = None if classes is None else set(map(nfc, classes))
    for place, (label, position) in enumerate(zip(items.labels, positions, strict=True)):
        plain = _plain_label(label, position)
        first.setdefault(type(plain), position)
        by_class[_class_of(plain, position, names, allowed)].append(place)
    if names is None and len(first) > 1:
        raise DataError(
            f"the label of image {first[int]} is a number, that of image {first[str]} a name; expected one kind; "
            "name what the numbers stand for with classes=[…]"
        )
    notes = list(items.notes)
    if names is not None and (without := [c for c in map(nfc, names) if c not in by_class]):
        notes.append(f"class(es) without images ignored: {some(without)}")
    by_split: dict[str, dict[str, list[int]]] = {"train": by_class, "val": {}, "test": {}}
    for split in hold_out:
        cut_split(by_split, split, seed)
    images, ordered = _with_unique_names(items.images, positions), tuple(sorted(by_class))
    splits = {split: _as_split(images, places, ordered) for split, places in by_split.items()}
    return TaskImages(name, ordered, splits, tuple(notes))


def _class_of(label: str | int, index: int, names: Sequence[str] | None, allowed: set[str] | None) -> str:
    """Return the name of an image's class; if the user gave class names, only those are allowed."""
    if isinstance(label, str):
        if allowed is not None and label not in allowed:
            known = some(map(repr, names or ()), 5)
            raise DataError(
                f"the label of image {index} is {label!r}; expected one of the classes {known}; add it "
                "to classes=[…], or correct the label"
            )
        return label
    if names is None:
        return str(label)
    if label >= len(names):
        raise DataError(
            f"the label of image {index} is {label}; expected 0 to {len(names) - 1}, since {len(names)} classes "
            "are named; name all of them with classes=[…], or correct the label"
        )
    return nfc(names[label])


def _with_unique_names(images: list[AnyImage], positions: Sequence[int]) -> list[AnyImage]:
    """Return the images with unique names, also where a path was given twice."""
    counts = Counter(image.name for image in images)
    return [
        image if counts[image.name] == 1 else RenamedImage(f"{image.name} (image {position})", image)
        for image, position in zip(images, positions, strict=True)
    ]


def _as_split(images: Sequence[AnyImage], places: dict[str, list[int]], classes: Sequence[str]) -> Split:
    files = [images[place] for name in classes for place in places.get(name, [])]
    labels = [index for index, name in enumerate(classes) for _ in places.get(name, [])]
    return Split(tuple(files), np.array(labels, dtype=np.int64))
