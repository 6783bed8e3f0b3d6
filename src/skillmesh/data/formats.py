"""Which files are images: by the ending of the name, by the first bytes, and what reading them needs."""

from __future__ import annotations

import functools
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import PurePosixPath

HEIF_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
IMAGE_SUFFIXES = HEIF_SUFFIXES | {
    *(".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo", ".png", ".tif", ".tiff", ".webp"),
}
"""Endings of image files. Reading HEIC and AVIF may need something that is not installed: see `missing_for`."""
HEIF_HINT = "install skillmesh[heic] to read them: pip install 'skillmesh[heic]'"
AVIF_HINT = "Pillow 11.3 or newer reads them: pip install --upgrade pillow"
HEAD_BYTES = 512
"""How many of a file's first bytes tell what it is."""

PILLOW_FORMATS = {
    "avif": ("AVIF",),
    "bmp": ("BMP",),
    "gif": ("GIF",),
    "heif": ("HEIF",),
    "ico": ("ICO",),
    "jpeg": ("JPEG",),
    "png": ("PNG",),
    "ppm": ("PPM",),
    "tga": ("TGA",),
    "tiff": ("TIFF",),
    "webp": ("WEBP",),
}
"""What Pillow calls the kinds that we read. It is asked for the one that a file begins like and for nothing else:
left to itself it would run Ghostscript on a PostScript file that is named `photo.png`."""

_HEIF_BRANDS = frozenset(
    {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
)
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_IMAGE_STARTS = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
    b"\0\0\1\0": "ico",
}
_PPM = re.compile(rb"P[456]\s+(?:#[^\n]*\n\s*)*\d+\s+(?:#[^\n]*\n\s*)*\d+\s")
"""A comment ends with its line and nowhere else: there is one way to match, so no header takes long."""
_OTHER_STARTS = {
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive",
    b"PK\x05\x06": "an empty zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"\x7fELF": "a program",
    b"MZ": "a program",
    b"\x80\x04\x95": "a Python pickle",
    b"SQLite format 3": "a database",
}
_MOST_ENDINGS = 6
_MOST_EXAMPLES = 3


def suffix_of(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


@functools.cache
def missing_for(suffix: str) -> str | None:
    """Say what to install to read images of this ending; None where they can be read already."""
    if suffix in HEIF_SUFFIXES:
        return None if find_spec("pillow_heif") else HEIF_HINT
    if suffix == ".avif":
        return None if _pillow_reads_avif() else AVIF_HINT
    return None


def _pillow_reads_avif() -> bool:
    from PIL import features

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a Pillow that does not know the word warns
        return bool(features.check("avif"))


@functools.cache
def register_heif() -> None:
    """Teach Pillow to open HEIC images; doing so twice changes nothing."""
    from pillow_heif import options, register_heif_opener

    options.DECODE_THREADS = 1  # each has its own buffers
    register_heif_opener()


def image_kind(head: bytes) -> str | None:
    """Return the image format that a file's first bytes announce, or None where they announce none of ours."""
    if head[4:8] == b"ftyp":
        end = max(16, min(int.from_bytes(head[:4], "big"), len(head)))
        brands = {head[8:12], *(head[place : place + 4] for place in range(16, end, 4))}
        if brands & _AVIF_BRANDS:
            return "avif"
        return "heif" if brands & _HEIF_BRANDS else None
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if kind := next((kind for start, kind in _IMAGE_STARTS.items() if head.startswith(start)), None):
        return kind
    if _PPM.match(head):
        return "ppm"
    return "tga" if _is_tga(head) else None


def _is_tga(head: bytes) -> bool:
    """Whether this is the header of a TGA image: it has no sign of its own, only fields that make sense."""
    if len(head) < 18 or head[1] > 1 or head[2] not in (1, 2, 3, 9, 10, 11):
        return False
    width, height = (int.from_bytes(head[place : place + 2], "little") for place in (12, 14))
    return width > 0 and height > 0 and head[16] in (1, 8, 16, 24, 32)


def other_kind(head: bytes) -> str:
    """Describe in words what a file is that is no image, by its first bytes."""
    if not head:
        return "an empty file"
    if head[4:8] == b"ftyp":
        return "a video"
    for start, kind in _OTHER_STARTS.items():
        if head.startswith(start):
            return kind
    if b"\0" not in head and (text := head.decode("utf-8", errors="ignore").strip()):
        shown = " ".join(text[:40].split())
        if shown.isprintable() and len(text.encode()) >= 0.9 * len(head.strip()):
            return f"text ({shown!r}{'…' if len(text) > 40 else ''})"
    return "bytes of no known kind"


@dataclass(frozen=True)
class Skipped:
    """Files that were left out because of their kind: how many of each ending, and a few of their names."""

    counts: tuple[tuple[str, int], ...] = ()
    """Endings with the number of files, the most frequent first."""
    examples: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> Skipped:
        counts: Counter[str] = Counter()
        first: dict[str, str] = {}
        for name in names:
            counts[suffix := suffix_of(name)] += 1
            first.setdefault(suffix, name)
        ranked = tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        helped_first = sorted((suffix for suffix, _ in ranked), key=lambda suffix: suffix not in IMAGE_SUFFIXES)
        return cls(ranked, tuple(first[suffix] for suffix in helped_first[:_MOST_EXAMPLES]))

    def __bool__(self) -> bool:
        return bool(self.counts)

    @property
    def total(self) -> int:
        return sum(count for _, count in self.counts)

    @property
    def readable_with_more(self) -> Skipped:
        """Those of the files that are images, and could be read if something more were installed."""
        counts = tuple((suffix, count) for suffix, count in self.counts if missing_for(suffix))
        endings = {suffix for suffix, _ in counts}
        return Skipped(counts, tuple(name for name in self.examples if suffix_of(name) in endings))

    def __str__(self) -> str:
        groups: dict[str, list[tuple[str, int]]] = {}
        for suffix, count in self.counts:
            groups.setdefault(missing_for(suffix) or "", []).append((suffix, count))
        hints = sorted(groups, key=lambda hint: not hint)  # what can be helped comes first
        parts = [f"{_endings(groups[hint])} ({hint or 'not images'})" for hint in hints]
        files = "1 file" if self.total == 1 else f"{self.total:,} files"
        return f"{files} skipped: {', '.join(parts)}, such as {', '.join(self.examples)}"


def _endings(group: list[tuple[str, int]]) -> str:
    shown = [f"{count:,} {suffix or 'without an ending'}" for suffix, count in group[:_MOST_ENDINGS]]
    rest = sum(count for _, count in group[_MOST_ENDINGS:])
    return ", ".join(shown + [f"{rest:,} of other kinds"] * bool(rest))


def split_by_reading(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split names of files into images that can be read here and all others, by their endings."""
    readable: dict[str, bool] = {}
    images: list[str] = []
    others: list[str] = []
    for name in names:
        suffix = suffix_of(name)
        if suffix not in readable:
            readable[suffix] = suffix in IMAGE_SUFFIXES and missing_for(suffix) is None
        (images if readable[suffix] else others).append(name)
    return images, others
