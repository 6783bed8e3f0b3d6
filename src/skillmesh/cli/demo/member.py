"""The demo's agents: each a home and a `skillmesh serve` process; together they are watched, and all end."""

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
"""Seconds to leave the mesh in order: whoever ends the demo does not want to wait for long."""


class Member:
    """One agent: its node, and what the demo has seen of it."""

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
        """When its process was started; times are those of `time.monotonic`."""
        self.joined: float | None = None
        """When its process first answered."""
        self.since: dict[str, float] = {}
        """When each task was first seen in its bank."""
        self.node = NodeProcess(home)

    def start(self, cache: Path, device: str | None) -> None:
        """Start the process; it learns its lessons while it shares."""
        options = [word for folder in self.lessons for word in ("--learn", str(folder))]
        if device is not None:
            options += ["--device", device]
        self.began = time.monotonic()
        self.node.start(*options, variables={"SKILLMESH_CACHE": str(cache.resolve())})

    def look(self) -> list[str]:
        """Take notice of what changed; return the tasks that are new in its bank."""
        self.node.check()
        self.agent.bank.refresh()
        now = time.monotonic()
        news = [module.card.task for module in self.agent.bank if module.card.task not in self.since]
        self.since |= dict.fromkeys(news, now)
        with contextlib.suppress(AgentError):  # it is starting, or busy: next time
            self.status = self.node.status(timeout=10)
            self.joined = self.joined or now
        return news

    def has_taught(self, task: str) -> bool:
        """Whether it learned this task itself."""
        return self.agent.bank.held(task, self.key) is not None

    def knows(self, tasks: int) -> bool:
        """Whether it answers from so many tasks: having received them is not enough."""
        return bool(self.status.get("in_use") == tasks)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.node.kill()
        self.killed = True


def _clear(home: Path) -> None:
    """Remove the home of an earlier run; end a node that an earlier demo has left on it."""
    if not home.exists():
        return
    if not (home / CONFIG_FILE).exists():
        raise AgentError(f"{home} is no agent's home; remove it, or name another folder with --out")
    with contextlib.suppress(AgentError):
        call(home, "stop", timeout=10)
    try:
        with FileLock(home / NODE_LOCK, timeout=20):
            pass
    except Timeout:
        raise AgentError(f"a node still runs on {home}; end it first") from None
    shutil.rmtree(home)


# The demo's agents together: they trust each other, are watched, and all end whatever happens.

LOOK = 0.2
"""Seconds between looks at the agents."""
PATIENCE = 600.0
"""Seconds without any news after which something must be wrong: a busy machine takes minutes to load torch."""

News = dict[Member, list[str]]
"""Tasks that are new in the banks of agents."""


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
        """Look at the agents until something is true; `show` is told what is new."""
        changed, before = time.monotonic(), None
        while True:
            show({member: member.look() for member in self.running})
            if until():
                return
            stands = [(len(member.since), member.status.get("in_use")) for member in self.members]
            if stands != before:
                changed, before = time.monotonic(), stands
            if time.monotonic() - changed > PATIENCE:
                raise AgentError.of_lines(
                    f"the agents have stood still for {PATIENCE:.0f} s; their logs end so:",
                    *(f"{member.name}: {member.node.last_words()}" for member in self.running),
                )
            time.sleep(LOOK)
