"""Where a task's files lie: a folder or a zip, behind two verbs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Protocol

from skillmesh.errors import DataError

MAX_FILE_BYTES = 256 * 2**20
"""No image that we can decode is larger; a zip member that claims to be is not unpacked."""


class Source(Protocol):
    """A place with files in it."""

    def names(self) -> list[str]:
        """Paths of all files inside, with forward slashes, sorted."""
        ...

    def folders(self) -> list[str]:
        """Names of the folders right at the top that a listing of files would miss: empty ones."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of one file."""
        ...


class FolderSource:
    """The files below a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        return sorted(p.relative_to(self.path).as_posix() for p in self.path.rglob("*") if p.is_file())

    def folders(self) -> list[str]:
        """Names of the folders right below, empty ones too (a zip has no such thing)."""
        return sorted(p.name for p in self.path.iterdir() if p.is_dir())

    def read(self, name: str) -> bytes:
        path = self.path / name
        if (size := path.stat().st_size) > MAX_FILE_BYTES:
            raise OSError(f"{size:,} bytes are more than the {MAX_FILE_BYTES:,} that an image may have")
        return path.read_bytes()


class ZipSource:
    """The files inside a zip, read without unpacking it to disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as error:  # BadZipFile, OSError, and a few others on damaged directories
            raise DataError(
                f"{path} is not a zip that can be read ({error}); zip the task folder again"
            ) from error
        # Some writers on Windows put backslashes where the format wants slashes.
        self._members = {i.filename.replace("\\", "/"): i for i in self._zip.infolist()}

    def __reduce__(self) -> tuple[type[ZipSource], tuple[Path]]:
        """Another process opens the zip anew."""
        return ZipSource, (self.path,)

    def names(self) -> list[str]:
        return sorted(n for n in self._members if not n.endswith("/"))

    def folders(self) -> list[str]:
        return []

    def read(self, name: str) -> bytes:
        member = self._members[name]
        if (size := member.file_size) > MAX_FILE_BYTES:
            raise OSError(f"{size:,} bytes are more than the {MAX_FILE_BYTES:,} that an image may have")
        try:
            return self._zip.read(member)
        except Exception as error:  # zipfile raises its own, and whatever the decompressors raise
            raise OSError(f"the zip member cannot be unpacked: {error}") from error


def open_source(path: Path) -> Source:
    """Open a folder or zip; say what else was found there."""
    if path.is_dir():
        return FolderSource(path)
    if path.is_file():
        return ZipSource(path)
    raise DataError(f"there is nothing at {path}; expected a folder of images (class/image.jpg) or a zip of one")
