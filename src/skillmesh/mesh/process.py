"""Running nodes as separate processes, for programs that need several: start, watch and stop them."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillmesh.errors import AgentError
from skillmesh.mesh.calling import call

LOG = "serve.log"
LAST_WORDS = 1000
"""Number of characters of a log that an error message quotes."""
GRACE = 10.0
"""Seconds allowed for leaving the mesh properly; a slower process is killed, which its home survives."""
ONE_THREAD = MappingProxyType({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
"""Environment variables for many nodes on few cores."""
PR_SET_PDEATHSIG = 1


class NodeProcess:
    """A `skillmesh serve` process on an agent's home, which must exist.

    On Linux it is killed when the thread that started it ends, and so when the program is killed: an orphaned node
    would keep its home locked. Start it in a thread that lasts as long as the node should.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.name = home.name
        self.log = home / LOG
        self.process: subprocess.Popen[bytes] | None = None
        """The process from `start` to `stop`; one that ended by itself stays here, for `check` to report."""
        self._log_start = 0

    def start(
        self, *options: str, variables: Mapping[str, str] = MappingProxyType({}), under: Sequence[str] = ()
    ) -> None:
        """Start the process with options of `skillmesh serve` and extra environment variables; append to the log.

        `under` is a command that runs the node as its last arguments, such as `ip netns exec NAME`.
        """
        command = [*under, sys.executable, "-m", "skillmesh", "--home", str(self.home), "serve", *options]
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | variables, preexec_fn=_ended_with_parent()
            )

    @property
    def returncode(self) -> int | None:
        """Exit status of a process that has ended by itself; `None` while it runs or before it is started."""
        return None if self.process is None else self.process.poll()

    def check(self) -> None:
        """Raise an error with the end of the log if the process has ended by itself."""
        if self.returncode is not None:
            raise AgentError(
                f"{self.name} ended with exit status {self.returncode}, expected it to run until it is stopped; "
                f"fix what its log reports: {self.last_words()}"
            )

    def status(self, timeout: float = 60.0) -> dict[str, Any]:
        """Return the node's status; raise `NotRunningError` while it is starting."""
        status: dict[str, Any] = call(self.home, "status", timeout=timeout)
        return status

    def last_words(self) -> str:
        """Return the end of the log since the last start."""
        log = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        return log.strip()[-LAST_WORDS:] or f"{self.log} is empty"

    def send(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process without warning, as a power failure would."""
        self.send(signal.SIGKILL)
        self.wait(GRACE)

    def stop(self, grace: float = GRACE) -> None:
        """Make the node leave the mesh properly; kill its process if that takes longer than `grace` seconds."""
        stop_all([self], grace)

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended; kill it after `seconds`."""
        if self.process is None:
            return
        try:
            self.process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def stop_all(nodes: Sequence[NodeProcess], grace: float = GRACE) -> None:
    """Stop all nodes at the same time, so that `grace` seconds are enough for all of them."""
    for node in nodes:
        node.send(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for node in nodes:
        node.wait(deadline - time.monotonic())


def free_port() -> int:
    """Return an unused port for discovery, so that nodes do not find agents of other programs."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ended_with_parent() -> Callable[[], None] | None:
    """Return a function for the new process to call first: it makes the system kill it when its parent ends."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # before the fork: afterwards the loader's lock may stay held

    def request() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the request
            os._exit(1)

    return request
