"""The one way in which files are written: all of it or nothing, and nobody else's file in its place.

A file is written under a name that nobody can foresee, in the folder where it belongs, with the mode that it is to
have, and renamed into its place. A link that lies there is replaced, never followed. What is written for good
(`sync`) outlasts a power cut. If anything fails, the half-written file is removed; a killed process leaves one
behind, which `remove_abandoned` finds. `tests/common/test_files.py` keeps other ways to write out of the package.
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
except ImportError:  # no POSIX system
    fcntl = None  # type: ignore[assignment]

PRIVATE = 0o600
"""Mode of what an agent keeps for itself."""
SHARED = 0o666
"""Mode of what the user asked for: as the user's umask allows."""
PRIVATE_FOLDER = 0o700

PARTIAL = ".partial"
_OURS = re.compile(r"\.skillmesh-[0-9a-f]{16}\.partial")
_OLDER = re.compile(r"(agent\.json|mesh\.json|training-[0-9a-f]{16}|tmp\w{8}|[0-9a-f]{64})\.partial")
"""Names that earlier releases gave to half-written files in agents' homes."""
HOUR = 3600.0
LONGEST_PART = 255
"""Bytes of one part of a path that systems take."""

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NOT_HERE = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems that cannot lock a file, or sync a folder."""
_REMEDIES = {
    errno.ENOSPC: "make room, then try again",
    errno.EDQUOT: "make room, then try again",
    errno.ENOENT: "name a file in a folder that exists",
    errno.ENOTDIR: "name a file in a folder that exists",
    errno.EISDIR: "name a file, not a folder",
    errno.ENAMETOOLONG: "name a file with a shorter name",
}


def write_whole(
    path: str | Path, data: bytes, *, mode: int = SHARED, sync: bool = True, new: bool = False
) -> None:
    """Write a file, all of it or nothing; see `writing`."""
    with writing(path, mode=mode, sync=sync, new=new) as file:
        file.write(data)


@contextmanager
def writing(path: str | Path, *, mode: int = SHARED, sync: bool = True, new: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write to, and put it into its place when all is written.

    Parameters
    ----------
    sync
        Whether it has to outlast a power cut from then on; results that can be made again need not.
    new
        Never in the place of another file: `FileExistsError` where there is one, even in a race.
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
            _put(partial, target, new)  # while it is locked: until then a killed process may have left it
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
    """Refuse to put a file in the place of a folder, a device or a pipe, also where a link leads to one."""
    try:
        found = target.stat().st_mode
    except OSError:  # nothing there, or a link to nothing
        return
    if stat.S_ISDIR(found):
        raise _explained(target, OSError(errno.EISDIR, os.strerror(errno.EISDIR)))
    if not stat.S_ISREG(found):
        raise WriteError(
            f"cannot write {target}: it is a device or a pipe; expected the name of a file", errno.EINVAL
        )


def too_long(path: str | os.PathLike[str]) -> bool:
    """Whether no file can be there: systems refuse such names with an error of their own."""
    return any(len(part) > LONGEST_PART for part in os.fsencode(path).split(os.sep.encode()))


def make_folder(folder: Path) -> None:
    """Make a folder that its owner alone can look into, and that outlasts a power cut; one that is there stays."""
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    for parent in made:
        sync_folder(parent.parent)


def remove(path: Path) -> None:
    """Remove a file, if it is there, so that it does not come back with a power cut."""
    with suppress(FileNotFoundError):
        path.unlink()
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or removal outlast a power cut, where the system allows a folder to be synced."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder that we may write to, but not look into
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path, *, in_home: bool = False) -> None:
    """Remove what killed processes left half written in a folder.

    Whoever writes holds a lock on the file, so one that can be locked is nobody's. Earlier releases held none, and
    gave names that others' files may have too: in an agent's home (`in_home`) these go when they are an hour old.
    """
    with suppress(OSError):
        for path in list(folder.iterdir()):
            with suppress(OSError):  # somebody writes it, or another process has just removed it
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
    """Make a new file of our own and lock it."""
    while True:
        path = folder / f".skillmesh-{secrets.token_hex(8)}{PARTIAL}"
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, mode), "wb")
        try:
            _lock(file)
            if os.fstat(file.fileno()).st_nlink:
                return path, file
            file.close()  # between the two lines above somebody took it for abandoned
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
        if error.errno not in (errno.ENOLCK, *_NOT_HERE):
            raise


def _put(partial: Path, target: Path, new: bool) -> None:
    if not new:
        partial.replace(target)
        return
    try:
        os.link(partial, target)  # unlike a rename, this refuses a file that has just appeared
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if target.exists() or target.is_symlink():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        partial.rename(target)


def _explained(target: Path, error: OSError) -> WriteError:
    remedy = _REMEDIES.get(error.errno or 0, "name a place that you can write to")
    return WriteError(f"cannot write {target}: {error.strerror or error}; {remedy}", error.errno, error.strerror)
