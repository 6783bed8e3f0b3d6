"""Decode image files to RGB pixels of the size that the backbone takes, with limits on memory and time."""

from __future__ import annotations

import hashlib
import io
import os
import struct
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
    JPEG_SCALE,
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

# Limits on the memory and time for reading images, which may come from anywhere.
#
# Three limits hold for the whole process, for all threads together: on the bytes of files in memory, on the pixels
# that this process decodes, and on the memory of the helper processes that decode unusual files (`helper.py`).

MEGAPIXELS = "SKILLMESH_MAX_MEGAPIXELS"
DEFAULT_MEGAPIXELS = 40
"""Default limit in million pixels. A page scanned at 600 dpi has 35. Larger photos are JPEGs, which can be decoded
at a smaller size: JPEGs of several hundred million pixels are read."""
BYTES_A_PIXEL = 4
"""Bytes that Pillow takes for a pixel in most modes."""
SEVERAL_COPIES = {"heif": 5, "webp": 5, "avif": 5, "jpeg": 5}
"""Bytes for each allowed pixel that other decoders may take: they keep several copies of a picture, or all its
coefficients, so the largest picture they can read is smaller. HEIC photos of 24 million pixels, which phones
make, need 4 to 5."""
SECONDS = 25.0
"""Seconds after which a helper process is stopped, however busy the machine is."""
AN_IMAGE, A_MEGAPIXEL = 0.5, {"heif": 0.25, "avif": 0.25, "other": 0.1}
"""Processor seconds that a helper may take for an image, and in addition for each million of its pixels, by
format: PNG, TIFF and WebP take 0.02 to 0.06 for a million pixels, HEIC of the highest quality 0.14."""
LEAST_SHARE = 0.5
"""Smallest share of the usual time, 0 to 1. Each image that takes too long halves the time for the next one, down
to this share; each that can be read doubles it."""
FORGIVEN = 60.0
"""Seconds after a slow image until the next images get the full time again."""
HERE = 48 * 10**6
"""Bytes of memory up to which an image is decoded in this process; the helper decodes larger ones."""


def max_pixels() -> int:
    """Return the largest number of pixels of an image, as set by `SKILLMESH_MAX_MEGAPIXELS`."""
    text = os.environ.get(MEGAPIXELS) or str(DEFAULT_MEGAPIXELS)
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise DataError(f"{MEGAPIXELS} is {text!r}; expected a whole number from 1 to 100000")
    return int(text) * 10**6


def too_many_pixels(width: int, height: int) -> str | None:
    """Return why an image of this size is too large to be decoded, or None if it is not."""
    limit = max_pixels()
    if width * height <= limit:
        return None
    return (
        f"the image has {width:,} × {height:,} = {width * height / 1e6:,.0f} million pixels, expected at most "
        f"{limit // 10**6:,} million; shrink the image, or set {MEGAPIXELS}"
    )


class Room:
    """Memory shared by threads. A thread that needs more than is left waits; threads are served in turn."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.reset()
        if hasattr(os, "register_at_fork"):  # a fork does not copy the threads that hold memory
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        self._used = 0
        self._turn = threading.Lock()
        self._freed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Hold `size` bytes, or the total if that is less, inside this context."""
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
"""Memory for files that have been read and not decoded yet."""
DECODING = Room(96 * 10**6)
"""Memory for images that are being decoded in this process."""


Pixels = NDArray[np.uint8]
Check = Callable[[int], None]
"""Function called with the number of pixels of an opened image, before they are decoded."""

MIN_SIDE = 8
"""Smallest length of an image's shorter side, in pixels: scikit-learn's digits, the smallest images that people
classify, have 8; the smallest of forty real tasks have 16."""
REDUCED_FROM = 20 * 10**6
"""Pixels above which an image is first averaged over rectangles of pixels: resizing it directly takes three times
as long."""
STRIP = 2**19
"""Number of pixels that are converted at once."""
THUMBNAIL = 16
"""Approximate side of a small version, in pixels."""
SIDES = "<II"
"""Form of the width and the height before an RGB image's pixels."""
_FULL_SIZE = 2**31
_ORIENTATION = 0x0112


class UnreadableImageError(DataError):
    """A file that has the name of an image but cannot be decoded."""


def decode(data: bytes, size: int) -> Pixels:
    """Return an image file's pixels as (size, size, 3): upright, RGB, the whole image resized to the square."""
    kind = _kind(data)
    with _affordable(data, kind, size) as header:
        if header is not None:
            return decode_here(data, kind, size, _as_stated(header))
    from skillmesh.data.helper import HELPERS

    pixels = np.frombuffer(HELPERS.run("decode", kind, size, data), dtype=np.uint8)
    return pixels.reshape(size, size, 3)


