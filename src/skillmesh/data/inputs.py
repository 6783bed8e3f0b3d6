"""Turn everything that a caller may pass as an image into one interface: a name, content and pixels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.images import (
    CONTENTS,
    Pixels,
    UnreadableImageError,
    decode,
    hash_pixels,
    hash_rgb,
    save_lossless,
    shrink,
    upright_rgb,
)
from skillmesh.data.sources import read_regular_file, size_of_file
from skillmesh.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

    ImageInput = str | Path | bytes | Image.Image | np.ndarray[Any, Any]

LAYOUTS = "(height, width), (height, width, 1, 3 or 4) or (1 or 3, height, width)"
NUMBERS = "uint8 from 0 to 255, bool, or floats from 0 to 1"
LAST = (1, 3, 4)
"""Numbers of channels on an image's last axis: grey, RGB, RGBA."""
FIRST = (1, 3)
"""Numbers of channels on an image's first axis, as in tensors."""
_ROUNDING = 1e-3
"""Largest distance of floats below 0 or above 1, which resizing and rounding can cause."""


def holds_values(value: Any) -> bool:
    """Return whether a value is an array of numbers, or a tensor of a library that NumPy can read.

    A column of paths, as in pandas, is an array too, but its values are handled one by one, so this is False.
    """
    if not hasattr(value, "__array__") or isinstance(value, str | bytes | type):
        return False
    dtype = getattr(value, "dtype", None)
    return not (isinstance(dtype, np.dtype) and dtype.kind in "OU" and getattr(value, "ndim", 0) == 1)


def batch_of(value: Any) -> NDArray[Any] | None:
    """Return a batch as an array whose rows are images; None if the value is not a batch but one image."""
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
    """Return a Pillow image of an array of one image; messages call it `name`."""
    from PIL import Image

    array = _as_array(value, name)
    pixels = _to_bytes(_channels_last(array, name), name)
    return Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels))


def _as_array(value: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except Exception as error:  # each library has its own errors; torch: bfloat16, CUDA, gradients
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{name} is a {type(value).__name__} that NumPy cannot read ({reason}); expected an array in the "
            "computer's main memory; convert a torch tensor with .detach().float().cpu()"
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
        f"{name} is an array of shape {array.shape}, whose channels may be on the first or last axis; expected a "
        "shape with only one reading; give Pillow images instead: Image.fromarray(array)"
    )


