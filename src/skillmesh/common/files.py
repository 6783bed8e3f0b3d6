"""Atomic writing of files. The whole package writes files with these functions.

A file is first written under an unpredictable name in its target folder, with its final mode, and then renamed to
its target. A link at the target is replaced, never followed. With `sync`, the file survives a power cut. If
anything fails, the partial file is removed; a killed process leaves one behind, which `remove_abandoned` removes.
`tests/common/test_files.py` checks that the package writes files in no other way.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from skillmesh.errors import WriteError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

PRIVATE = 0o600
"""Mode of an agent's own files."""
SHARED = 0o666
"""Mode of files that the user asked for; the user's umask restricts it."""
PRIVATE_FOLDER = 0o700

PARTIAL = ".partial"
_OURS = re.compile(r"\.skillmesh-[0-9a-f]{16}\.partial")
_OLDER = re.compile(r"(agent\.json|mesh\.json|training-[0-9a-f]{16}|tmp\w{8}|[0-9a-f]{64})\.partial")
"""Names of partial files that earlier releases left in agents' homes."""
HOUR = 3600.0
LONGEST_PART = 255
"""Largest number of bytes that systems accept in one part of a path."""

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NOT_SUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""Error numbers of file systems that cannot lock a file or sync a folder."""
_REMEDIES = {
    errno.ENOSPC: "make room, then try again",
    errno.EDQUOT: "make room, then try again",
    errno.ENOENT: "name a file in a folder that exists",
    errno.ENOTDIR: "name a file in a folder that exists",
    errno.EISDIR: "name a file, not a folder",
    errno.ENAMETOOLONG: "choose a shorter file name",
}


def write_whole(
    path: str | Path, data: bytes, *, mode: int = SHARED, sync: bool = True, new: bool = False
) -> None:
    """Write a file completely or not at all; see `writing`."""
    with writing(path, mode=mode, sync=sync, new=new) as file:
        file.write(data)


@contextmanager
def writing(path: str | Path, *, mode: int = SHARED, sync: bool = True, new: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write to, and move it to `path` once everything is written.

    Parameters
    ----------
    sync
        Whether the file must survive a power cut from then on; not needed for results that can be computed again.
    new
        Whether an existing file is an error: raise `FileExistsError` instead of replacing it, even in a race.
    """
    target = Path(path)
    partial: Path | None = None
    try:
        refuse_other_than_file(target)
        partial, file = _begin(target.parent, mode)
        with file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            _put(partial, target, new)  # still locked: an unlocked partial file counts as abandoned
        if sync:
            sync_folder(target.parent)
    except OSError as error:
        if (new and isinstance(error, FileExistsError)) or isinstance(error, WriteError):
            raise
        raise _explained(target, error) from error
    finally:
        if partial is not None:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def refuse_other_than_file(target: Path) -> None:
    """Raise `WriteError` if the target is a folder, a device or a pipe, or a link to one."""
    try:
        mode = target.stat().st_mode
    except OSError:  # nothing there, or a broken link
        return
    if stat.S_ISDIR(mode):
        raise _explained(target, OSError(errno.EISDIR, os.strerror(errno.EISDIR)))
    if not stat.S_ISREG(mode):
        raise WriteError(
            f"cannot write {target}: it is a device or a pipe; expected the name of a file", errno.EINVAL
        )


def too_long(path: str | os.PathLike[str]) -> bool:
    """Return whether a part of the path is longer than systems allow, so that no such file can exist."""
    return any(len(part) > LONGEST_PART for part in os.fsencode(path).split(os.sep.encode()))


def make_folder(folder: Path) -> None:
    """Create a folder that only its owner can read, and that survives a power cut; keep an existing one."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    for parent in missing:
        sync_folder(parent.parent)


def remove(path: Path) -> None:
    """Remove a file, if it exists, so that a power cut does not bring it back."""
    with suppress(FileNotFoundError):
        path.unlink()
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or removal in a folder survive a power cut, where the system can sync a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder that we may write to but not read
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path, *, in_home: bool = False) -> None:
    """Remove partial files that killed processes left in a folder.

    A process that writes a file holds a lock on it, so a partial file that can be locked is abandoned. Earlier
    releases held no lock and used names that other programs' files may have too: in an agent's home (`in_home`)
    these are removed once they are an hour old.
    """
    with suppress(OSError):
        for path in list(folder.iterdir()):
            with suppress(OSError):  # another process is writing it, or has just removed it
                if _OURS.fullmatch(path.name):
                    _remove_unlocked(path)
                elif in_home and _OLDER.fullmatch(path.name) and path.lstat().st_mtime < time.time() - HOUR:
                    path.unlink()


def _remove_unlocked(path: Path) -> None:
    if fcntl is None:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def _begin(folder: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create a new partial file and lock it."""
    while True:
        path = folder / f".skillmesh-{secrets.token_hex(8)}{PARTIAL}"
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, mode), "wb")
        try:
            _lock(file)
            if os.fstat(file.fileno()).st_nlink:
                return path, file
            file.close()  # another process removed it as abandoned before it was locked
        except BaseException:
            file.close()
            path.unlink(missing_ok=True)
            raise


def _lock(file: BinaryIO) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, *_NOT_SUPPORTED):
            raise


def _put(partial: Path, target: Path, new: bool) -> None:
    if not new:
        partial.replace(target)
        return
    try:
        os.link(partial, target)  # unlike a rename, this fails if a file has just appeared there
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if target.exists() or target.is_symlink():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        partial.rename(target)


def _explained(target: Path, error: OSError) -> WriteError:
    remedy = _REMEDIES.get(error.errno or 0, "choose a place that you can write to")
    return WriteError(f"cannot write {target}: {error.strerror or error}; {remedy}", error.errno, error.strerror)
