"""File operations of a command on a home, and the states in which a crash or a power cut could leave it.

A log comes from `write_log.c`. The model of a disk is the one that POSIX promises, which is less than most file
systems keep: bytes are safe once their file was synced, a name (made, moved, removed) once its folder was.
Anything else may or may not be there after a power cut, independently, and of a write any of its sectors.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("write_log.c")
SECTOR = 512
_RECORD = struct.Struct("<c3xIQqIIQ")
IGNORED = "-shm"
"""SQLite's index of its log: mapped into memory, and rebuilt by the first process that opens the ledger."""
FOLDER = -1
"""Marks a folder, where a file has its number."""


def shim() -> Path:
    """Compile the recording library, once for each version of its source."""
    source = SOURCE.read_bytes()
    target = (
        Path(tempfile.gettempdir())
        / f"skillmesh-write-log-{hashlib.sha256(source).hexdigest()[:16]}.{os.getuid()}.so"
    )
    if target.exists() and target.stat().st_uid == os.getuid():
        return target
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "write_log.so"
        command = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl", "-lpthread"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            raise RuntimeError(
                f"the recording library cannot be compiled: {reason}; install a C compiler"
            ) from error
        shutil.copy(made, f"{target}.{os.getpid()}")
        Path(f"{target}.{os.getpid()}").replace(target)
    return target


@dataclass(frozen=True)
class Op:
    """One call. `names`: what each path is from then on, a file's number, `FOLDER`, or `None` for gone."""

    kind: str
    file: int = 0
    offset: int = 0
    data: bytes = b""
    names: tuple[tuple[str, int | None], ...] = ()
    path: str = ""

    def __str__(self) -> str:
        names = ", ".join(f"{path}={'gone' if to is None else to}" for path, to in self.names)
        return f"{self.kind} {names or self.path or self.file} {self.offset}+{len(self.data)}"


