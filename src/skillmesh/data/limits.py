"""How much memory and time reading images may take, whoever made them.

Three bounds hold for the whole process, however many threads read: on the bytes of files that are in memory, on
the pixels that are decoded here, and on what the helper processes take that decode unusual files (`helper.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from skillmesh.errors import DataError

MEGAPIXELS = "SKILLMESH_MAX_MEGAPIXELS"
DEFAULT_MEGAPIXELS = 40
"""A page scanned at 600 dpi has 35. Larger photos are JPEGs, which decode smaller: several hundred are read."""
BYTES_A_PIXEL = 4
"""What Pillow takes for a pixel of most modes."""
SEVERAL_COPIES = {"heif": 5, "webp": 5, "avif": 5, "jpeg": 5}
"""Bytes for each allowed pixel that other decoders may take: they keep a picture several times, or all its
coefficients, so what they read is smaller. HEIC photos of 24 million pixels, which phones make, need 4 to 5."""
SECONDS = 25.0
"""After so long a helper process is stopped, however busy the machine is."""
AN_IMAGE, A_MEGAPIXEL = 0.5, {"heif": 0.25, "avif": 0.25, "other": 0.1}
"""Seconds of a processor that a helper may take for an image, and beside that for each million of its pixels, by
format: PNG, TIFF and WebP take 0.02 to 0.06 of these, the finest HEIC 0.14."""
LEAST_SHARE = 0.5
"""Each image that takes too long halves the time of the next, down to this; each that can be read doubles it."""
FORGIVEN = 60.0
"""Seconds after which none is held against those that follow."""
HERE = 48 * 10**6
"""Bytes of memory that one image may need to be decoded in this process; more is left to the helper."""


def max_pixels() -> int:
    """Return how many pixels an image may have, as `SKILLMESH_MAX_MEGAPIXELS` says."""
    text = os.environ.get(MEGAPIXELS) or str(DEFAULT_MEGAPIXELS)
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise DataError(f"{MEGAPIXELS} is {text!r}; expected a whole number from 1 to 100000")
    return int(text) * 10**6


def too_many_pixels(width: int, height: int) -> str | None:
    """Say why an image of this size is not decoded; None where it may be."""
    limit = max_pixels()
    if width * height <= limit:
        return None
    return (
        f"{width:,} × {height:,} are {width * height / 1e6:,.0f} million pixels, expected at most "
        f"{limit // 10**6:,} million; shrink the image, or set {MEGAPIXELS}"
    )


class Room:
    """Memory that threads share: who wants more than is left waits, and nobody overtakes one that waits."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._used = 0
        self._turn = threading.Lock()
        self._freed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Hold `size` bytes of it, or all where that is less."""
        size = min(size, self.total)
        with self._turn, self._freed:
            self._freed.wait_for(lambda: self._used + size <= self.total)
            self._used += size
        try:
            yield
        finally:
            with self._freed:
                self._used -= size
                self._freed.notify_all()


CONTENTS = Room(64 * 2**20)
"""Files that have been read and are not decoded yet."""
DECODING = Room(96 * 10**6)
"""Images that are being decoded in this process."""
