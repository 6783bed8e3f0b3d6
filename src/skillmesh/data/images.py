"""Bytes of an image file in, RGB pixels of the size that the backbone takes out."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.formats import AVIF_HINT, HEAD_BYTES, HEIF_HINT, image_kind, missing_for, register_heif
from skillmesh.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]

MIN_SIDE = 8
"""Pixels that the shorter side of an image must have: scikit-learn's digits, the smallest images that people
classify, have 8; the smallest of forty real tasks have 16."""


class UnreadableImageError(DataError):
    """A file that has the name of an image but cannot be decoded."""


def decode(data: bytes, size: int) -> Pixels:
    """Decode an image file to (size, size, 3): upright, RGB, the whole image squeezed into the square."""
    with _opened(data) as image:
        # JPEG can be decoded at 1/2, 1/4, 1/8 for free: 11 × faster on photos of 12 megapixels.
        image.draft("RGB", (2 * size, 2 * size))
        return shrink(upright(image), size)


def pixel_hash(data: bytes) -> bytes:
    """Decode an image file in full and hash what it shows: the same for one picture saved in two lossless ways."""
    with _opened(data) as image:
        _refuse_too_small(image)
        rgb = to_rgb(upright(image))
        return hashlib.blake2b(f"{rgb.size} ".encode() + rgb.tobytes(), digest_size=16).digest()


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    """An image while it is decoded; whatever goes wrong with it is an `UnreadableImageError`."""
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise UnreadableImageError("the file is empty")
    try:
        _prepare_to_open(data)
        with Image.open(io.BytesIO(data)) as image:
            yield image
    except UnreadableImageError:
        raise
    except UnidentifiedImageError:  # its own message names an address in memory
        raise UnreadableImageError("not an image of a known format") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on broken files
        raise UnreadableImageError(f"{type(error).__name__}: {error}") from error


def _prepare_to_open(data: bytes) -> None:
    """Have Pillow learn HEIC when the first such image comes; say what to install where it cannot be read."""
    kind = image_kind(data[:HEAD_BYTES])
    if kind == "heif":
        if missing_for(".heic"):
            raise UnreadableImageError(f"a HEIC image, and nothing installed reads these; {HEIF_HINT}")
        register_heif()
    elif kind == "avif" and missing_for(".avif"):
        raise UnreadableImageError(f"an AVIF image, and the installed Pillow reads none; {AVIF_HINT}")


def upright(image: Image.Image) -> Image.Image:
    """Turn the image as its EXIF tag says; without one it stays as it is."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def shrink(image: Image.Image, size: int) -> Pixels:
    """Squeeze the whole image into (size, size, 3).

    Squeezing keeps what lies at the border, which a centre crop would throw away; a wrong proportion matters
    less to the backbone than a missing part of the object.
    """
    from PIL import Image

    _refuse_too_small(image)
    return np.asarray(to_rgb(image).resize((size, size), Image.Resampling.BICUBIC))


def _refuse_too_small(image: Image.Image) -> None:
    if min(image.size) < MIN_SIDE:
        raise UnreadableImageError(
            f"{image.width} × {image.height} pixels are too few to show anything, expected {MIN_SIDE} on a side "
            "or more"
        )


def to_rgb(image: Image.Image) -> Image.Image:
    """Bring any mode to RGB: transparent areas become white, high bit depths are scaled to 8."""
    from PIL import Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        image = _scale_to_8_bits(image)
    if "A" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        paper = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(paper, layer).convert("RGB")
    return image.convert("RGB")


def _scale_to_8_bits(image: Image.Image) -> Image.Image:
    """16- and 32-bit greys: full scale where it is known, else the image's own range."""
    from PIL import Image

    values = np.asarray(image, dtype=np.float64)
    known = values[np.isfinite(values)]  # floats mark what was not measured by NaN
    low, high = float(known.min(initial=np.inf)), float(known.max(initial=-np.inf))
    if image.mode.startswith("I;16"):
        low, high = 0.0, 65535.0
    scaled = (values - low) * (255 / (high - low)) if high > low else np.zeros_like(values)
    return Image.fromarray(np.clip(np.nan_to_num(scaled), 0, 255).astype(np.uint8))
