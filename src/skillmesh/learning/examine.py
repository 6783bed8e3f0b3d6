"""Checks of a task's class names, image counts, and twins (images that occur twice), which distort measurements.

Equal files have equal hashes. Pictures that were saved again or resized are found in two steps: descriptors select
the few pairs that may be the same, and small versions of these images decide.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from skillmesh.backbone.calibration import Raw
from skillmesh.common.text import some
from skillmesh.data.images import Pixels, UnreadableImageError, thumbnail
from skillmesh.data.inputs import AnyImage, read_pixels
from skillmesh.numerics.arrays import Floats
from skillmesh.numerics.process import one_thread

if TYPE_CHECKING:
    from skillmesh.backbone.backbone import Backbone
    from skillmesh.backbone.network import Described
    from skillmesh.data.folder import TaskImages

SPLITS = ("train", "val", "test")
SPLIT_WORDS = {"train": "training", "val": "validation", "test": "test"}


class Placed(Protocol):
    """The place of an image in its task."""

    @property
    def split(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def file(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """A `Placed` with nothing but its three fields."""

    split: str
    label: str
    file: str


@dataclass
class TaskTwins:
    """Images that occur more than once in a task."""

    in_split: list[str] = field(default_factory=list)
    across_splits: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Files of the later split, by keys like "test in train"."""
    across_classes: list[str] = field(default_factory=list)
    elsewhere: int = 0
    """Number of images that another task has too."""
    originals: dict[str, str] = field(default_factory=dict)
    """For each file in `across_splits` or `across_classes`, another file that shows the same picture."""

    def note(self, same: Sequence[Placed]) -> None:
        """Record that these files show the same picture."""
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
    """Return the positions of keys that occur more than once, one group per key."""
    positions: dict[bytes, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        positions[key].append(index)
    return [group for group in positions.values() if len(group) > 1]


# Checks of names and counts, which open no image; and the texts of all findings.

UNBALANCED = 10
"""Ratio of the largest class to the smallest from which it is reported; the largest in forty real tasks is 6.7."""

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
    """All files, or classes, that it is about."""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as a JSON-compatible dict."""
        return asdict(self) | {"files": list(self.files)}


def check_names(task: TaskImages) -> list[Finding]:
    """Find classes whose names are nearly equal, and folders merged into one class because of equal names."""
    return [*_nearly_equal(task.classes), *_merged_folders(task)]


def _nearly_equal(classes: Sequence[str]) -> list[Finding]:
    alike: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike[_plain(name)].append(name)
    return [
        Finding(
            "same-name",
            f"{' and '.join(map(repr, names))} are {len(names)} classes whose names differ only in case or "
            "spacing; if they are the same class, put their images into one folder",
            tuple(names),
        )
        for names in alike.values()
        if len(names) > 1
    ]


def _plain(name: str) -> str:
    """Return the name in one case without spaces, underscores and hyphens, unless nothing would be left."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in folded if not letter.isspace() and letter not in "_-") or name


def _merged_folders(task: TaskImages) -> list[Finding]:
    """Find sibling folders whose names are equal in Unicode's NFC; `data.folder` reads them as one class."""
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
            f"{len(folders)} folders are named {name!r}, with different Unicode spellings; they were read as one "
            "class; if they are different classes, rename one",
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
        f"({counts[most] / counts[least]:.0f} × as many): answers favour the larger class; add images of the other"
    )
    return [Finding("unbalanced", text, (task.classes[most], task.classes[least]))]


def twins_across_splits(twins: TaskTwins, totals: dict[str, int], left_out: bool = False) -> list[Finding]:
    """Report images of a later split that are also in an earlier one, except those in two classes."""
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
    """Report images that are in two classes."""
    files = tuple(dict.fromkeys(twins.across_classes))
    if not files:
        return []
    are = "left out: they are" if left_out else "are"
    text = f"{len(files):,} images {are} in two classes, neither label is certain: {_with_originals(files, twins)}"
    return [Finding("twins-across-classes", text, files)]


def _with_originals(files: Sequence[str], twins: TaskTwins) -> str:
    return some(f"{file} (= {twins.originals[file]})" for file in files)


