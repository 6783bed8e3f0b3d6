"""Anything that a caller may hand over as an image, made one thing: a name, its content, its pixels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.images import (
    CONTENTS,
    Pixels,
    UnreadableImageError,
    decode,
    hash_pixels,
    save_lossless,
    shrink,
)
from skillmesh.data.sources import read_regular_file, size_of_file
from skillmesh.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

    ImageInput = str | Path | bytes | Image.Image | np.ndarray[Any, Any]

LAYOUTS = "(height, width), (height, width, 1, 3 or 4) or (1 or 3, height, width)"
NUMBERS = "uint8 from 0 to 255, bool, or floats from 0 to 1"
LAST = (1, 3, 4)
"""Channels that an image may have at its end: grey, RGB, RGBA."""
FIRST = (1, 3)
"""Channels that it may have at its beginning, as tensors have them."""
_ROUNDING = 1e-3
"""How far beyond 0 and 1 floats may lie: what resizing and rounding do to them."""


def holds_values(value: Any) -> bool:
    """Whether it is an array of numbers, or a tensor of some library that NumPy can read.

    A column of paths, as pandas has them, is an array too; its values are looked at one by one instead.
    """
    if not hasattr(value, "__array__") or isinstance(value, str | bytes | type):
        return False
    dtype = getattr(value, "dtype", None)
    return not (isinstance(dtype, np.dtype) and dtype.kind in "OU" and getattr(value, "ndim", 0) == 1)


def batch_of(value: Any) -> NDArray[Any] | None:
    """Return the array of a batch, whose rows are images; None where the value should be one image."""
    array = _as_array(value, "the image")
    if array.ndim != 4:
        return None
    if not (array.shape[3] in LAST or array.shape[1] in FIRST) or 0 in array.shape[1:]:
        raise DataError(
            f"the batch is an array of {array.dtype} and shape {array.shape}; expected (n, height, width, 1, 3 or "
            "4) or (n, 1 or 3, height, width)"
        )
    return array


def image_of(value: Any, name: str) -> Image.Image:
    """Make a Pillow image of an array of one image; `name` is what messages call it."""
    from PIL import Image

    array = _as_array(value, name)
    pixels = _to_bytes(_channels_last(array, name), name)
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels))


def _as_array(value: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:  # each library has its own; of torch: bfloat16, CUDA, gradients
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{name} is a {type(value).__name__} that NumPy cannot read ({reason}); expected an array in the "
            "computer's main memory; convert a torch tensor by .detach().float().cpu()"
        ) from error


def _channels_last(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.ndim == 2 and array.size:
        return array
    if array.ndim == 3 and array.size:
        last, first = array.shape[2] in LAST, array.shape[0] in FIRST
        if last and first:
            raise _ambiguous(name, array)
        if last or first:
            return array if last else array.transpose(1, 2, 0)
    advice = {
        3: "; a batch of grey images has four axes: (n, height, width, 1)",
        4: "; give a batch by itself, not inside a list",
    }.get(array.ndim, "")
    raise DataError(
        f"{name} is an array of {array.dtype} and shape {array.shape}; expected {LAYOUTS} with {NUMBERS}{advice}"
    )


def _ambiguous(name: str, array: NDArray[Any]) -> DataError:
    return DataError(
        f"{name} is an array of shape {array.shape}, whose channels may be at its beginning or its end; expected "
        "a shape that can be read in one way; give Pillow images instead: Image.fromarray(array)"
    )


def _to_bytes(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Bring numbers to 0 … 255. Integers of more bits are refused: what is white in them, no one can tell."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind != "f":
        advice = _advice(array)
        raise DataError(f"{name} is an array of {array.dtype} and shape {array.shape}; expected {NUMBERS}{advice}")
    if not np.isfinite(array).all():
        raise DataError(f"{name} holds NaN or infinity; expected floats from 0 to 1; replace them, say by 0")
    low, high = float(array.min()), float(array.max())
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise DataError(
            f"{name} has floats from {low:.4g} to {high:.4g}; expected 0 to 1, or uint8 from 0 to 255; undo the "
            "normalisation (leave Normalize out of a dataset's transform), or divide by the value of white"
        )
    return np.rint(np.clip(array.astype(np.float32), 0, 1) * 255).astype(np.uint8)


def _advice(array: NDArray[Any]) -> str:
    if array.dtype.kind not in "iu":
        return ""
    return (
        f"; found {array.min()} to {array.max()}: convert by array.astype('uint8') if white is 255, else divide "
        "by the value of white"
    )


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
    if not is_collection(value):
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


def is_collection(value: Any) -> bool:
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


# Work through many images a few at a time, so that memory stays flat and results come early.

WINDOW = 64
"""Images at once: half a second of work on two cores, and enough that no core waits for long."""

Item = TypeVar("Item")


def in_windows(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield items in lists of 64, taking none before it is needed."""
    rest = iter(items)
    while window := list(islice(rest, WINDOW)):
        yield window