@dataclass
class Disk:
    """Names and contents; paths are relative to the recorded folder."""

    names: dict[str, int] = field(default_factory=dict)
    contents: dict[int, bytearray] = field(default_factory=dict)

    def copy(self) -> Disk:
        return Disk(dict(self.names), {file: bytearray(data) for file, data in self.contents.items()})

    def apply(self, op: Op) -> None:
        for path, to in op.names:
            if to is None:
                self.names.pop(path, None)
            else:
                self.names[path] = to
        if op.kind == "create":
            self.contents.setdefault(op.file, bytearray())
        elif op.kind in ("write", "resize"):
            content = self.contents.setdefault(op.file, bytearray())
            end = op.offset + len(op.data)
            if len(content) < end:
                content.extend(bytes(end - len(content)))
            if op.kind == "write":
                content[op.offset : end] = op.data
            else:
                del content[op.offset :]

    def reachable(self) -> dict[str, int]:
        """Return the names whose folders exist, too."""
        found: dict[str, int] = {}
        for path in sorted(self.names):
            parent = _folder(path)
            if not path.endswith(IGNORED) and (not parent or found.get(parent) == FOLDER):
                found[path] = self.names[path]
        return found

    def digest(self) -> str:
        state = hashlib.sha256()
        for path, to in self.reachable().items():
            state.update(f"{path}\n{to == FOLDER}\n".encode())
            state.update(hashlib.sha256(self.contents.get(to, b"")).digest())
        return state.hexdigest()

    def difference(self, other: Disk) -> str:
        """Name the paths in which two disks differ."""
        ours, theirs = (
            {path: to == FOLDER or disk.contents[to] for path, to in disk.reachable().items()}
            for disk in (self, other)
        )
        return ", ".join(
            path for path in sorted(ours.keys() | theirs.keys()) if ours.get(path) != theirs.get(path)
        )

    def write_to(self, folder: Path) -> None:
        """Make a folder equal to this disk."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        for path, to in self.reachable().items():
            if to == FOLDER:
                (folder / path).mkdir(mode=0o700)
            else:
                (folder / path).touch(mode=0o600)
                (folder / path).write_bytes(self.contents.get(to, b""))


def found_on(folder: Path) -> tuple[Disk, dict[int, int]]:
    """Read a folder; return also the file number of each inode."""
    disk, inodes = Disk(), {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            disk.names[name] = FOLDER
        elif path.is_file():
            disk.names[name] = file = inodes.setdefault(path.stat().st_ino, len(inodes) + 1)
            disk.contents[file] = bytearray(path.read_bytes())
    return disk, inodes


def read_log(log: Path, folder: Path, inodes: Mapping[int, int]) -> list[Op]:
    """Read what was recorded under a folder; `inodes` as `found_on` gave them before."""
    numbers, count, data, place = dict(inodes), len(inodes), log.read_bytes(), 0
    ops: list[Op] = []
    ignored: set[int] = set()

    def relative(path: bytes) -> str:
        return os.path.relpath(os.fsdecode(path), folder) if path else ""

    while place < len(data):
        kind, _, inode, offset, path_length, target_length, length = _RECORD.unpack_from(data, place)
        place += _RECORD.size
        path, target = (
            relative(data[place : place + path_length]),
            relative(data[place + path_length :][:target_length]),
        )
        place += path_length + target_length
        content = data[place : place + length]
        place += length
        if kind == b"C":
            count += 1
            numbers[inode] = count  # a freed inode may be used again, for another file
            ignored |= {count} if path.endswith(IGNORED) else set()
        file = numbers.get(inode, 0)
        if file in ignored or (kind == b"U" and path.endswith(IGNORED)):
            continue
        match kind:
            case b"C":
                ops.append(Op("create", file, names=((path, file),) if path else ()))
            case b"W":
                ops.append(Op("write", file, offset, content))
            case b"T":
                ops.append(Op("resize", file, offset))
            case b"S":
                ops.append(Op("sync", file, path=path))
            case b"D":
                ops.append(Op("sync folder", path="" if path == "." else path))
            case b"R":
                ops.append(Op("rename", names=((path, None), (target, file))))
            case b"L":
                ops.append(Op("link", names=((target, file),)))
            case b"U":
                ops.append(Op("remove", names=((path, None),)))
            case b"M":
                ops.append(Op("mkdir", names=((path, FOLDER),)))
            case b"P":
                ops.append(Op("report", data=content))
        if kind in b"CWTSRL" and not file:
            raise RuntimeError(f"the log does not contain the creation of the file of {ops[-1]}")
    return ops


def after(start: Disk, ops: Sequence[Op]) -> Disk:
    """Return the disk after all these calls: the kernel keeps them when a process is killed."""
    disk = start.copy()
    for op in ops:
        disk.apply(op)
    return disk


def torn(start: Disk, ops: Sequence[Op]) -> Disk | None:
    """Return the disk after a kill in the middle of the last call, if that is a write."""
    if not ops or ops[-1].kind != "write" or len(ops[-1].data) < 2:
        return None
    last = ops[-1]
    return after(start, [*ops[:-1], Op("write", last.file, last.offset, last.data[: len(last.data) // 2])])


def unsynced(ops: Sequence[Op]) -> list[int]:
    """Return the calls that a power cut after the last of them may undo."""
    files: set[int] = set()
    folders: set[str] = set()
    found = []
    for index in reversed(range(len(ops))):
        op = ops[index]
        if op.kind == "sync":
            files.add(op.file)
        elif op.kind == "sync folder":
            folders.add(op.path)
        elif op.kind in ("write", "resize"):
            found += [] if op.file in files else [index]
        elif not {_folder(path) for path, _ in op.names} <= folders:
            found.append(index)
    return found[::-1]


def power_cuts(start: Disk, ops: Sequence[Op], chance: random.Random, more: int) -> Iterator[tuple[str, Disk]]:
    """Yield states after a power cut that follows the last of these calls, each with what was lost.

    Everything unsynced is lost; or only names or only bytes are kept; each unsynced call alone is lost, or
    alone is kept; and `more` random choices with torn writes.
    """
    open_ = unsynced(ops)
    if not open_:
        return
    names = {index for index in open_ if ops[index].names}

    def state(kept: Callable[[int], bool], tear: bool = False) -> Disk:
        disk, at_risk = start.copy(), set(open_)
        for index, op in enumerate(ops):
            if index not in at_risk or kept(index):
                disk.apply(_torn_by(op, chance) if tear and index in at_risk else op)
        return disk

    yield "all unsynced", state(lambda _: False)
    if names and len(names) < len(open_):
        yield "unsynced bytes", state(names.__contains__)
        yield "unsynced names", state(lambda index: index not in names)
    if len(open_) > 1:
        for one in open_[-8:]:
            yield f"only {ops[one]}", state(lambda index, one=one: index != one)  # type: ignore[misc]
            yield f"all but {ops[one]}", state(lambda index, one=one: index == one)  # type: ignore[misc]
    for _ in range(more):
        kept = {index for index in open_ if chance.random() < 0.5}
        yield "a random choice", state(kept.__contains__, tear=True)


def _torn_by(op: Op, chance: random.Random) -> Op:
    """Return a write of which only some sectors reached the disk: those before a point, or those from it on."""
    block = chance.choice((SECTOR, 4096))
    cuts = range(block - op.offset % block, len(op.data), block)
    if op.kind != "write" or not cuts or chance.random() < 0.5:
        return op
    cut = chance.choice(cuts)
    if chance.random() < 0.5:
        return Op("write", op.file, op.offset, op.data[:cut])
    return Op("write", op.file, op.offset + cut, op.data[cut:])


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