def unreadable(reasons: Sequence[tuple[str, str]]) -> list[Finding]:
    """Report files that cannot be read; `reasons` holds each file name with its reason."""
    if not reasons:
        return []
    images = "1 image that cannot" if len(reasons) == 1 else f"{len(reasons):,} images that cannot"
    text = f"{images} be read: {some(f'{name} ({reason})' for name, reason in reasons)}"
    return [Finding("unreadable", text, tuple(name for name, _ in reasons))]


NEAR = 0.45
"""Largest RMS difference of the standardised descriptors of two images that may show the same picture."""
ALIKE = 0.05
"""Largest RMS difference of the small versions of twins, as a share of their contrast.

Frames of one film can be as similar; they count as twins too."""
CANDIDATES = 300
"""Largest number of pairs, nearest first, whose small versions are compared: a limit where all images are near."""
DIRECTIONS = 256
"""Number of the calibration's principal directions used: enough to find near images, at 1/11 of the work."""
BLOCK = 1024
"""Number of images whose descriptors are projected at once."""
DISTANCES = 2**22
"""Number of pairs of images compared at once, which limits memory."""
MOST_COMPARED = 20_000
"""Number of images up to which twins that were saved again are searched for, which takes seconds.

Above it only equal files are found."""

Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """The images of one split that can be read."""

    split: str
    images: list[AnyImage]
    labels: Labels
    raw: Raw
    """Their raw descriptors; without rows only equal files are found."""
    keys: list[bytes]
    thumbnails: list[Pixels | None] = field(default_factory=list)
    """For each row of `raw`, a small version of its image; None if it has to be decoded for one."""

    @classmethod
    def of(cls, split: str, images: Sequence[AnyImage], labels: Labels, described: Described) -> Part:
        readable = [images[index] for index in described.readable]
        return cls(
            split, readable, labels[described.readable], described.raw, described.keys, described.thumbnails
        )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def described(self) -> bool:
        return len(self.raw) == len(self.images) > 0

    def without_raw(self) -> Part:
        """Return the part without its descriptors, to free memory."""
        return replace(self, raw=self.raw[:0].copy())

    def only(self, kept: Mask) -> Part:
        """Return the part with the kept images only; the same object if all are kept."""
        if kept.all():
            return self
        rows = np.flatnonzero(kept)
        images, keys = [self.images[row] for row in rows], [self.keys[row] for row in rows]
        raw = self.raw[rows] if self.described else self.raw
        thumbnails = [self.thumbnails[row] for row in rows] if self.thumbnails else []
        return replace(self, images=images, labels=self.labels[rows], raw=raw, keys=keys, thumbnails=thumbnails)


@dataclass(frozen=True)
class Examined:
    """The images to learn from or measure on, split by split, and the findings about the others."""

    parts: tuple[Part, ...]
    findings: tuple[Finding, ...] = ()


def examine(
    parts: Sequence[Part], classes: Sequence[str], backbone: Backbone, split: str | None = None
) -> Examined:
    """Leave out images that are in two classes, and those of a later split that are also in an earlier one.

    If `split` is given, only its images are examined; they are compared with all others.
    """
    twins = find_twins(parts, classes, backbone, split)
    unfit = {*twins.across_classes, *(file for files in twins.across_splits.values() for file in files)}
    kept = tuple(
        part.only(np.array([image.name not in unfit for image in part.images], dtype=bool)) if unfit else part
        for part in parts
    )
    totals = {part.split: len(part) for part in parts}
    findings = [*twins_across_classes(twins, left_out=True), *twins_across_splits(twins, totals, left_out=True)]
    if (images := sum(len(part) for part in parts if part.described)) > MOST_COMPARED:
        text = (
            f"of {images:,} images only equal files were compared; copies that were saved again may be among them"
        )
        findings.append(Finding("twins-not-searched", text))
    return Examined(kept, tuple(findings))


def find_twins(
    parts: Sequence[Part], classes: Sequence[str], backbone: Backbone, split: str | None = None
) -> TaskTwins:
    """Find images in two splits or in two classes; twins in one class of one split are harmless."""
    twins, places = TaskTwins(), _places(parts, classes)
    for group in equal_groups(key for part in parts for key in part.keys):
        twins.note([places[index] for index in group])
    described = [part for part in parts if part.described]
    if sum(map(len, described)) > MOST_COMPARED:
        described = []
    described_places = _places(described, classes)
    for one, other in _near_twins(described, described_places, backbone, split):
        twins.note([described_places[one], described_places[other]])
    return twins if split is None else _only(twins, {place.file for place in places if place.split == split})


