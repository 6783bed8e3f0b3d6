"""Recognise image files by file extension and first bytes, and estimate the cost of decoding them."""

from __future__ import annotations

import functools
import re
import struct
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import PurePosixPath

HEIF_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
IMAGE_SUFFIXES = HEIF_SUFFIXES | {
    *(".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo", ".png", ".tif", ".tiff", ".webp"),
}
"""Extensions of image files. HEIC and AVIF may need something that is not installed: see `missing_for`."""
HEIF_HINT = "pillow-heif reads them: pip install pillow-heif"
AVIF_HINT = "Pillow 11.3 or newer reads them: pip install --upgrade pillow"
HEAD_BYTES = 512
"""Number of first bytes by which a file's format is recognised."""

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
"""Pillow's names of the formats that are read. Pillow may only try the one that the file's first bytes indicate:
without this limit it would run Ghostscript on a PostScript file that is named `photo.png`."""

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
"""A comment ends only at the end of its line, so there is one way to match and no header takes long."""
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
    """Return what to install to read images with this extension; None if they can be read already."""
    if suffix in HEIF_SUFFIXES:
        return None if find_spec("pillow_heif") else HEIF_HINT
    if suffix == ".avif":
        return None if _pillow_reads_avif() else AVIF_HINT
    return None


def _pillow_reads_avif() -> bool:
    from PIL import features

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an older Pillow warns about the unknown name
        return bool(features.check("avif"))


@functools.cache
def register_heif() -> None:
    """Register HEIC with Pillow; a second call does nothing."""
    from pillow_heif import options, register_heif_opener

    options.DECODE_THREADS = 1  # each thread has its own buffers
    register_heif_opener()


def image_kind(head: bytes) -> str | None:
    """Return the image format that a file's first bytes indicate, or None if it is not supported."""
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
    """Return whether this may be the header of a TGA image, which has no signature, only plausible fields."""
    if len(head) < 18 or head[1] > 1 or head[2] not in (1, 2, 3, 9, 10, 11):
        return False
    width, height = (int.from_bytes(head[place : place + 2], "little") for place in (12, 14))
    return width > 0 and height > 0 and head[16] in (1, 8, 16, 24, 32)


def other_kind(head: bytes) -> str:
    """Describe a file that is not an image, by its first bytes."""
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
    return "data of an unknown format"


@dataclass(frozen=True)
class Skipped:
    """Files that were left out because of their format: counts by extension, and a few of their names."""

    counts: tuple[tuple[str, int], ...] = ()
    """Extensions with their numbers of files, most frequent first."""
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
        """Return the skipped images that could be read if a missing package were installed."""
        counts = tuple((suffix, count) for suffix, count in self.counts if missing_for(suffix))
        endings = {suffix for suffix, _ in counts}
        return Skipped(counts, tuple(name for name in self.examples if suffix_of(name) in endings))

    def __str__(self) -> str:
        groups: dict[str, list[tuple[str, int]]] = {}
        for suffix, count in self.counts:
            groups.setdefault(missing_for(suffix) or "", []).append((suffix, count))
        hints = sorted(groups, key=lambda hint: not hint)  # readable after an installation comes first
        parts = [f"{_endings(groups[hint])} ({hint or 'not images'})" for hint in hints]
        files = "1 file" if self.total == 1 else f"{self.total:,} files"
        return f"{files} skipped: {', '.join(parts)}, such as {', '.join(self.examples)}"


def _endings(group: list[tuple[str, int]]) -> str:
    shown = [f"{count:,} {suffix or 'without an extension'}" for suffix, count in group[:_MOST_ENDINGS]]
    rest = sum(count for _, count in group[_MOST_ENDINGS:])
    return ", ".join(shown + [f"{rest:,} of other kinds"] * bool(rest))


