"""A node as a process of its own, for programs that run several: started, watched and ended."""

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
"""Characters of a log that a message quotes."""
GRACE = 10.0
"""Seconds to leave the mesh in order; a process that takes longer is killed, which its home survives."""
ONE_THREAD = MappingProxyType({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
"""Environment variables for many nodes on few cores."""
PR_SET_PDEATHSIG = 1


class NodeProcess:
    """A `skillmesh serve` process on an agent's home, which must exist.

    On Linux it is killed when the thread that started it ends, and so when the program is killed: a node that was
    left behind would hold its home. Start it in a thread that lasts.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.name = home.name
        self.log = home / LOG
        self.process: subprocess.Popen[bytes] | None = None
        """The process from its start until it is stopped; one that ended by itself stays, to be noticed."""
        self._log_start = 0

    def start(
        self, *options: str, variables: Mapping[str, str] = MappingProxyType({}), under: Sequence[str] = ()
    ) -> None:
        """Start the process with options of `skillmesh serve` and more environment variables; add to the log.

        `under` is a command that runs the node in its own place, as `ip netns exec NAME` does.
        """
        words = [*under, sys.executable, "-m", "skillmesh", "--home", str(self.home), "serve", *options]
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                words, stdout=log, stderr=log, env=os.environ | variables, preexec_fn=_ended_with_parent()
            )

    @property
    def returncode(self) -> int | None:
        """Exit status of a process that has ended by itself; `None` while it runs or none is started."""
        return None if self.process is None else self.process.poll()

    def check(self) -> None:
        """Raise an error with the end of the log if the process has ended by itself."""
        if self.returncode is not None:
            raise AgentError(
                f"{self.name} ended with {self.returncode}, expected it to run until it is stopped; "
                f"its log says what to mend: {self.last_words()}"
            )

    def status(self, timeout: float = 60.0) -> dict[str, Any]:
        """Ask the node for its status; `NotRunningError` while it is starting."""
        status: dict[str, Any] = call(self.home, "status", timeout=timeout)
        return status

    def last_words(self) -> str:
        """Return the end of what was logged since the start."""
        log = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        return log.strip()[-LAST_WORDS:] or f"{self.log} is empty"

    def send(self, number: int) -> None:
        """Send a signal to the process if there is one."""
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End the process as a power cut would."""
        self.send(signal.SIGKILL)
        self.wait(GRACE)

    def stop(self, grace: float = GRACE) -> None:
        """Have the node leave the mesh in order; kill its process if that takes longer than `grace` seconds."""
        stop_all([self], grace)

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended; kill it if that takes longer."""
        if self.process is None:
            return
        try:
            self.process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def stop_all(nodes: Sequence[NodeProcess], grace: float = GRACE) -> None:
    """Stop nodes side by side, so that `grace` seconds are enough for all."""
    for node in nodes:
        node.send(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for node in nodes:
        node.wait(deadline - time.monotonic())


def free_port() -> int:
    """Return a port for discovery that nobody uses, so that nodes meet nobody else's agents."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ended_with_parent() -> Callable[[], None] | None:
    """Return what a new process does first, so that the system kills it when its parent ends."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # before the fork: after it, a thread that is gone may hold the loader's lock

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before it was asked
            os._exit(1)

    return ask
