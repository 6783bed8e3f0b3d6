"""Anything that a caller may hand over as an image, made one thing: a name, its content, its pixels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from skillmesh.data.arrays import batch_of, holds_values, image_of
from skillmesh.data.images import Pixels, UnreadableImageError, decode, hash_pixels, save_lossless, shrink
from skillmesh.data.limits import CONTENTS
from skillmesh.data.sources import read_regular_file, size_of_file
from skillmesh.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    ImageInput = str | Path | bytes | Image.Image | np.ndarray[Any, Any]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@dataclass(frozen=True)
class Unreadable:
    """An image that was skipped, and why."""

    name: str
    reason: str


class AnyImage(Protocol):
    """An image that can be hashed and decoded, perhaps on another thread."""

    @property
    def name(self) -> str: ...

    def size(self) -> int:
        """Return the bytes that `content` reads into memory at most."""
        ...

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

    def size(self) -> int:
        return size_of_file(Path(self.name)) if self.data is None else 0

    def content(self) -> bytes:
        if self.data is not None:
            return self.data
        if is_url(self.name):
            raise UnreadableImageError(no_download(self.name))
        try:
            return read_regular_file(Path(self.name))
        except (OSError, ValueError) as error:  # ValueError: a null character in the path
            reason = getattr(error, "strerror", None) or error
            raise UnreadableImageError(f"{self.name} cannot be read: {reason}") from error

    def pixels(self, content: bytes, size: int) -> Pixels:
        return decode(content, size)


@dataclass(frozen=True)
class OpenImage:
    """A Pillow image that the caller holds."""

    name: str
    image: Image.Image

    def size(self) -> int:
        return 0

    def content(self) -> bytes:
        # Of the RGB image, since the bytes of a palette image do not tell its colours.
        with self._loading():
            return hash_pixels(self.image)

    def pixels(self, content: bytes, size: int) -> Pixels:
        with self._loading():
            return shrink(self.image, size)

    def saved(self, kind: str) -> bytes:
        """Make an image file of it, without loss; see `save_lossless`."""
        with self._loading():
            return save_lossless(self.image, kind)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        try:
            yield
        except UnreadableImageError:
            raise
        except Exception as error:  # a file opened but not yet loaded fails here, in any way
            raise UnreadableImageError(f"{self.name} cannot be loaded: {error}") from error


@dataclass(frozen=True)
class BadImage:
    """Something in an image's place that is none; whoever looks at it is told why."""

    name: str
    reason: str

    def size(self) -> int:
        return 0

    def content(self) -> bytes:
        raise UnreadableImageError(self.reason)

    def pixels(self, content: bytes, size: int) -> Pixels:
        raise UnreadableImageError(self.reason)


def read_pixels(image: AnyImage, size: int) -> Pixels:
    """Read and decode an image to (size, size, 3); waits where the files under way fill their room."""
    with CONTENTS.taken(image.size()):
        return image.pixels(image.content(), size)


def as_images(value: Any) -> tuple[list[AnyImage], bool]:
    """Accept one image or several; return them as a list, and whether it was a single one.

    One image is a path, encoded bytes, a Pillow image, or an array or tensor of (height, width),
    (height, width, 1, 3 or 4) or (1 or 3, height, width). Several are a list, a tuple or any iterable that mixes
    these, or a batch: an array of (n, height, width, 1, 3 or 4) or (n, 1 or 3, height, width). Numbers are uint8,
    bool, or floats from 0 to 1.

    Raises
    ------
    DataError
        Something is none of these. Whether files can be read and decoded shows later, image by image, and so does
        what is wrong with one array of several.
    """
    if holds_values(value):
        if (rows := batch_of(value)) is None:
            return [as_image(value)], True
        return [as_image(row, index) for index, row in enumerate(rows)], False
    if not _is_collection(value):
        return [as_image(value)], True
    return [_among_others(item, index) for index, item in enumerate(value)], False


def _among_others(value: Any, index: int) -> AnyImage:
    """Accept one of several images; an array that is none costs its own answer, not those of the others."""
    if not holds_values(value):
        return as_image(value, index)
    try:
        return as_image(value, index)
    except DataError as error:
        return BadImage(f"image {index}", str(error))


def _is_collection(value: Any) -> bool:
    """Whether to look for images inside: not in files, whose lines are no images, nor where there is no order."""
    if isinstance(value, str | bytes | bytearray | memoryview | os.PathLike | Mapping | Set) or _is_pillow(value):
        return False
    return isinstance(value, Iterable) and not hasattr(value, "read")


def _is_pillow(value: Any) -> bool:
    from PIL import Image

    return isinstance(value, Image.Image)


def as_image(value: Any, index: int = 0) -> AnyImage:
    """Accept one image, as `as_images` describes it; `index` names it where it has no path."""
    name = f"image {index}"
    if isinstance(value, str | os.PathLike):
        return EncodedImage(str(os.fsdecode(value)))
    if isinstance(value, bytes | bytearray | memoryview):
        return EncodedImage(name, bytes(value))
    if _is_pillow(value):
        return OpenImage(name, value)
    if holds_values(value):
        return OpenImage(name, image_of(value, name))
    raise DataError(
        f"{name} is of type {type(value).__name__}; expected a path, bytes, a Pillow image or an array of one "
        "image; several go in a list"
    )


def is_image(value: Any) -> bool:
    """Whether this is an image already, with a name, content and pixels."""
    return isinstance(value, EncodedImage | OpenImage) or (hasattr(value, "content") and hasattr(value, "pixels"))


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def no_download(url: str) -> str:
    """Say that nothing is fetched, with the address as the user gave it."""
    return f"{url} is an address, and nothing is downloaded; download the image first and give its file"
