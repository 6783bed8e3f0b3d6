"""Real nodes for hostile play and the soak: `skillmesh serve` processes that are watched while they work.

What is measured goes into `samples.jsonl` line by line, so that a run that was stopped can be read.
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
"""What no log of a node may hold."""


class Resident(NodeProcess):
    """One node, and what its log has said so far."""

    def __init__(self, home: Path, net: Namespace, variables: dict[str, str]) -> None:
        super().__init__(home)
        self._net, self._variables = net, variables
        self.log = home.parent / f"{home.name}.log"  # not in the home, whose size is bounded
        self._read = self.log.stat().st_size if self.log.exists() else 0
        self.starts = 0

    def start(self, *options: str) -> None:
        """Start the process; a node that a killed campaign has left on this home is ended first."""
        with contextlib.suppress(AgentError):
            call(self.home, "stop", timeout=10)
        with FileLock(self.home / LOCK, timeout=ENDS_WITHIN):  # it is free when that node has ended
            self.starts += 1
        super().start(*options, variables=self._variables, under=self._net.prefix)

    def runs(self) -> bool:
        try:
            self.status(timeout=20)
        except AgentError:
            return False
        return True

    def new_trouble(self) -> list[str]:
        """Tracebacks and panics that the log holds and that were not reported yet, each with what follows it."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
            self._read += len(text)
        said = text.decode(errors="replace")
        return [said[found.start() : found.start() + 1500] for found in TROUBLE.finditer(said)]

    def bank(self) -> set[str]:
        """The ids of the modules that lie in the bank."""
        return {path.stem for path in (self.home / "bank").glob("*.skill")}

    def measured(self) -> dict[str, Any]:
        """Memory in MB, descriptors, threads, seconds of CPU and bytes on disk, now."""
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
    """Bytes of all files in a folder; what vanishes while they are counted has none."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
    return total


class Lines:
    """A file of JSON lines that several threads write and that is read again after a stop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._guard = threading.Lock()

    def write(self, **fields: Any) -> None:
        with self._guard, self.path.open("a") as file:
            file.write(json.dumps(fields) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All whole lines: a kill may have cut the last one."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """Have SIGTERM raise, as Ctrl-C does, so that a campaign that is told to end takes its nodes with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def started(residents: list[Resident]) -> None:
    """Wait until all nodes answer; what keeps one from it is in the error."""
    deadline = time.monotonic() + STARTS_WITHIN
    for resident in residents:
        while not resident.runs():
            resident.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{resident.name} did not start: {resident.last_words()}")
            time.sleep(0.2)


def unseen(image: Path, folder: Path, number: int) -> Path:
    """Write an image that looks the same and was never described: a JPEG with another comment.

    The files of the last few numbers stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, comment = image.read_bytes(), str(number).encode()
    target = folder / f"{number % 16}.jpg"
    target.write_bytes(data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:])
    return target


def within(seconds: float, what: Callable[[], Any]) -> float | None:
    """Seconds until `what` was true; `None` where it was not in so many."""
    began = time.monotonic()
    while not what():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(0.1)
    return time.monotonic() - began


@contextlib.contextmanager
def over_and_over(name: str, every: float, do: Callable[[], None], wrong: Callable[[str], None]) -> Iterator[None]:
    """Do something every so many seconds in a thread of its own; what goes wrong is told and does not end it."""
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
