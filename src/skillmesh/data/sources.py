"""Sources of a task's files: a folder or a zip, read through one interface."""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from skillmesh.errors import DataError

MAX_FILE_BYTES = 48 * 2**20
"""Largest size of an image file that is read, in bytes, in a folder or in a zip."""
MAX_LISTING = 16 * 2**20
"""Largest size of a zip's list of files, in bytes: enough for some 150,000 images."""
MAX_UNPACKED = 100
"""A zip may unpack to this many times its own size, or to a gigabyte; photos do not even shrink to half."""
_CHUNK = 2**20


class Source(Protocol):
    """A folder or zip with files in it."""

    def names(self) -> list[str]:
        """Return the paths of all files inside, with forward slashes, sorted."""
        ...

    def folders(self) -> list[str]:
        """Return the names of top-level folders, so that empty ones, which `names` misses, can be found."""
        ...

    def size(self, name: str) -> int:
        """Return the largest number of bytes that reading a file can take."""
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
        """Return the names of the top-level folders, including empty ones (a zip lists none)."""
        return sorted(p.name for p in self.path.iterdir() if p.is_dir())

    def size(self, name: str) -> int:
        return size_of_file(self.path / name)

    def read(self, name: str) -> bytes:
        return read_regular_file(self.path / name)


@dataclass(frozen=True, slots=True)
class _Member:
    """A file inside a zip, as the zip's list of files describes it."""

    offset: int
    packed: int
    size: int
    checksum: int
    method: int
    refused: str | None
    """Reason why the file is not unpacked; None if it is."""


class ZipSource:
    """The files inside a zip, read without unpacking it to disk. The zip is open only while it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with _Listing(path) as file, zipfile.ZipFile(file) as listed:
                self._version = _version(file.fileno())
                # Some programs on Windows write backslashes where the format requires slashes.
                names = (info.filename.replace("\\", "/").lstrip("/") for info in listed.infolist())
                self._members = dict(zip(names, map(_member, listed.infolist()), strict=True))
        except Exception as error:  # BadZipFile, OSError, and a few others on damaged directories
            if path.suffix.lower() != ".zip":
                raise DataError(
                    f"{path} is a file; expected a folder of images (class/image.jpg) or a zip"
                ) from error
            too_long = isinstance(error, _LongListError)
            remedy = "unpack it and name the folder" if too_long else "zip the task folder again"
            raise DataError(f"{path} cannot be read as a zip ({error}); {remedy}") from error
        self._refuse_bomb()

    def _refuse_bomb(self) -> None:
        """Refuse a zip bomb. No member unpacks to more than its stated size, so their sum is the total cost."""
        unpacked, own = sum(member.size for member in self._members.values()), self._version[0]
        if unpacked > max(MAX_UNPACKED * own, 2**30):
            raise DataError(
                f"{self.path} has {own:,} bytes and would unpack to {unpacked:,}, more than {MAX_UNPACKED} times "
                "as many; unpack it yourself if you trust it"
            )

    def __reduce__(self) -> tuple[type[ZipSource], tuple[Path]]:
        """Pickle only the path: another process opens the zip again."""
        return ZipSource, (self.path,)

    def names(self) -> list[str]:
        return sorted(n for n in self._members if n and not n.endswith("/"))

    def folders(self) -> list[str]:
        return []

    def size(self, name: str) -> int:
        return min(self._members[name].size, MAX_FILE_BYTES)

    def read(self, name: str) -> bytes:
        member = self._members[name]
        if member.refused is not None:
            raise OSError(member.refused)
        refuse_large(member.size)
        refuse_large(member.packed)
        with open_regular(self.path) as file:
            if _version(file.fileno()) != self._version:
                raise OSError(f"{self.path} has changed since it was listed; try again")
            try:
                return _unpacked(file, member)
            except (zlib.error, struct.error, ValueError) as error:
                raise OSError(f"this file in the zip cannot be unpacked: {error}") from error


class _LongListError(zipfile.BadZipFile):
    """A zip whose list of files is too long."""


class _Listing(io.FileIO):
    """A zip opened to read its list of files, with a limit on the size of that list."""

    def __init__(self, path: Path) -> None:
        super().__init__(_open_regular(path), "rb")

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_LISTING:
            raise _LongListError(f"its list of files has {size:,} bytes, more than {MAX_LISTING:,}")
        return super().read(MAX_LISTING if size is None or size < 0 else size) or b""


def _member(info: zipfile.ZipInfo) -> _Member:
    refused = None
    if info.flag_bits & 0x1:
        refused = "it is encrypted; unpack the zip with its password first"
    elif stat.S_ISLNK(info.external_attr >> 16):
        refused = "it is a link inside a zip, not a file"
    elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        refused = "its compression method is not supported; zip the folder again with deflate"
    return _Member(info.header_offset, info.compress_size, info.file_size, info.CRC, info.compress_type, refused)


def _version(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns, status.st_ino


def _unpacked(file: BinaryIO, member: _Member) -> bytes:
    """Return a member's content; unpack no more bytes than the zip's list of files states."""
    file.seek(member.offset)
    header = file.read(30)
    name, extra = struct.unpack_from("<HH", header, 26)
    if not header.startswith(b"PK\3\4"):
        raise ValueError("its header is damaged")
    file.seek(name + extra, os.SEEK_CUR)
    inflate = zlib.decompressobj(-zlib.MAX_WBITS) if member.method == zipfile.ZIP_DEFLATED else None
    out = io.BytesIO()
    left = member.packed
    while left and (packed := file.read(min(left, _CHUNK))):
        if inflate and inflate.eof:
            raise ValueError("there is extra data after its content")
        left -= len(packed)
        while packed:
            out.write(inflate.decompress(packed, _CHUNK) if inflate else packed)
            if out.tell() > member.size:
                raise ValueError(f"it holds more than the {member.size:,} bytes that it states")
            packed = inflate.unconsumed_tail if inflate else b""
    if inflate:
        out.write(inflate.flush())  # at most the end of one match: all input has been consumed
    content = out.getvalue()
    if len(content) != member.size or zlib.crc32(content) != member.checksum:
        raise ValueError("its content does not match the zip's checksum; zip the folder again")
    return content


def open_source(path: Path) -> Source:
    """Open a folder or zip; raise `DataError` if `path` is neither."""
    if path.is_dir():
        return FolderSource(path)
    if path.is_file():
        return ZipSource(path)
    raise DataError(f"there is nothing at {path}; expected a folder of images (class/image.jpg) or a zip of one")


def read_regular_file(path: Path) -> bytes:
    """Read a file of at most `MAX_FILE_BYTES`; refuse a pipe or a device, which might never end."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        refuse_large(size)
        return file.read(size)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; raise `OSError` for anything else, without waiting for a pipe's writer."""
    return os.fdopen(_open_regular(path), "rb", buffering=0)


