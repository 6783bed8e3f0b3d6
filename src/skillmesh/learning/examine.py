"""Faults of a task that would falsify what is measured: of its names, its numbers, and images that lie twice.

Equal files have equal hashes. Pictures that were saved again or resized are found in two steps: descriptors name
the few images that may be the same, and small versions of these decide.
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
from skillmesh.data.images import UnreadableImageError
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


# Faults of a task that its names and numbers show, before any image is opened, and the words for all faults.

UNBALANCED = 10
"""Ratio of the largest class to the smallest that is worth a word; the most in forty real tasks is 6.7."""

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
    """All the files, or classes, that it is about."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self) | {"files": list(self.files)}


def check_names(task: TaskImages) -> list[Finding]:
    """Find classes whose names are nearly equal, and folders that were joined because their names are equal."""
    return [*_nearly_equal(task.classes), *_joined(task)]


def _nearly_equal(classes: Sequence[str]) -> list[Finding]:
    alike: dict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike[_plain(name)].append(name)
    return [
        Finding(
            "same-name",
            f"{' and '.join(map(repr, names))} are {len(names)} classes whose names differ only in case or "
            "spacing; if they are one, put their images into one folder",
            tuple(names),
        )
        for names in alike.values()
        if len(names) > 1
    ]


def _plain(name: str) -> str:
    """Return the name without case, spaces, underscores and hyphens, unless nothing is left of it."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in folded if not letter.isspace() and letter not in "_-") or name


def _joined(task: TaskImages) -> list[Finding]:
    """Find folders side by side whose names are equal in Unicode's NFC; `data.folder` takes them as one class."""
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
            f"{len(folders)} folders are named {name!r}, spelled in different ways of Unicode; they were taken as "
            "one class; if they are not one, rename one",
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
        f"({counts[most] / counts[least]:.0f} × as many): answers lean towards the larger; add images of the other"
    )
    return [Finding("unbalanced", text, (task.classes[most], task.classes[least]))]


def twins_across_splits(twins: TaskTwins, totals: dict[str, int], left_out: bool = False) -> list[Finding]:
    """Say which images of a later split lie in an earlier one; those under two classes are said elsewhere."""
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
    """Say which images lie under two classes."""
    files = tuple(dict.fromkeys(twins.across_classes))
    if not files:
        return []
    lie = "left out: they lie" if left_out else "lie"
    text = f"{len(files):,} images {lie} in two classes, neither of them sure: {_with_originals(files, twins)}"
    return [Finding("twins-across-classes", text, files)]


def _with_originals(files: Sequence[str], twins: TaskTwins) -> str:
    return some(f"{file} (= {twins.originals[file]})" for file in files)


def unreadable(reasons: Sequence[tuple[str, str]]) -> list[Finding]:
    """Say which files cannot be read, and why; each is given with its reason."""
    if not reasons:
        return []
    images = "1 image that cannot" if len(reasons) == 1 else f"{len(reasons):,} images that cannot"
    text = f"{images} be read: {some(f'{name} ({reason})' for name, reason in reasons)}"
    return [Finding("unreadable", text, tuple(name for name, _ in reasons))]


NEAR = 0.45
"""Largest difference of two descriptors, RMS over their standardised numbers, of images that may show the same."""
ALIKE = 0.05
"""Largest difference of two small versions, RMS over their pixels, as a share of their contrast, of twins.

Frames of one film can be as alike; they are twins too."""
CANDIDATES = 300
"""Pairs of images, the nearest first, of which small versions are compared: bounds the work where all are near."""
DIRECTIONS = 256
"""Number of the calibration's principal directions: enough to find what is near, at an eleventh of the work."""
BLOCK = 1024
"""Images described at once."""
DISTANCES = 2**22
"""Pairs of images compared at once: bounds memory, whatever their number."""
MOST_COMPARED = 20_000
"""Images up to which twins that were saved again are searched for, in seconds; of more, equal files alone."""
SIDE, POOLED = 64, 16
"""Pixels of a small version, as decoded and as compared: averages of 4 × 4 hardly feel how a file was saved."""

Labels = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """The images of one split that can be read."""

    split: str
    images: list[AnyImage]
    labels: Labels
    raw: Raw
    """Their descriptors, or no rows at all: then only equal files are found."""
    keys: list[bytes]

    @classmethod
    def of(cls, split: str, images: Sequence[AnyImage], labels: Labels, described: Described) -> Part:
        readable = [images[index] for index in described.readable]
        return cls(split, readable, labels[described.readable], described.raw, described.keys)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def described(self) -> bool:
        return len(self.raw) == len(self.images) > 0

    def without_raw(self) -> Part:
        """Let go of the descriptors."""
        return replace(self, raw=self.raw[:0].copy())

    def only(self, kept: Mask) -> Part:
        """Leave out the other images; where all are kept, this is the same object."""
        if kept.all():
            return self
        rows = np.flatnonzero(kept)
        images, keys = [self.images[row] for row in rows], [self.keys[row] for row in rows]
        raw = self.raw[rows] if self.described else self.raw
        return replace(self, images=images, labels=self.labels[rows], raw=raw, keys=keys)