def _places(parts: Sequence[Part], classes: Sequence[str]) -> list[ImagePlace]:
    return [
        ImagePlace(part.split, classes[label], image.name)
        for part in parts
        for image, label in zip(part.images, part.labels, strict=True)
    ]


def _only(twins: TaskTwins, files: set[str]) -> TaskTwins:
    across_splits = {key: [f for f in names if f in files] for key, names in twins.across_splits.items()}
    return replace(
        twins, across_splits=across_splits, across_classes=[f for f in twins.across_classes if f in files]
    )


def _codes(parts: Sequence[Part], backbone: Backbone) -> Floats:
    """Project descriptors onto a few directions; projected distances are never larger than the real ones."""
    basis = backbone.calibration.basis[:DIRECTIONS]
    width = np.float32(np.sqrt(basis.shape[1]))
    with one_thread():
        blocks = [
            backbone.represent(part.raw[start : start + BLOCK], "descriptor") @ basis.T / width
            for part in parts
            for start in range(0, len(part), BLOCK)
        ]
    return np.concatenate(blocks) if blocks else np.empty((0, len(basis)), dtype=np.float32)


def _near_twins(
    parts: Sequence[Part], places: Sequence[ImagePlace], backbone: Backbone, split: str | None
) -> list[tuple[int, int]]:
    codes = _codes(parts, backbone)
    names = {label: index for index, label in enumerate(sorted({place.label for place in places}))}
    labels = np.array([names[place.label] for place in places], dtype=np.int64)
    splits = np.array([SPLITS.index(place.split) for place in places], dtype=np.int64)
    query = np.arange(len(codes)) if split is None else np.flatnonzero(splits == SPLITS.index(split))
    with one_thread():  # the findings must not depend on the number of threads
        near = sorted(set(_near(codes, labels, splits, query)))
    pairs = [pair for _, pair in near[:CANDIDATES]]
    small = _thumbnails(parts, sorted({index for pair in pairs for index in pair}), backbone.network.size)
    return [(one, other) for one, other in pairs if _alike(small[one], small[other])]


def _near(codes: Floats, labels: Labels, splits: Labels, query: Labels) -> Iterator[tuple[float, tuple[int, int]]]:
    """Yield the squared distance and indices of each query image and its nearest twin candidate, if near.

    Candidates are images of an earlier split or another class. The distance is rounded, so that it is the same
    from both images of a pair.
    """
    squares = np.square(codes).sum(axis=1)
    step = max(1, DISTANCES // max(1, len(codes)))
    for start in range(0, len(query), step):
        rows = query[start : start + step]
        distances = squares[rows, None] + squares[None] - 2 * (codes[rows] @ codes.T)
        comparable = (labels[rows, None] != labels[None]) | (splits[rows, None] > splits[None])
        distances[~comparable] = np.inf
        nearest = distances.argmin(axis=1)
        least = distances[np.arange(len(rows)), nearest]
        near = least <= NEAR**2
        for row, other, distance in zip(rows[near], nearest[near], least[near], strict=True):
            yield round(float(distance), 4), (min(int(row), int(other)), max(int(row), int(other)))


def _thumbnails(parts: Sequence[Part], wanted: Sequence[int], size: int) -> dict[int, Pixels | None]:
    """Return small versions of the wanted images, from a pass or decoded now; None for one that cannot be read."""
    images = [image for part in parts for image in part.images]
    known = [small for part in parts for small in part.thumbnails or [None] * len(part)]

    def decoded(index: int) -> Pixels | None:
        try:
            return thumbnail(read_pixels(images[index], size))
        except UnreadableImageError:
            return None

    missing = [index for index in wanted if known[index] is None]
    with ThreadPoolExecutor(4) as pool:
        return {index: known[index] for index in wanted} | dict(
            zip(missing, pool.map(decoded, missing), strict=True)
        )


def _alike(first: Pixels | None, second: Pixels | None) -> bool:
    if first is None or second is None:
        return False
    one, other = first.astype(np.float32), second.astype(np.float32)
    contrast = np.sqrt((one.var() + other.var()) / 2)
    return bool(np.sqrt(np.square(one - other).mean()) <= ALIKE * contrast)
