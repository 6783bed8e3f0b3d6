"""The other agents as one agent sees them: who is there, who is quick, who lacks what, who needs a rest."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

from skillmesh.mesh.protocol import MAX_PIECE, MIN_PIECE, Hello

MAX_PEERS = 2_000
"""Signs of life cost nothing to make up: those beyond so many are not believed until another is gone."""
AT_ONCE = 2
"""Modules that are fetched from one peer at a time: a slow one must not take up every hand."""
PATIENCE = 0.2
"""Seconds to wait for a peer that is busy; then its turn comes later, and others go first."""
FIRST_PIECE = 131_072
QUICK, SLOW = 0.1, 1.0
"""Seconds for a piece under which the next is twice as large, and over which it is half as large."""
LACKS_FOR = 10.0
"""Seconds for which a peer is not asked again for a module that it did not have."""
SILENCE = 10.0
"""Seconds after which nobody waits any more for one who has never replied."""
REST, LONGEST_REST = 2.0, 120.0
BETWEEN_TURNS = 10.0
"""Seconds between two turns of one peer: those who list the same, over and over, are not asked without end."""


@dataclass
class Peer:
    """One other agent."""

    agent: str
    hello: Hello | None = None
    alive: bool = True
    heard: float = 0.0
    """When it last replied, by the monotonic clock."""
    piece: int = FIRST_PIECE
    busy: int = 0
    failures: int = 0
    rests_until: float = 0.0
    lacks: dict[str, float] = field(default_factory=dict)
    bytes_received: int = 0
    appeared: float = 0.0
    level: bool = False
    """Whether all that it listed was known here when it last did."""
    turn: float = inf
    """When it is to be asked for what another was being asked for."""
    had_turn: float = -inf

    @property
    def silent(self) -> bool:
        """Whether it is there, as it seems, and has never said anything."""
        return self.hello is None and time.monotonic() - self.appeared > SILENCE


class Peers:
    """All peers, for several threads."""

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        self._guard = threading.Condition()

    def appeared(self, agent: str) -> bool:
        """Note that an agent is there; say whether that is news."""
        with self._guard:
            peer = self._peers.get(agent)
            if peer is None:
                if len(self._peers) >= MAX_PEERS and not self._evict():
                    return False
                peer = self._peers[agent] = Peer(agent, alive=False)
            news, peer.alive = not peer.alive, True
            if news:
                peer.appeared, peer.level = time.monotonic(), False
                peer.rests_until, peer.failures = 0.0, 0
                peer.lacks.clear()
            return news

    def gone(self, agent: str) -> None:
        with self._guard:
            if agent in self._peers:
                self._peers[agent].alive = False

    def rested(self) -> list[Peer]:
        """Those who are there and did not fail a moment ago."""
        now = time.monotonic()
        return [peer for peer in self.alive() if peer.rests_until <= now]

    def let_rest(self, agent: str) -> None:
        peer = self._peers.get(agent)
        if peer is not None:
            self.failed(peer)

    def all_gone(self) -> None:
        """Begin anew, as on another network."""
        with self._guard:
            for peer in self._peers.values():
                peer.alive = False

    def greeted(self, agent: str, hello: Hello) -> None:
        with self._guard:
            peer = self._peers.get(agent)
            if peer is not None:
                peer.hello, peer.heard = hello, time.monotonic()

    def level(self, agent: str, level: bool) -> None:
        with self._guard:
            peer = self._peers.get(agent)
            if peer is not None:
                peer.level = level

    def put_off(self, agent: str, until: float) -> None:
        """Note that it has news which another was just asked for, and when that one will have had its time."""
        with self._guard:
            peer = self._peers.get(agent)
            if peer is not None:
                peer.turn = max(until, peer.had_turn + BETWEEN_TURNS)

    def whose_turn(self) -> list[Peer]:
        """Those who were put off and are to be asked now."""
        now = time.monotonic()
        with self._guard:
            due = [peer for peer in self._peers.values() if peer.alive and peer.turn <= now]
            for peer in due:
                peer.turn, peer.had_turn = inf, now
        random.shuffle(due)
        return due

    def alive(self) -> list[Peer]:
        with self._guard:
            return [peer for peer in self._peers.values() if peer.alive]

    def all(self) -> list[Peer]:
        with self._guard:
            return list(self._peers.values())

    def get(self, agent: str) -> Peer | None:
        return self._peers.get(agent)

    @contextmanager
    def holder(self, digest: str, first: str, shunned: Collection[str]) -> Iterator[Peer | None]:
        """Someone to fetch a module from: whoever is least busy, and of several its teacher."""
        deadline = time.monotonic() + PATIENCE
        with self._guard:
            while True:
                able = self._able(digest, shunned)
                free = [peer for peer in able if peer.busy < AT_ONCE]
                left = deadline - time.monotonic()
                if free or not able or left <= 0:
                    break
                self._guard.wait(left)
            random.shuffle(free)
            chosen = min(free, key=lambda p: (p.failures, p.busy, p.agent != first, p.hello is None), default=None)
            if chosen is not None:
                chosen.busy += 1
        try:
            yield chosen
        finally:
            if chosen is not None:
                with self._guard:
                    chosen.busy -= 1
                    self._guard.notify()

    def _able(self, digest: str, shunned: Collection[str]) -> list[Peer]:
        now = time.monotonic()
        return [
            peer
            for peer in self._peers.values()
            if peer.alive
            and peer.agent not in shunned
            and peer.rests_until <= now
            and peer.lacks.get(digest, 0.0) <= now
        ]

    def delivered(self, peer: Peer, count: int, seconds: float) -> None:
        """A piece came; the next is larger or smaller by how long it took."""
        with self._guard:
            peer.bytes_received += count
            peer.failures = 0
            peer.heard = time.monotonic()
            if seconds < QUICK and count >= peer.piece // 2:
                peer.piece = min(2 * peer.piece, MAX_PIECE)
            elif seconds > SLOW:
                peer.piece = max(peer.piece // 2, MIN_PIECE)

    def lacked(self, peer: Peer, digest: str) -> None:
        now = time.monotonic()
        with self._guard:
            peer.lacks = {lacked: until for lacked, until in peer.lacks.items() if until > now}
            peer.lacks[digest] = now + LACKS_FOR

    def failed(self, peer: Peer) -> None:
        """It did not reply: leave it alone for a while, longer each time."""
        with self._guard:
            peer.failures += 1
            peer.piece = MIN_PIECE
            doubled = min(peer.failures - 1, 10)
            peer.rests_until = time.monotonic() + min(REST * 2**doubled, LONGEST_REST)

    def _evict(self) -> bool:
        """Make room by dropping one that is gone, or that never signed anything."""
        for agent, peer in self._peers.items():
            if peer.busy == 0 and (not peer.alive or peer.hello is None):
                del self._peers[agent]
                return True
        return False
