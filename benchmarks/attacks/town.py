"""Real nodes for the hostile peers and the soak: `skillmesh serve` processes that are monitored.

Measurements are written to `samples.jsonl` line by line, so that a stopped run can be read.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock
from nodes import Namespace

from skillmesh.errors import AgentError
from skillmesh.mesh.calling import call
from skillmesh.mesh.node import LOCK
from skillmesh.mesh.process import NodeProcess

STARTS_WITHIN = 120.0
ENDS_WITHIN = 30.0
TROUBLE = re.compile(r"Traceback \(most recent call last\)|panicked at|Segmentation fault|Fatal Python error")
"""Text that must not be in any log of a node."""


class Resident(NodeProcess):
    """One node, with the position up to which its log was read."""

    def __init__(self, home: Path, net: Namespace, variables: dict[str, str]) -> None:
        super().__init__(home)
        self._net, self._variables = net, variables
        self.log = home.parent / f"{home.name}.log"  # not in the home, whose size is bounded
        self._read = self.log.stat().st_size if self.log.exists() else 0
        self.starts = 0

    def start(self, *options: str) -> None:
        """Start the process; a node left on this home by a killed campaign is ended first."""
        with contextlib.suppress(AgentError):
            call(self.home, "stop", timeout=10)
        with FileLock(self.home / LOCK, timeout=ENDS_WITHIN):  # free once that node has ended
            self.starts += 1
        super().start(*options, variables=self._variables, under=self._net.prefix)

    def runs(self) -> bool:
        try:
            self.status(timeout=20)
        except AgentError:
            return False
        return True

    def new_trouble(self) -> list[str]:
        """Return tracebacks and panics in the log that were not reported yet, each with the text after it."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
            self._read += len(text)
        lines = text.decode(errors="replace")
        return [lines[found.start() : found.start() + 1500] for found in TROUBLE.finditer(lines)]

    def bank(self) -> set[str]:
        """Return the ids of the modules in the bank."""
        return {path.stem for path in (self.home / "bank").glob("*.skill")}

    def measured(self) -> dict[str, Any]:
        """Return memory in MB, descriptors, threads, CPU seconds and bytes on disk."""
        assert self.process is not None
        proc = Path("/proc", str(self.process.pid))
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        rollup = dict(line.split(":", 1) for line in (proc / "smaps_rollup").read_text().splitlines()[1:])
        times = (proc / "stat").read_text().rpartition(")")[2].split()
        return {
            "rss": round(_megabytes(status["VmRSS"]), 2),
            "anonymous": round(_megabytes(status["RssAnon"]), 2),
            "pss": round(_megabytes(rollup["Pss"]), 2),
            "fds": sum(1 for _ in (proc / "fd").iterdir()),
            "threads": int(status["Threads"]),
            "cpu": (int(times[11]) + int(times[12])) / 100,
            "disk": disk(self.home),
        }


def _megabytes(kilobytes: str) -> float:
    return int(kilobytes.split()[0]) / 1000


def disk(folder: Path) -> int:
    """Return the bytes of all files in a folder; files deleted meanwhile count as 0."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
    return total


class Lines:
    """A file of JSON lines, written by several threads and read again after a stop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._guard = threading.Lock()

    def write(self, **fields: Any) -> None:
        with self._guard, self.path.open("a") as file:
            file.write(json.dumps(fields) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """Return all complete lines: a kill may have cut the last one."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Make SIGTERM raise, as Ctrl-C does, so that a stopped campaign stops its nodes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def started(residents: list[Resident]) -> None:
    """Wait until all nodes answer; the error says why one does not."""
    deadline = time.monotonic() + STARTS_WITHIN
    for resident in residents:
        while not resident.runs():
            resident.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{resident.name} did not start: {resident.last_words()}")
            time.sleep(0.2)


def unseen(image: Path, folder: Path, number: int) -> Path:
    """Write an image that looks the same and was never described: a JPEG with another comment.

    The last few files are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, comment = image.read_bytes(), str(number).encode()
    target = folder / f"{number % 16}.jpg"
    target.write_bytes(data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:])
    return target


def within(seconds: float, what: Callable[[], Any]) -> float | None:
    """Return the seconds until `what` was true; `None` after `seconds` without."""
    began = time.monotonic()
    while not what():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(0.1)
    return time.monotonic() - began


@contextlib.contextmanager
def over_and_over(name: str, every: float, do: Callable[[], None], wrong: Callable[[str], None]) -> Iterator[None]:
    """Do something periodically in a thread; errors are reported and do not end it."""
    over = threading.Event()

    def turn() -> None:
        while not over.wait(every):
            try:
                do()
            except Exception as error:
                wrong(f"{name}: {type(error).__name__}: {error}")

    worker = threading.Thread(target=turn, name=name, daemon=True)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join(60)
