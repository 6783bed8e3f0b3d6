"""Bytes of an image file in, RGB pixels of the size that the backbone takes out, within bounds."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.formats import (
    AVIF_HINT,
    HEAD_BYTES,
    HEIF_HINT,
    PILLOW_FORMATS,
    REFUSED_METADATA,
    REFUSED_SCANS,
    Ordinary,
    image_kind,
    jpeg_scans,
    missing_for,
    ordinary,
    png_metadata,
    register_heif,
    webp_size,
)
from skillmesh.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

# How much memory and time reading images may take, whoever made them.
#
# Three bounds hold for the whole process, however many threads read: on the bytes of files that are in memory, on
# the pixels that are decoded here, and on what the helper processes take that decode unusual files (`helper.py`).

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
        self.begin_anew()
        if hasattr(os, "register_at_fork"):  # threads that hold some of it are not copied
            os.register_at_fork(after_in_child=self.begin_anew)

    def begin_anew(self) -> None:
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


Pixels = NDArray[np.uint8]
Check = Callable[[int], None]
"""Told how many pixels an opened image has, before they are decoded."""

MIN_SIDE = 8
"""Pixels that the shorter side of an image must have: scikit-learn's digits, the smallest images that people
classify, have 8; the smallest of forty real tasks have 16."""
REDUCED_FROM = 20 * 10**6
"""Pixels above which an image is first averaged over rectangles of pixels: squeezing takes three times as long."""
STRIP = 2**19
"""Pixels that are converted at once."""
_FULL_SIZE = 2**31
_ORIENTATION = 0x0112


class UnreadableImageError(DataError):
    """A file that has the name of an image but cannot be decoded."""


def decode(data: bytes, size: int) -> Pixels:
    """Decode an image file to (size, size, 3): upright, RGB, the whole image squeezed into the square."""
    kind = _kind(data)
    with _affordable(data, kind, size) as header:
        if header is not None:
            return decode_here(data, kind, size, _as_stated(header))
    from skillmesh.data.helper import HELPERS

    pixels = np.frombuffer(HELPERS.run("decode", kind, size, data), dtype=np.uint8)
    return pixels.reshape(size, size, 3)


def pixel_hash(data: bytes) -> bytes:
    """Decode an image file in full and hash what it shows: the same for one picture saved in two lossless ways."""
    kind = _kind(data)
    with _affordable(data, kind, _FULL_SIZE) as header:
        if header is not None:
            return hash_here(data, kind, _as_stated(header))
    from skillmesh.data.helper import HELPERS

    return HELPERS.run("hash", kind, 0, data)


@contextmanager
def _affordable(data: bytes, kind: str, size: int) -> Iterator[Ordinary | None]:
    """Hold the memory that decoding takes in this process; None where the helper process has to do it."""
    header = ordinary(data, kind, size)
    if header is None or header.memory > HERE:
        yield None
        return
    with DECODING.taken(header.memory):
        yield header


def _as_stated(header: Ordinary) -> Check:
    """Return what refuses more pixels than the memory was taken for."""

    def check(pixels: int) -> None:
        if pixels > header.pixels:
            raise UnreadableImageError(
                f"its header states {header.pixels:,} pixels in one place and {pixels:,} in another; save the "
                "image anew with another program"
            )

    return check


def decode_here(data: bytes, kind: str, size: int, check: Check) -> Pixels:
    """Decode in this process; see `decode`."""
    with _opened(data, kind, check) as image:
        # JPEG can be decoded at 1/2, 1/4, 1/8 for free: 11 × faster on photos of 12 megapixels.
        image.draft("RGB", (2 * size, 2 * size))
        return shrink(image, size)


def hash_here(data: bytes, kind: str, check: Check) -> bytes:
    """Hash in this process; see `pixel_hash`."""
    with _opened(data, kind, check) as image:
        _refuse_too_small(image)
        return hash_pixels(image)


def open_rgb(data: bytes) -> Image.Image:
    """Decode an image file that is trusted, in full and in this process: upright, RGB."""
    with _opened(data, _kind(data), lambda _: None) as image:
        return _upright_rgb(image)


@contextmanager
def _opened(data: bytes, kind: str, check: Check) -> Iterator[Image.Image]:
    """An image while it is decoded; whatever goes wrong with it is an `UnreadableImageError`."""
    from PIL import Image, UnidentifiedImageError

    try:
        if kind == "heif":
            register_heif()
        with Image.open(io.BytesIO(data), formats=PILLOW_FORMATS[kind]) as image:
            check(image.width * image.height)
            yield image
    except DataError:  # ours: also of a setting that is wrong, which is no fault of the image
        raise
    except UnidentifiedImageError:  # its own message names an address in memory
        raise UnreadableImageError(
            f"damaged, or not an image of a known format: it begins like {kind.upper()} and cannot be read as such"
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on broken files
        raise UnreadableImageError(f"{type(error).__name__}: {error}") from error


def _kind(data: bytes) -> str:
    """Tell the format by the first bytes; refuse all but those that we mean to read, and can read here."""
    if not data:
        raise UnreadableImageError("the file is empty")
    kind = image_kind(data[:HEAD_BYTES])
    if kind is None:
        raise UnreadableImageError("not an image of a known format")
    if kind == "heif" and missing_for(".heic"):
        raise UnreadableImageError(f"a HEIC image, and nothing installed reads these; {HEIF_HINT}")
    if kind == "avif" and missing_for(".avif"):
        raise UnreadableImageError(f"an AVIF image, and the installed Pillow reads none; {AVIF_HINT}")
    stated = webp_size(data) if kind == "webp" else None
    if stated is not None and (reason := too_many_pixels(*stated)):
        raise UnreadableImageError(reason)  # for a decoder that runs out of memory a helper process would end
    if kind == "jpeg" and (scans := jpeg_scans(data)) > REFUSED_SCANS:
        raise UnreadableImageError(
            f"a JPEG of {scans:,} scans, expected at most {REFUSED_SCANS}; save it anew with another program"
        )
    if kind == "png" and (beside := png_metadata(data)) > REFUSED_METADATA:
        raise UnreadableImageError(
            f"{beside / 1e6:.0f} MB beside the pixels (EXIF, text, profiles), expected at most "
            f"{REFUSED_METADATA / 1e6:.0f}; save the image anew without them"
        )
    return kind


def shrink(image: Image.Image, size: int) -> Pixels:
    """Turn the image upright and squeeze all of it into (size, size, 3).

    Squeezing keeps what lies at the border, which a centre crop would throw away; a wrong proportion matters
    less to the backbone than a missing part of the object.
    """
    from PIL import Image

    _refuse_too_small(image)
    _refuse_too_large(image)
    turn = _turn(image)
    factors = (1, 1)
    if image.width * image.height > REDUCED_FROM:
        factors = max(1, image.width // (4 * size)), max(1, image.height // (4 * size))
    rgb = to_rgb(image, factors)
    upright = rgb if turn is None else rgb.transpose(turn)
    return np.asarray(upright.resize((size, size), Image.Resampling.BICUBIC))


def hash_pixels(image: Image.Image) -> bytes:
    """Hash what an image shows at its full size."""
    _refuse_too_large(image)
    rgb = _upright_rgb(image)
    digest = hashlib.blake2b(f"{rgb.size} ".encode(), digest_size=16)
    for strip in _strips(rgb):
        digest.update(strip.tobytes())
    return digest.digest()


def save_lossless(image: Image.Image, kind: str) -> bytes:
    """Make an image file of what an image shows at its full size: a `BMP` to decode soon, a `PNG` to keep."""
    from PIL import Image

    _refuse_too_large(image)
    plain = Image.fromarray(np.asarray(_upright_rgb(image)))  # without metadata, which would turn it once more
    out = io.BytesIO()
    plain.save(out, kind, **({"compress_level": 1} if kind == "PNG" else {}))
    return out.getvalue()


def _refuse_too_small(image: Image.Image) -> None:
    if min(image.size) < MIN_SIDE:
        raise UnreadableImageError(
            f"{image.width} × {image.height} pixels are too few to show anything, expected {MIN_SIDE} on a side "
            "or more"
        )


def _refuse_too_large(image: Image.Image) -> None:
    if reason := too_many_pixels(*image.size):
        raise UnreadableImageError(reason)


def _upright_rgb(image: Image.Image) -> Image.Image:
    turn = _turn(image)
    rgb = to_rgb(image)
    return rgb if turn is None else rgb.transpose(turn)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Return how to turn the image upright, as its EXIF tag says; None where it is."""
    from PIL import Image

    image.load()  # a PNG may have the tag after its pixels
    turns = (
        *(Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM),
        *(Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE),
        Image.Transpose.ROTATE_90,
    )
    return dict(enumerate(turns, start=2)).get(image.getexif().get(_ORIENTATION, 1))