def split_by_reading(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split file names into images that can be read here and all others, by their extensions."""
    readable: dict[str, bool] = {}
    images: list[str] = []
    others: list[str] = []
    for name in names:
        suffix = suffix_of(name)
        if suffix not in readable:
            readable[suffix] = suffix in IMAGE_SUFFIXES and missing_for(suffix) is None
        (images if readable[suffix] else others).append(name)
    return images, others


# The cost of decoding an image, estimated from its header without any image library.
#
# An ordinary file is decoded in this process. Everything else goes to a helper process, whose memory and time are
# limited: rare formats, large pictures, unusual structure, large metadata.

MOST_METADATA = 2**20
"""Largest number of bytes of metadata in an ordinary file."""
REFUSED_METADATA = 2**24
"""Bytes of metadata above which a file is refused: Pillow keeps several copies of them."""
MOST_TEXT = 2**16
"""Largest number of bytes of text, which may be compressed, in an ordinary PNG."""
MOST_PARTS = 10_000
"""Largest number of chunks or segments in an ordinary file."""
MOST_JPEG_PIXELS = 80 * 10**6
"""Largest number of pixels in an ordinary JPEG: a second of decoding. Pillow warns about larger ones."""
REFUSED_SCANS = 100
"""Number of scans above which a JPEG is refused: programs write ten or so, and each covers the whole picture."""
MOST_JPEG_WORK = 320 * 10**6
"""Largest product of pixels and scans in an ordinary progressive JPEG: each scan covers the whole picture."""

DECODED = 12
"""Bytes of memory for a pixel: as decoded, converted to RGB, and turned upright."""

JPEG_SCALE = 2
"""Times the network's size that a larger JPEG is decoded at, or more: decoders can do 1/2, 1/4 and 1/8 of its size
in less time. Photos of 12 million pixels take a third to half of the time, and their descriptors move by a 40th of
the distance between two images (benchmarks/reduced.py); with 1, by a 20th."""
_DRAFTS = (8, 4, 2, 1)
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
"""A JPEG marker that begins a segment, or the end marker; no other marker, and not 0xFF in pixel data."""


@dataclass(frozen=True)
class Ordinary:
    """An image that may be decoded in this process."""

    pixels: int
    """Number of pixels that the header states."""
    memory: int
    """Largest number of bytes that decoding can take."""


def ordinary(data: bytes, kind: str, size: int) -> Ordinary | None:
    """Return the cost of decoding to a square of `size`; None if it is unknown or the file is unusual."""
    reader = _READERS.get(kind)
    try:
        return reader(data, size) if reader is not None else None
    except (struct.error, IndexError):  # cut off within the header
        return None


def _jpeg(data: bytes, size: int) -> Ordinary | None:
    frame: bytes | None = None
    frame_marker = place = metadata = 0
    for marker, place, length in _segments(data):
        if marker in (0xC0, 0xC1, 0xC2):
            if frame is not None:
                return None
            frame, frame_marker = data[place : place + length], marker
        elif 0xE0 <= marker <= 0xEF or marker == 0xFE:
            metadata += length
        elif marker == 0xDA:
            break
        elif marker not in (0xC4, 0xDB, 0xDD):  # tables and the restart interval
            return None
    else:
        return None
    if frame is None or metadata > MOST_METADATA:
        return None
    height, width, layers = struct.unpack_from(">HHB", frame, 1)
    pixels = width * height
    scale = min(width, height) // (JPEG_SCALE * size)
    draft = next((step for step in _DRAFTS if scale >= step), 1)
    memory = DECODED * (width // draft + 1) * (height // draft + 1)
    if frame_marker == 0xC2 or data[place] < layers:  # all coefficients are kept until the last scan is read
        if pixels * jpeg_scans(data) > MOST_JPEG_WORK:
            return None
        memory += _coefficients(frame, layers, pixels)
    return Ordinary(pixels, memory) if pixels <= MOST_JPEG_PIXELS else None


def jpeg_scans(data: bytes) -> int:
    """Return the number of scans up to a JPEG's end; phones add a film or a second picture after it."""
    place, scans = 2, 0
    for _ in range(MOST_PARTS):
        match = _MARKER.search(data, place)
        if match is None or match[0] == b"\xff\xd9" or len(data) < match.end() + 2:
            return scans
        scans += match[0] == b"\xff\xda"
        place = match.end() + max(2, int.from_bytes(data[match.end() : match.end() + 2], "big"))
    return data.count(b"\xff\xda")  # unusual structure: rather count too many than too few


def jpeg_coefficients(data: bytes) -> int:
    """Return the bytes of coefficients kept while a progressive JPEG is decoded; 0 for other JPEGs."""
    for marker, place, length in _segments(data):
        if marker == 0xC2:
            frame = data[place : place + length]
            height, width, layers = struct.unpack_from(">HHB", frame, 1)
            return _coefficients(frame, layers, width * height)
        if marker == 0xDA:
            break
    return 0


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Return the width and height that a WebP file states; its decoder allocates memory for them at once."""
    first, content = data[12:16], len(data) - 20
    if first == b"VP8X" and content >= 10:
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if first == b"VP8L" and content >= 5:
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if first == b"VP8 " and content >= 10:
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


def png_metadata(data: bytes) -> int:
    """Return the bytes of metadata in a PNG's first `MOST_PARTS` chunks."""
    place, metadata = 8, 0
    for _ in range(MOST_PARTS):
        if place + 8 > len(data):
            break
        length, kind = struct.unpack_from(">I4s", data, place)
        metadata += min(length, len(data) - place) if kind not in (b"IDAT", b"fdAT") else 0
        place += 12 + length
    return metadata


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, place and length of a JPEG's segments up to the first scan; stop at invalid data."""
    place = 2
    for _ in range(MOST_PARTS):
        start, marker, length = struct.unpack_from(">BBH", data, place)
        if start != 0xFF or length < 2:
            return
        yield marker, place + 4, length - 2
        place += 2 + length


def _coefficients(frame: bytes, layers: int, pixels: int) -> int:
    """Return the bytes of a JPEG's coefficients, two for each sample."""
    factors = [divmod(frame[7 + 3 * layer], 16) for layer in range(layers)]
    most = max((across for across, _ in factors), default=0) * max((down for _, down in factors), default=0)
    return 2 * pixels * sum(across * down for across, down in factors) // max(most, 1)


def _png(data: bytes, _: int) -> Ordinary | None:
    width, height = struct.unpack_from(">II", data, 16)
    place, metadata, text = 8, 0, 0
    for _ in range(MOST_PARTS):
        if place + 8 > len(data):
            break
        length, kind = struct.unpack_from(">I4s", data, place)
        metadata += length if kind != b"IDAT" else 0
        if kind in (b"tEXt", b"zTXt", b"iTXt"):
            text += length
            if data.startswith(b"Raw profile type", place + 8):  # EXIF written as text
                return None
        place += 12 + length
    else:
        return None
    return _rectangle(width, height, DECODED) if metadata <= MOST_METADATA and text <= MOST_TEXT else None


def _webp(data: bytes, _: int) -> Ordinary | None:
    place, metadata = 12, 0
    canvas: tuple[int, int] | None = None
    for _ in range(64):
        if place + 8 > len(data):
            break
        kind, length = struct.unpack_from("<4sI", data, place)
        body = place + 8
        if kind == b"VP8X" and canvas is None and not data[body] & 2:  # 2: animated
            sides = data[body + 4 : body + 10]
            canvas = int.from_bytes(sides[:3], "little") + 1, int.from_bytes(sides[3:], "little") + 1
        elif kind == b"VP8 " and canvas is None:
            across, down = struct.unpack_from("<HH", data, body + 6)
            canvas = across & 0x3FFF, down & 0x3FFF
        elif kind == b"VP8L" and canvas is None:
            (bits,) = struct.unpack_from("<I", data, body + 1)
            canvas = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        elif canvas is None or kind in (b"ANMF", b"ANIM", b"VP8X"):
            return None
        elif kind not in (b"VP8 ", b"VP8L", b"ALPH"):
            metadata += length
        place = body + length + length % 2
    else:
        return None
    # libwebp holds two canvases and its own picture, Pillow a copy of the canvas and the image.
    return _rectangle(*canvas, 16 + DECODED) if canvas is not None and metadata <= MOST_METADATA else None


def _gif(data: bytes, _: int) -> Ordinary | None:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    place = 13 + (3 << (flags & 7) + 1 if flags & 128 else 0)
    in_extension = False
    for _ in range(MOST_PARTS):
        byte = data[place]
        if in_extension:
            place += 1 + byte
            in_extension = byte != 0
        elif byte == 0x21:
            place += 2
            in_extension = True
        elif byte == 0x2C:
            left, top, across, down = struct.unpack_from("<HHHH", data, place + 1)
            return _rectangle(max(width, left + across), max(height, top + down), DECODED)
        else:
            return None
    return None


def _bmp(data: bytes, _: int) -> Ordinary | None:
    (header,) = struct.unpack_from("<I", data, 14)
    if header < 40:
        return None
    width, height, _, _, packed = struct.unpack_from("<iiHHI", data, 18)
    return _rectangle(abs(width), abs(height), DECODED) if packed in (0, 3) else None  # 3: plain too, with masks


def _rectangle(width: int, height: int, bytes_each: int) -> Ordinary:
    return Ordinary(width * height, width * height * bytes_each)


_READERS = {"jpeg": _jpeg, "png": _png, "webp": _webp, "gif": _gif, "bmp": _bmp}
