"""What an image's header says about the cost of decoding it, read without any image library.

A file that is plainly ordinary is decoded in this process. Everything else goes to the helper process, whose
memory and time are limited: rare formats, large pictures, odd structure, large metadata.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MOST_METADATA = 2**20
"""Bytes beside the pixels that an ordinary file has."""
REFUSED_METADATA = 2**24
"""Bytes beside the pixels from which a file is refused: Pillow keeps several copies of them."""
MOST_TEXT = 2**16
"""Bytes of text, which may be packed, in an ordinary PNG."""
MOST_PARTS = 10_000
"""Chunks or segments of an ordinary file."""
MOST_JPEG_PIXELS = 80 * 10**6
"""Pillow warns of larger ones; a second of decoding."""
REFUSED_SCANS = 100
"""Scans from which a JPEG is refused: programs write ten or so, and each walks through the whole picture."""
MOST_JPEG_WORK = 320 * 10**6
"""Pixels times scans of an ordinary progressive JPEG: each scan walks through the whole picture."""

DECODED = 12
"""Bytes a pixel: as it was decoded, in RGB, turned upright."""

_DRAFTS = (8, 4, 2, 1)
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
"""A marker of JPEG that a segment follows, or its end; none that stands alone, nor 0xFF as a byte of pixels."""


@dataclass(frozen=True)
class Ordinary:
    """An image that may be decoded in this process."""

    pixels: int
    """Number of pixels that the header states."""
    memory: int
    """Bytes that decoding takes at most."""


def ordinary(data: bytes, kind: str, size: int) -> Ordinary | None:
    """Return what decoding for a square of `size` costs; None where that cannot be told or the file is unusual."""
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
    scale = min(width // (2 * size), height // (2 * size))
    draft = next((step for step in _DRAFTS if scale >= step), 1)
    memory = DECODED * (width // draft + 1) * (height // draft + 1)
    if frame_marker == 0xC2 or data[place] < layers:  # all coefficients are kept until the last scan is read
        if pixels * jpeg_scans(data) > MOST_JPEG_WORK:
            return None
        memory += _coefficients(frame, layers, pixels)
    return Ordinary(pixels, memory) if pixels <= MOST_JPEG_PIXELS else None


def jpeg_scans(data: bytes) -> int:
    """Return how many scans a JPEG has up to its end; phones put a film or a second picture behind that."""
    place, scans = 2, 0
    for _ in range(MOST_PARTS):
        found = _MARKER.search(data, place)
        if found is None or found[0] == b"\xff\xd9" or len(data) < found.end() + 2:
            return scans
        scans += found[0] == b"\xff\xda"
        place = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2], "big"))
    return data.count(b"\xff\xda")  # odd: count too many rather than too few


def jpeg_coefficients(data: bytes) -> int:
    """Return the bytes of coefficients that decoding a progressive JPEG keeps; 0 for others."""
    for marker, place, length in _segments(data):
        if marker == 0xC2:
            frame = data[place : place + length]
            height, width, layers = struct.unpack_from(">HHB", frame, 1)
            return _coefficients(frame, layers, width * height)
        if marker == 0xDA:
            break
    return 0


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Return the width and height that a WebP file states, which its decoder takes the memory for at once."""
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
    """Return how many bytes a PNG has beside its pixels, as far as its first chunks tell."""
    place, metadata = 8, 0
    for _ in range(MOST_PARTS):
        if place + 8 > len(data):
            break
        length, kind = struct.unpack_from(">I4s", data, place)
        metadata += min(length, len(data) - place) if kind not in (b"IDAT", b"fdAT") else 0
        place += 12 + length
    return metadata


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, place and length of a JPEG's segments up to the first scan; end early where it is odd."""
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
