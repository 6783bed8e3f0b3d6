"""The demo's agents: each has a home and a `skillmesh serve` process; a `Crew` watches and ends all of them."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from skillmesh.common.config import FILE as CONFIG_FILE
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.errors import AgentError
from skillmesh.mesh.calling import call
from skillmesh.mesh.node import LOCK as NODE_LOCK
from skillmesh.mesh.process import NodeProcess, stop_all
from skillmesh.store.home import create_home

GRACE = 3.0
"""Seconds that the agents have to leave the mesh in order; few, so that the user need not wait."""


class Member:
    """One agent: its node and the progress that the demo has observed."""

    def __init__(self, home: Path, lessons: Sequence[Path], port: int) -> None:
        self.name = home.name
        self.home = home
        self.lessons = lessons
        _clear(home)
        create_home(home, name=self.name)
        MeshSettings.of({"discovery_port": port, "sync_seconds": 2.0}).save(home)
        self.agent = Core(home)
        self.key = self.agent.identity.public_key
        self.killed = False
        self.status: dict[str, Any] = {}
        self.began = 0.0
        """Start time of its process; all times are from `time.monotonic`, in seconds."""
        self.joined: float | None = None
        """Time when its process first answered."""
        self.since: dict[str, float] = {}
        """Time when each task was first seen in its bank."""
        self.node = NodeProcess(home)

    def start(self, cache: Path, device: str | None) -> None:
        """Start the process; it learns its tasks while it shares."""
        options = [word for folder in self.lessons for word in ("--learn", str(folder))]
        if device is not None:
            options += ["--device", device]
        self.began = time.monotonic()
        self.node.start(*options, variables={"SKILLMESH_CACHE": str(cache.resolve())})

    def look(self) -> list[str]:
        """Update the observed state and return the tasks that are new in its bank."""
        self.node.check()
        self.agent.bank.refresh()
        now = time.monotonic()
        news = [module.card.task for module in self.agent.bank if module.card.task not in self.since]
        self.since |= dict.fromkeys(news, now)
        with contextlib.suppress(AgentError):  # it is starting or busy; the next look may succeed
            self.status = self.node.status(timeout=10)
            self.joined = self.joined or now
        return news

    def has_taught(self, task: str) -> bool:
        """Return whether it learned this task itself."""
        return self.agent.bank.held(task, self.key) is not None

    def knows(self, tasks: int) -> bool:
        """Return whether it answers from this number of tasks; tasks received but not yet in use do not count."""
        return bool(self.status.get("in_use") == tasks)

    def kill(self) -> None:
        """Kill the process without warning, as a power cut would."""
        self.node.kill()
        self.killed = True


def _clear(home: Path) -> None:
    """Remove the home of an earlier run; stop a node that an earlier demo left running on it."""
    if not home.exists():
        return
    if not (home / CONFIG_FILE).exists():
        raise AgentError(f"{home} is not an agent's home; remove it, or choose another folder with --out")
    with contextlib.suppress(AgentError):
        call(home, "stop", timeout=10)
    try:
        with FileLock(home / NODE_LOCK, timeout=20):
            pass
    except Timeout:
        raise AgentError(f"a node still runs on {home}; stop it first") from None
    shutil.rmtree(home)


# All agents of the demo: they trust each other, are watched, and are ended in any case.

LOOK = 0.2
"""Seconds between two checks of the agents."""
PATIENCE = 600.0
"""Seconds without progress after which the demo gives up; a busy machine takes minutes to load torch."""

News = dict[Member, list[str]]
"""Tasks that are new in each agent's bank."""


class Crew:
    """Agents that trust each other. Leaving the context ends all their processes."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        for member in members:
            for other in members:
                if other is not member:
                    member.agent.ledger.trust(other.key, other.name)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        stop_all([member.node for member in self.members], GRACE)
        for member in self.members:
            member.agent.ledger.close()

    def __getitem__(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.node.process is not None]

    def watch(self, until: Callable[[], bool], show: Callable[[News], None]) -> None:
        """Check the agents until `until` returns true; call `show` with the new tasks after each check."""
        changed, before = time.monotonic(), None
        while True:
            show({member: member.look() for member in self.running})
            if until():
                return
            state = [(len(member.since), member.status.get("in_use")) for member in self.members]
            if state != before:
                changed, before = time.monotonic(), state
            if time.monotonic() - changed > PATIENCE:
                raise AgentError.of_lines(
                    f"the agents have made no progress for {PATIENCE:.0f} s; the last lines of their logs:",
                    *(f"{member.name}: {member.node.last_words()}" for member in self.running),
                )
            time.sleep(LOOK)