def _is_plain_rgb(image: Image.Image) -> bool:
    return image.mode == "RGB" and "transparency" not in image.info


def to_rgb(image: Image.Image, factors: tuple[int, int] = (1, 1)) -> Image.Image:
    """Bring any mode to RGB: transparent areas become white, high bit depths are scaled to 8.

    It is done in strips, so that a large image does not lie in memory in several modes.
    """
    from PIL import Image

    if factors == (1, 1) and _is_plain_rgb(image):
        return image
    convert, see_through = _conversion(image), _is_see_through(image)
    across, down = factors
    rgb = Image.new("RGB", (-(-image.width // across), -(-image.height // down)))
    top = 0
    for strip in _strips(image, down):
        if factors == (1, 1):
            part = convert(strip)
        elif see_through:  # averaged with colours weighed by how much they show, then set on white
            part = _on_white(strip.convert("RGBA").convert("RGBa").reduce(factors).convert("RGBA"))
        else:
            part = convert(strip).reduce(factors)
        rgb.paste(part, (0, top))
        top += part.height
    return rgb


def _strips(image: Image.Image, multiple: int = 1) -> Iterator[Image.Image]:
    """Yield an image from top to bottom, a number of rows at a time that can be divided by `multiple`."""
    rows = max(1, STRIP // (image.width * multiple)) * multiple
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(image.height, top + rows)))


def _conversion(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """Return what makes a part of this image RGB: 16-bit greys have a known scale, 32-bit ones their own range."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        table = _scaled_to_8_bits(np.arange(65536), 0, 65535)
        return lambda part: Image.fromarray(table[np.asarray(part)]).convert("RGB")
    if image.mode in ("I", "F"):
        low, high = _range(image)
        return lambda part: Image.fromarray(_scaled_to_8_bits(np.asarray(part), low, high)).convert("RGB")
    if _is_see_through(image):
        return _on_white
    return lambda part: part.convert("RGB")


def _is_see_through(image: Image.Image) -> bool:
    return "A" in image.getbands() or "transparency" in image.info


def _on_white(part: Image.Image) -> Image.Image:
    from PIL import Image

    layer = part.convert("RGBA")
    paper = Image.new("RGBA", layer.size, "white")
    return Image.alpha_composite(paper, layer).convert("RGB")


def _range(image: Image.Image) -> tuple[float, float]:
    """Return the least and the greatest value of a 32-bit grey; floats mark what was not measured by NaN."""
    low, high = np.inf, -np.inf
    for strip in _strips(image):
        values = np.asarray(strip, dtype=np.float64)
        known = values[np.isfinite(values)]
        low, high = float(known.min(initial=low)), float(known.max(initial=high))
    return low, high


def _scaled_to_8_bits(values: NDArray[Any], low: float, high: float) -> Pixels:
    exact = values.astype(np.float64)
    scaled = (exact - low) * (255 / (high - low)) if high > low else np.zeros_like(exact)
    return np.clip(np.nan_to_num(scaled), 0, 255).astype(np.uint8)
