"""Anything that a caller may hand over as an image, made one thing: a name, its content, its pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from skillmesh.data.images import Pixels, UnreadableImageError, decode, shrink, to_rgb, upright
from skillmesh.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

    ImageInput = str | Path | bytes | Image.Image | np.ndarray[Any, Any]


class AnyImage(Protocol):
    """An image that can be hashed and decoded, perhaps on another thread."""

    @property
    def name(self) -> str: ...

    def content(self) -> bytes:
        """Bytes that identify the image."""
        ...

    def pixels(self, content: bytes, size: int) -> Pixels:
        """Decode `content` to (size, size, 3)."""
        ...


@dataclass(frozen=True)
class EncodedImage:
    """An image file's bytes, or the path where they lie."""

    name: str
    data: bytes | None = None

    def content(self) -> bytes:
        if self.data is not None:
            return self.data
        try:
            return Path(self.name).read_bytes()
        except OSError as error:
            raise UnreadableImageError(f"{self.name} cannot be read: {error.strerror or error}") from error

    def pixels(self, content: bytes, size: int) -> Pixels:
        return decode(content, size)


@dataclass(frozen=True)
class OpenImage:
    """A Pillow image that the caller holds."""

    name: str
    image: Image.Image

    def content(self) -> bytes:
        # RGB, since the bytes of a palette image do not tell its colours.
        rgb = self._rgb()
        return f"{rgb.size} ".encode() + rgb.tobytes()

    def pixels(self, content: bytes, size: int) -> Pixels:
        return shrink(self._rgb(), size)

    def _rgb(self) -> Image.Image:
        try:
            return to_rgb(upright(self.image))
        except Exception as error:  # a file opened but not yet loaded fails here, in any way
            raise UnreadableImageError(f"{self.name} cannot be loaded: {error}") from error


def as_image(value: ImageInput, index: int = 0) -> AnyImage:
    """Accept a path, encoded bytes, a Pillow image, or an array (height, width[, 3 or 4]) of uint8."""
    from PIL import Image

    if isinstance(value, str | Path):
        return EncodedImage(str(value))
    if isinstance(value, bytes):
        return EncodedImage(f"image {index}", value)
    if isinstance(value, Image.Image):
        return OpenImage(f"image {index}", value)
    if isinstance(value, np.ndarray):
        if (
            value.size
            and value.dtype == np.uint8
            and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (3, 4)))
        ):
            return OpenImage(f"image {index}", Image.fromarray(value))
        raise DataError(
            f"image {index} is an array of {value.dtype} and shape {value.shape}; "
            "expected uint8 of (height, width), (height, width, 3) or (height, width, 4)"
        )
    raise DataError(
        f"image {index} is a {type(value).__name__}; expected a path, bytes, a Pillow image or an array"
    )