def _to_bytes(array: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Scale numbers to 0 … 255. Refuse integers of more bits, whose value of white is unknown."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind != "f":
        advice = _advice(array)
        raise DataError(f"{name} is an array of {array.dtype} and shape {array.shape}; expected {NUMBERS}{advice}")
    if not np.isfinite(array).all():
        raise DataError(f"{name} holds NaN or infinity; expected floats from 0 to 1; replace them, such as by 0")
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
        f"; found {array.min()} to {array.max()}: convert with array.astype('uint8') if white is 255, else divide "
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
        """Return the largest number of bytes that `content` reads into memory."""
        ...

    def content(self) -> bytes:
        """Return bytes that identify the image."""
        ...

    def pixels(self, content: bytes, size: int) -> Pixels:
        """Decode `content` to (size, size, 3)."""
        ...


@dataclass(frozen=True)
class EncodedImage:
    """An image file, given as its bytes or its path."""

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
    """A Pillow image that belongs to the caller."""

    name: str
    image: Image.Image

    def size(self) -> int:
        return 0

    def content(self) -> bytes:
        # Hash the RGB image, since the bytes of a palette image do not determine its colours.
        with self._loading():
            return hash_pixels(self.image)

    def pixels(self, content: bytes, size: int) -> Pixels:
        with self._loading():
            return shrink(self.image, size)

    def rgb(self, most: int) -> Image.Image:
        """Return an upright RGB copy, reduced to at most `most` pixels a side."""
        with self._loading():
            return upright_rgb(self.image, most)

    def saved(self, kind: str) -> bytes:
        """Return the image as an image file, without loss; see `save_lossless`."""
        with self._loading():
            return save_lossless(self.image, kind)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        try:
            yield
        except UnreadableImageError:
            raise
        except Exception as error:  # an opened file is loaded only here, and can raise anything
            raise UnreadableImageError(f"{self.name} cannot be loaded: {error}") from error


@dataclass(frozen=True)
class ArrayImage:
    """An RGB array (height, width, 3) of bytes, such as a frame of a video; used as it is, without a copy."""

    name: str
    array: Pixels

    def size(self) -> int:
        return 0

    def content(self) -> bytes:
        return hash_rgb(self.array)

    def pixels(self, content: bytes, size: int) -> Pixels:
        return self.array if self.array.shape[:2] == (size, size) else self._opened().pixels(content, size)

    def rgb(self, most: int) -> Image.Image:
        """Return an RGB copy, reduced to at most `most` pixels a side."""
        return self._opened().rgb(most)

    def saved(self, kind: str) -> bytes:
        """Return the image as an image file, without loss; see `save_lossless`."""
        return self._opened().saved(kind)

    def _opened(self) -> OpenImage:
        from PIL import Image

        return OpenImage(self.name, Image.fromarray(self.array))


def is_rgb_array(value: Any) -> TypeGuard[Pixels]:
    """Return whether a value is an array whose memory is that of an RGB image, with one reading of its shape."""
    if type(value) is not np.ndarray or value.dtype != np.uint8 or value.ndim != 3 or not value.size:
        return False
    return value.shape[2] == 3 and value.shape[0] not in FIRST and value.flags.c_contiguous


@dataclass(frozen=True)
class BadImage:
    """A value in place of an image that is not one; reading it raises the reason."""

    name: str
    reason: str

    def size(self) -> int:
        return 0

    def content(self) -> bytes:
        raise UnreadableImageError(self.reason)

    def pixels(self, content: bytes, size: int) -> Pixels:
        raise UnreadableImageError(self.reason)


def read_pixels(image: AnyImage, size: int) -> Pixels:
    """Return an image's pixels as (size, size, 3); wait while files being read fill the memory for them."""
    with CONTENTS.taken(image.size()):
        return image.pixels(image.content(), size)


def as_images(value: Any) -> tuple[list[AnyImage], bool]:
    """Return one image or several as a list, and whether it was a single one.

    One image is a path, encoded bytes, a Pillow image, or an array or tensor of (height, width),
    (height, width, 1, 3 or 4) or (1 or 3, height, width). Several are a list, a tuple or any iterable that mixes
    these, or a batch: an array of (n, height, width, 1, 3 or 4) or (n, 1 or 3, height, width). Numbers are uint8,
    bool, or floats from 0 to 1.

    Raises
    ------
    DataError
        The value is none of these. Files are read and decoded later, image by image; faults in them, and in one
        array of several, are raised then.
    """
    if holds_values(value):
        if (rows := batch_of(value)) is None:
            return [as_image(value)], True
        return [as_image(row, index) for index, row in enumerate(rows)], False
    if not is_collection(value):
        return [as_image(value)], True
    return [_among_others(item, index) for index, item in enumerate(value)], False


def _among_others(value: Any, index: int) -> AnyImage:
    """Return one of several images; an array that is not an image must not spoil the answers for the others."""
    if not holds_values(value):
        return as_image(value, index)
    try:
        return as_image(value, index)
    except DataError as error:
        return BadImage(f"image {index}", str(error))


def is_collection(value: Any) -> bool:
    """Return whether a value may contain several images. Files do not (they iterate over lines), nor do sets and
    mappings, which have no order of images."""
    if isinstance(value, str | bytes | bytearray | memoryview | os.PathLike | Mapping | Set) or _is_pillow(value):
        return False
    return isinstance(value, Iterable) and not hasattr(value, "read")


def _is_pillow(value: Any) -> bool:
    from PIL import Image

    return isinstance(value, Image.Image)


def as_image(value: Any, index: int = 0) -> AnyImage:
    """Return one image, as described in `as_images`; one without a path is named by `index`."""
    name = f"image {index}"
    if isinstance(value, str | os.PathLike):
        return EncodedImage(str(os.fsdecode(value)))
    if isinstance(value, bytes | bytearray | memoryview):
        return EncodedImage(name, bytes(value))
    if _is_pillow(value):
        return OpenImage(name, value)
    if is_rgb_array(value):
        return ArrayImage(name, value)
    if holds_values(value):
        return OpenImage(name, image_of(value, name))
    raise DataError(
        f"{name} is of type {type(value).__name__}; expected a path, bytes, a Pillow image or an array of one "
        "image; several go in a list"
    )


def is_image(value: Any) -> bool:
    """Return whether a value already has an image's name, content and pixels."""
    return isinstance(value, EncodedImage | OpenImage | ArrayImage) or (
        hasattr(value, "content") and hasattr(value, "pixels")
    )


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def no_download(url: str) -> str:
    """Return the message for a URL: images are not downloaded."""
    return f"{url} is an address, and nothing is downloaded; download the image first and give its file"


# Many images are handled in small groups, so that memory stays constant and results come early.

WINDOW = 64
"""Number of images at once: half a second of work on two cores, and enough that no core waits for long."""

Item = TypeVar("Item")


def in_windows(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield items in lists of 64, reading none before it is needed."""
    rest = iter(items)
    while window := list(islice(rest, WINDOW)):
        yield window
