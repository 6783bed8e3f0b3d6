"""The demo's agents together: they trust each other, are watched, and all end whatever happens."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from signal import SIGTERM

from skillmesh.cli.demo.member import GRACE, Member
from skillmesh.errors import AgentError

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
        for member in self.members:
            member.send(SIGTERM)
        deadline = time.monotonic() + GRACE
        for member in self.members:
            member.wait(deadline - time.monotonic())
            member.agent.ledger.close()

    def __getitem__(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.runs]

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
                    *(f"{member.name}: {member.last_words()}" for member in self.running),
                )
            time.sleep(LOOK)


def free_port() -> int:
    """A port for discovery that nobody uses, so that the demo meets nobody else's agents."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
