"""Where a task's files lie: a folder or a zip, behind two verbs."""

from __future__ import annotations

import os
import stat
import zipfile
from collections import deque
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
        return files_below(self.path)

    def folders(self) -> list[str]:
        """Names of the folders right below, empty ones too (a zip has no such thing)."""
        return sorted(p.name for p in self.path.iterdir() if p.is_dir())

    def read(self, name: str) -> bytes:
        return read_regular_file(self.path / name)


class ZipSource:
    """The files inside a zip, read without unpacking it to disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as error:  # BadZipFile, OSError, and a few others on damaged directories
            if path.suffix.lower() != ".zip":
                raise DataError(
                    f"{path} is a file; expected a folder of images (class/image.jpg) or a zip"
                ) from error
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
        refuse_large(member.file_size)
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


def read_regular_file(path: Path) -> bytes:
    """Read a file of a size that an image may have; a pipe or a device, which might never end, is refused."""
    status = path.stat()
    if kind := irregular(status.st_mode):
        raise OSError(f"it is {kind}, not a file")
    refuse_large(status.st_size)
    return path.read_bytes()


def irregular(mode: int) -> str | None:
    """Name what a path leads to that is no regular file; None where it is one."""
    if stat.S_ISREG(mode):
        return None
    kinds = {"a folder": stat.S_ISDIR, "a named pipe": stat.S_ISFIFO, "a socket": stat.S_ISSOCK}
    return next((kind for kind, is_it in kinds.items() if is_it(mode)), "a device")


def refuse_large(size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise OSError(f"{size:,} bytes are more than the {MAX_FILE_BYTES:,} that an image may have")


def files_below(root: Path) -> list[str]:
    """List all files below a folder, by their paths from there, sorted.

    Links to folders are followed, but every folder is read once: under its own name where that lies below `root`,
    else under the first link to it. A link that leads to a folder around itself or around `root` is not followed.
    """
    seen = {_identity(folder) for folder in root.resolve().parents}
    names: list[str] = []
    starts = deque([""])
    while starts:
        start = starts.popleft()
        if start and _leads_up(root / start):
            continue
        folders = [start]
        while folders:
            below = folders.pop()
            if (identity := _identity(root / below)) in seen:
                continue
            seen.add(identity)
            for entry in _entries(root / below):
                name = f"{below}/{entry.name}" if below else entry.name
                kind = _kind(entry)
                if kind == "folder":
                    (starts if entry.is_symlink() else folders).append(name)
                elif kind == "file":
                    names.append(name)
    return sorted(names)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise _closed(folder, error) from error


def _identity(folder: Path) -> tuple[int, int]:
    try:
        status = folder.stat()
    except OSError as error:
        raise _closed(folder, error) from error
    return status.st_dev, status.st_ino


def _closed(folder: Path, error: OSError) -> DataError:
    return DataError(f"cannot look into {folder}: {error.strerror or error}; allow that, or move it elsewhere")


def _kind(entry: os.DirEntry[str]) -> str | None:
    """Tell files from folders, behind links too; pipes and devices are neither.

    A link that leads nowhere counts as a file: whoever reads it is told.
    """
    try:
        if entry.is_symlink() and not Path(entry.path).exists():
            return "file"
        return "folder" if entry.is_dir() else "file" if entry.is_file() else None
    except OSError:
        return None


def _leads_up(link: Path) -> bool:
    return link.parent.resolve().is_relative_to(link.resolve())
