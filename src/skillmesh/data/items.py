"""Images of a dataset: read from the dataset itself, or stored in a temporary file."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from skillmesh.data.images import Pixels, UnreadableImageError, decode
from skillmesh.data.inputs import AnyImage, ArrayImage, EncodedImage, OpenImage, as_image
from skillmesh.errors import DataError


@dataclass(frozen=True, slots=True)
class ItemImage:
    """One image of a list, an array or a dataset that belongs to the caller."""

    items: Any
    index: int
    lock: threading.Lock | None = None
    """Lock held while the image is read: few datasets are safe to read from several threads."""

    @property
    def name(self) -> str:
        return f"image {self.index}"

    def size(self) -> int:
        return 0

    def content(self) -> bytes:
        try:
            return self.read()
        except UnreadableImageError:
            raise
        except DataError as error:
            raise UnreadableImageError(str(error)) from error

    def read(self) -> bytes:
        """Return the content. Raise a plain `DataError` if the value is not an image at all."""
        try:
            if self.lock is None:
                value = self.items[self.index]
            else:
                with self.lock:
                    value = self.items[self.index]
        except DataError:
            raise
        except Exception as error:  # a dataset's own code may raise anything
            raise UnreadableImageError(f"{self.name} cannot be read: {type(error).__name__}: {error}") from error
        given = as_given(value, self.index)
        return given.saved("BMP") if isinstance(given, OpenImage | ArrayImage) else given.content()

    def pixels(self, content: bytes, size: int) -> Pixels:
        return decode(content, size)


def as_given(value: Any, index: int) -> EncodedImage | OpenImage | ArrayImage:
    """Return one image of a dataset; Hugging Face represents a file as a mapping of its bytes and path."""
    if isinstance(value, Mapping) and {"bytes", "path"} <= set(value):
        value = value["path"] if value["bytes"] is None else value["bytes"]
    image = as_image(value, index)
    assert isinstance(image, EncodedImage | OpenImage | ArrayImage)
    return image


@dataclass(frozen=True, slots=True)
class RenamedImage:
    """An image under a unique name, where several share one: duplicates are searched for by name."""

    name: str
    image: AnyImage

    def size(self) -> int:
        return self.image.size()

    def content(self) -> bytes:
        return self.image.content()

    def pixels(self, content: bytes, size: int) -> Pixels:
        return self.image.pixels(content, size)


class Spool:
    """A temporary file for images that can be read only once.

    The file has no name, so that even a killed process leaves nothing behind.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0

    def put(self, value: Any, index: int) -> AnyImage:
        """Store an image and return it: paths and encoded bytes unchanged, anything else without loss."""
        given = as_given(value, index)
        if isinstance(given, EncodedImage) and given.data is None:
            return given
        data = given.saved("PNG") if isinstance(given, OpenImage | ArrayImage) else given.content()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="skillmesh-")  # noqa: SIM115  (closed by `close`)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise SpoolError(
                f"image {index} cannot be stored in {tempfile.gettempdir()}, after {self._end / 1e6:,.0f} MB of "
                f"others: {error.strerror}; free some space there, or set TMPDIR to a folder with more"
            ) from error
        self._end += len(data)
        return StoredImage(given.name, self, self._end - len(data), len(data))

    def read(self, place: int, length: int) -> bytes:
        """Return `length` bytes from `place`; can be called from any thread."""
        if self._file is None:
            raise OSError("it was in a temporary file during learning, which has been deleted since")
        return os.pread(self._file.fileno(), length, place)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class SpoolError(DataError):
    """Images cannot be stored in the temporary file."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image file's bytes in a spool."""

    name: str
    spool: Spool
    place: int
    length: int

    def size(self) -> int:
        return self.length

    def content(self) -> bytes:
        try:
            return self.spool.read(self.place, self.length)
        except OSError as error:
            raise UnreadableImageError(f"{self.name} cannot be read: {error}") from error

    def pixels(self, content: bytes, size: int) -> Pixels:
        return decode(content, size)
