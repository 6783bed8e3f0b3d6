"""Agents that run while another is killed, so that it has traffic: nodes in child processes, and a caller."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import time
from pathlib import Path

from attacks import forks, homes

PEERS = ("bob", "stranger")
_DIE_WITH_PARENT = 1
"""`PR_SET_PDEATHSIG` of prctl(2)."""


class Peers:
    """Nodes with modules that alice lacks, on ports of this machine; started when first needed."""

    def __init__(self, place: Path, files: Path) -> None:
        self._place, self._files = place, files
        self._children: list[int] = []
        self.addresses: list[str] = []

    def options(self) -> list[str]:
        """Return the options with which a command finds them."""
        if not self._children:
            self._start()
        connect = [word for address in self.addresses for word in ("--connect", address)]
        return ["--network", "fixed", "--listen", "127.0.0.1:0", "--trust", "open", *connect]

    def _start(self) -> None:
        for name in PEERS:
            home = Path(shutil.copytree(self._files / name, self._place / "peers" / name))
            self.addresses.append(f"127.0.0.1:{_free_port()}")
            words = ["serve", "--home", str(home), "--network", "fixed", "--listen", self.addresses[-1]]
            self._children.append(_forever(lambda words=words: homes.run_command(words)))  # type: ignore[misc]
            _until_it_runs(home)

    def close(self) -> None:
        for child in self._children:
            end(child)


class Caller:
    """A child that repeatedly asks a node for its status and records from how many tasks it answers."""

    def __init__(self, home: Path, note: Path) -> None:
        self._note = note
        note.unlink(missing_ok=True)
        self._child = _forever(lambda: _call_on_and_on(home, note))

    def heard(self) -> int:
        """Return the largest number of tasks from which the node has reported to answer."""
        end(self._child)
        try:
            return max(map(int, self._note.read_text().split()), default=0)
        except FileNotFoundError:
            return 0


def _call_on_and_on(home: Path, note: Path) -> None:
    from skillmesh.errors import SkillmeshError
    from skillmesh.mesh.calling import call

    with note.open("a") as file:
        while True:
            with contextlib.suppress(SkillmeshError):
                file.write(f"{call(home, 'status', timeout=5)['in_use']}\n")
                file.flush()
            time.sleep(0.02)


def _forever(work: object) -> int:
    """Run something in a child that ends with this process."""
    child = os.fork()
    if child:
        return child
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        forks.silent()
        work()  # type: ignore[operator]
    finally:
        os._exit(1)


def end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def _until_it_runs(home: Path) -> None:
    from skillmesh.mesh.calling import NotRunningError, call

    deadline = time.monotonic() + forks.TOO_LONG
    while time.monotonic() < deadline:
        with contextlib.suppress(NotRunningError):
            call(home, "status", timeout=10)
            return
        time.sleep(0.1)
    raise RuntimeError(f"the node on {home} did not start: {json.dumps(sorted(p.name for p in home.iterdir()))}")


def _free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])