@dataclass(frozen=True)
class Examined:
    """The images that may be learned from or measured on, split by split, and what was found about the others."""

    parts: tuple[Part, ...]
    findings: tuple[Finding, ...] = ()


def examine(
    parts: Sequence[Part], classes: Sequence[str], backbone: Backbone, split: str | None = None
) -> Examined:
    """Leave out images that lie in two classes, and those of a later split that lie in an earlier one too.

    Where `split` is given, only its images are examined, and compared with all others.
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
            f"of {images:,} images only equal files were compared; twins that were saved again may be among them"
        )
        findings.append(Finding("twins-not-searched", text))
    return Examined(kept, tuple(findings))


def find_twins(
    parts: Sequence[Part], classes: Sequence[str], backbone: Backbone, split: str | None = None
) -> TaskTwins:
    """Find what lies in two splits or under two classes; twins in one class of one split are harmless."""
    twins, places = TaskTwins(), _places(parts, classes)
    for group in equal_groups(key for part in parts for key in part.keys):
        twins.note([places[index] for index in group])
    described = [part for part in parts if part.described]
    if sum(map(len, described)) > MOST_COMPARED:
        described = []
    images, shown = [image for part in described for image in part.images], _places(described, classes)
    for one, other in _near_twins(images, shown, _codes(described, backbone), split):
        twins.note([shown[one], shown[other]])
    return twins if split is None else _only(twins, {place.file for place in places if place.split == split})


def _places(parts: Sequence[Part], classes: Sequence[str]) -> list[ImagePlace]:
    return [
        ImagePlace(part.split, classes[label], image.name)
        for part in parts
        for image, label in zip(part.images, part.labels, strict=True)
    ]


def _only(twins: TaskTwins, files: set[str]) -> TaskTwins:
    across_splits = {words: [f for f in found if f in files] for words, found in twins.across_splits.items()}
    return replace(
        twins, across_splits=across_splits, across_classes=[f for f in twins.across_classes if f in files]
    )


def _codes(parts: Sequence[Part], backbone: Backbone) -> Floats:
    """Project descriptors onto a few directions; a projection is never longer than the whole."""
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
    images: Sequence[AnyImage], places: Sequence[ImagePlace], codes: Floats, split: str | None
) -> list[tuple[int, int]]:
    names = {label: index for index, label in enumerate(sorted({place.label for place in places}))}
    labels = np.array([names[place.label] for place in places], dtype=np.int64)
    splits = np.array([SPLITS.index(place.split) for place in places], dtype=np.int64)
    asked = np.arange(len(codes)) if split is None else np.flatnonzero(splits == SPLITS.index(split))
    with one_thread():  # what is found must not depend on the number of threads
        near = sorted(set(_near(codes, labels, splits, asked)))
    pairs = [pair for _, pair in near[:CANDIDATES]]
    small = _small_versions(images, sorted({index for pair in pairs for index in pair}))
    return [(one, other) for one, other in pairs if _alike(small[one], small[other])]


def _near(codes: Floats, labels: Labels, splits: Labels, asked: Labels) -> Iterator[tuple[float, tuple[int, int]]]:
    """Yield each image asked about with the nearest one in an earlier split or another class, if that is near.

    Their squared distance comes first; it is rounded, so that a pair is the same from both of its ends.
    """
    squares = np.square(codes).sum(axis=1)
    step = max(1, DISTANCES // max(1, len(codes)))
    for start in range(0, len(asked), step):
        rows = asked[start : start + step]
        distances = squares[rows, None] + squares[None] - 2 * (codes[rows] @ codes.T)
        apart = (labels[rows, None] != labels[None]) | (splits[rows, None] > splits[None])
        distances[~apart] = np.inf
        nearest = distances.argmin(axis=1)
        least = distances[np.arange(len(rows)), nearest]
        near = least <= NEAR**2
        for row, other, far in zip(rows[near], nearest[near], least[near], strict=True):
            yield round(float(far), 4), (min(int(row), int(other)), max(int(row), int(other)))


def _small_versions(images: Sequence[AnyImage], wanted: Sequence[int]) -> dict[int, Floats | None]:
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(wanted, pool.map(lambda index: _small_version(images[index]), wanted), strict=True))


def _small_version(image: AnyImage) -> Floats | None:
    """Shrink an image to a few numbers; `None` where it is not there any more."""
    try:
        pixels = read_pixels(image, SIDE).astype(np.float32)
    except UnreadableImageError:
        return None
    step = SIDE // POOLED
    pooled: Floats = pixels.reshape(POOLED, step, POOLED, step, 3).mean(axis=(1, 3))
    return pooled


def _alike(one: Floats | None, other: Floats | None) -> bool:
    if one is None or other is None:
        return False
    contrast = np.sqrt((one.var() + other.var()) / 2)
    return bool(np.sqrt(np.square(one - other).mean()) <= ALIKE * contrast)