def decode_rgb(data: bytes, most: int) -> Image.Image:
    """Return an image file as `upright_rgb` does, under the limits of `decode`."""
    from PIL import Image

    kind = _kind(data)
    with _affordable(data, kind, most // JPEG_SCALE) as header:
        if header is not None:
            return rgb_here(data, kind, most, _as_stated(header))
    from skillmesh.data.helper import HELPERS

    reply = HELPERS.run("rgb", kind, most, data)
    width, height = struct.unpack_from(SIDES, reply)
    return Image.frombytes("RGB", (width, height), reply[struct.calcsize(SIDES) :])


def upright_rgb(image: Image.Image, most: int) -> Image.Image:
    """Return an upright RGB copy, its shorter side reduced to `most` pixels, its longer to four times that.

    A smaller image is not enlarged.
    """
    from PIL import Image

    _refuse_too_small(image)
    _refuse_too_large(image)
    rgb = _upright_rgb(image)
    share = min(1.0, most / min(rgb.size))
    width, height = (max(1, min(round(side * share), 4 * most)) for side in rgb.size)
    return rgb.copy() if (width, height) == rgb.size else rgb.resize((width, height), Image.Resampling.BICUBIC)


def pixel_hash(data: bytes) -> bytes:
    """Return a hash of an image file's pixels: equal for the same picture in two lossless formats."""
    kind = _kind(data)
    with _affordable(data, kind, _FULL_SIZE) as header:
        if header is not None:
            return hash_here(data, kind, _as_stated(header))
    from skillmesh.data.helper import HELPERS

    return HELPERS.run("hash", kind, 0, data)


@contextmanager
def _affordable(data: bytes, kind: str, size: int) -> Iterator[Ordinary | None]:
    """Hold the memory for decoding in this process; yield None if a helper process has to decode the image."""
    header = ordinary(data, kind, size)
    if header is None or header.memory > HERE:
        yield None
        return
    with DECODING.taken(header.memory):
        yield header


def _as_stated(header: Ordinary) -> Check:
    """Return a check that refuses more pixels than the memory was reserved for."""

    def check(pixels: int) -> None:
        if pixels > header.pixels:
            raise UnreadableImageError(
                f"its header states {header.pixels:,} pixels in one place and {pixels:,} in another; save the "
                "image again with another program"
            )

    return check


def decode_here(data: bytes, kind: str, size: int, check: Check) -> Pixels:
    """Decode in this process; see `decode`."""
    with _opened(data, kind, check) as image:
        image.draft("RGB", (JPEG_SCALE * size, JPEG_SCALE * size))  # only JPEGs have a smaller form
        return shrink(image, size)


def rgb_here(data: bytes, kind: str, most: int, check: Check) -> Image.Image:
    """Decode in this process; see `decode_rgb`."""
    with _opened(data, kind, check) as image:
        image.draft("RGB", (most, most))
        return upright_rgb(image, most)


def hash_here(data: bytes, kind: str, check: Check) -> bytes:
    """Hash in this process; see `pixel_hash`."""
    with _opened(data, kind, check) as image:
        _refuse_too_small(image)
        return hash_pixels(image)


def open_rgb(data: bytes) -> Image.Image:
    """Decode a trusted image file at full size, in this process: upright, RGB."""
    with _opened(data, _kind(data), lambda _: None) as image:
        return _upright_rgb(image)


@contextmanager
def _opened(data: bytes, kind: str, check: Check) -> Iterator[Image.Image]:
    """Yield the opened image; any failure while it is decoded becomes an `UnreadableImageError`."""
    from PIL import Image, UnidentifiedImageError

    try:
        if kind == "heif":
            register_heif()
        with Image.open(io.BytesIO(data), formats=PILLOW_FORMATS[kind]) as image:
            check(image.width * image.height)
            yield image
    except DataError:  # our own, which may also be about a wrong setting instead of the image
        raise
    except UnidentifiedImageError:  # its message contains a memory address
        raise UnreadableImageError(
            f"damaged, or not an image of a known format: it begins like {kind.upper()} but cannot be read as such"
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on broken files
        raise UnreadableImageError(f"{type(error).__name__}: {error}") from error


def _kind(data: bytes) -> str:
    """Return the format by the first bytes; refuse formats that are not supported or cannot be read here."""
    if not data:
        raise UnreadableImageError("the file is empty")
    kind = image_kind(data[:HEAD_BYTES])
    if kind is None:
        raise UnreadableImageError("not an image of a known format")
    if kind == "heif" and missing_for(".heic"):
        raise UnreadableImageError(f"a HEIC image, but nothing that reads these is installed; {HEIF_HINT}")
    if kind == "avif" and missing_for(".avif"):
        raise UnreadableImageError(f"an AVIF image, but the installed Pillow cannot read these; {AVIF_HINT}")
    stated = webp_size(data) if kind == "webp" else None
    if stated is not None and (reason := too_many_pixels(*stated)):
        raise UnreadableImageError(reason)  # otherwise the decoder runs out of memory and ends the helper process
    if kind == "jpeg" and (scans := jpeg_scans(data)) > REFUSED_SCANS:
        raise UnreadableImageError(
            f"a JPEG of {scans:,} scans, expected at most {REFUSED_SCANS}; save it again with another program"
        )
    if kind == "png" and (beside := png_metadata(data)) > REFUSED_METADATA:
        raise UnreadableImageError(
            f"{beside / 1e6:.0f} MB of metadata (EXIF, text, profiles), expected at most "
            f"{REFUSED_METADATA / 1e6:.0f}; save the image again without it"
        )
    return kind


def shrink(image: Image.Image, size: int) -> Pixels:
    """Turn the image upright and resize all of it to (size, size, 3).

    Resizing keeps the border, which a centre crop would throw away. A wrong aspect ratio matters less to the
    backbone than a missing part of the object.
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


def thumbnail(pixels: Pixels) -> Pixels:
    """Return averages over squares, about `THUMBNAIL` on a side, which hardly depend on how an image was saved."""
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).reduce(max(1, len(pixels) // THUMBNAIL)))


def hash_pixels(image: Image.Image) -> bytes:
    """Return a hash of an image's pixels at full size."""
    _refuse_too_large(image)
    rgb = _upright_rgb(image)
    digest = hashlib.blake2b(f"{rgb.size} ".encode(), digest_size=16)
    for strip in _strips(rgb):
        digest.update(strip.tobytes())
    return digest.digest()


def hash_rgb(pixels: Pixels) -> bytes:
    """Return the hash of an RGB array (height, width, 3): that of the image which `hash_pixels` gets."""
    height, width, _ = pixels.shape
    if reason := too_many_pixels(width, height):
        raise UnreadableImageError(reason)
    digest = hashlib.blake2b(f"{(width, height)} ".encode(), digest_size=16)
    digest.update(pixels.data)
    return digest.digest()


def save_lossless(image: Image.Image, kind: str) -> bytes:
    """Return an image at full size as an image file: a `BMP` to decode soon, a `PNG` to keep."""
    from PIL import Image

    _refuse_too_large(image)
    plain = Image.fromarray(np.asarray(_upright_rgb(image)))  # without metadata, which would rotate it again
    out = io.BytesIO()
    plain.save(out, kind, **({"compress_level": 1} if kind == "PNG" else {}))
    return out.getvalue()


def _refuse_too_small(image: Image.Image) -> None:
    if min(image.size) < MIN_SIDE:
        raise UnreadableImageError(
            f"the image has only {image.width} × {image.height} pixels, expected {MIN_SIDE} or more on each side"
        )


def _refuse_too_large(image: Image.Image) -> None:
    if reason := too_many_pixels(*image.size):
        raise UnreadableImageError(reason)


def _upright_rgb(image: Image.Image) -> Image.Image:
    turn = _turn(image)
    rgb = to_rgb(image)
    return rgb if turn is None else rgb.transpose(turn)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Return how to turn the image upright, from its EXIF tag; None if it is upright."""
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
    """Convert any mode to RGB: transparent areas become white, high bit depths are scaled to 8.

    The image is converted in strips, so that memory never holds all of a large image in several modes.
    """
    from PIL import Image

    if factors == (1, 1) and _is_plain_rgb(image):
        return image
    convert, transparent = _conversion(image), _is_transparent(image)
    across, down = factors
    rgb = Image.new("RGB", (-(-image.width // across), -(-image.height // down)))
    top = 0
    for strip in _strips(image, down):
        if factors == (1, 1):
            part = convert(strip)
        elif transparent:  # averaged with colours weighted by their opacity, then put on white
            part = _on_white(strip.convert("RGBA").convert("RGBa").reduce(factors).convert("RGBA"))
        else:
            part = convert(strip).reduce(factors)
        rgb.paste(part, (0, top))
        top += part.height
    return rgb


def _strips(image: Image.Image, multiple: int = 1) -> Iterator[Image.Image]:
    """Yield an image in strips from top to bottom; their numbers of rows are multiples of `multiple`."""
    rows = max(1, STRIP // (image.width * multiple)) * multiple
    for top in range(0, image.height, rows):
        yield image.crop((0, top, image.width, min(image.height, top + rows)))


def _conversion(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """Return a function that converts a part of this image to RGB. 16-bit grey has a known scale; 32-bit grey is
    scaled from its own range."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        table = _scaled_to_8_bits(np.arange(65536), 0, 65535)
        return lambda part: Image.fromarray(table[np.asarray(part)]).convert("RGB")
    if image.mode in ("I", "F"):
        low, high = _range(image)
        return lambda part: Image.fromarray(_scaled_to_8_bits(np.asarray(part), low, high)).convert("RGB")
    if _is_transparent(image):
        return _on_white
    return lambda part: part.convert("RGB")


def _is_transparent(image: Image.Image) -> bool:
    return "A" in image.getbands() or "transparency" in image.info


def _on_white(part: Image.Image) -> Image.Image:
    from PIL import Image

    layer = part.convert("RGBA")
    paper = Image.new("RGBA", layer.size, "white")
    return Image.alpha_composite(paper, layer).convert("RGB")


def _range(image: Image.Image) -> tuple[float, float]:
    """Return the lowest and highest value of a 32-bit grey image, without NaN, which marks missing values."""
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