def _open_regular(path: Path) -> int:
    _refuse_irregular(path.stat())  # merely opening some devices has an effect
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _refuse_irregular(os.fstat(descriptor))  # it may have been replaced in the meantime
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_irregular(status: os.stat_result) -> None:
    if kind := irregular(status.st_mode):
        raise OSError(f"it is {kind}, not a file")


def size_of_file(path: Path) -> int:
    """Return the largest number of bytes that reading a file can take; 0 if it will not be read at all."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        return 0
    return size if size <= MAX_FILE_BYTES else 0


def irregular(mode: int) -> str | None:
    """Return what kind of thing a path is ("a folder", …) if it is not a regular file, else None."""
    if stat.S_ISREG(mode):
        return None
    kinds = {"a folder": stat.S_ISDIR, "a named pipe": stat.S_ISFIFO, "a socket": stat.S_ISSOCK}
    return next((kind for kind, is_it in kinds.items() if is_it(mode)), "a device")


def refuse_large(size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise OSError(f"the file has {size:,} bytes, expected at most {MAX_FILE_BYTES:,} for an image")


def files_below(root: Path) -> list[str]:
    """Return the paths of all files below a folder, relative to it and sorted.

    Links to folders are followed, but every folder is read once: under its own name if it is below `root`, else
    under the first link to it. A link to a folder that contains the link or `root` is not followed.
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
        raise _unreadable_folder(folder, error) from error


def _identity(folder: Path) -> tuple[int, int]:
    try:
        status = folder.stat()
    except OSError as error:
        raise _unreadable_folder(folder, error) from error
    return status.st_dev, status.st_ino


def _unreadable_folder(folder: Path, error: OSError) -> DataError:
    return DataError(f"cannot read the folder {folder}: {error.strerror or error}; allow that, or move it away")


def _kind(entry: os.DirEntry[str]) -> str | None:
    """Return "file" or "folder", following links; None for pipes and devices.

    A broken link counts as a file: reading it later gives an error that names it.
    """
    try:
        if entry.is_symlink() and not Path(entry.path).exists():
            return "file"
        return "folder" if entry.is_dir() else "file" if entry.is_file() else None
    except OSError:
        return None


def _leads_up(link: Path) -> bool:
    return link.parent.resolve().is_relative_to(link.resolve())
