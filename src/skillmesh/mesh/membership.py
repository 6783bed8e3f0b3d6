"""Peers of one agent, and the thread that keeps the agent on the mesh.

zenoh keeps links and finds peers by multicast. It does not wait for a gateway that is away at opening, follow a
laptop to another network, or reconnect to peers that it knew by gossip only. This module does.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

from skillmesh.common.config import MeshSettings
from skillmesh.mesh.session import (
    GatewayAwayError,
    addresses,
    close_session,
    introduce,
    locators,
    open_session,
    usable,
)
from skillmesh.mesh.wire import A_LITTLE, MAX_PIECE, MIN_PIECE, Hello, NoReplyError, Wire, from_background
from skillmesh.module import Identity
from skillmesh.store.ledger import Ledger

MAX_PEERS = 2_000
"""Most peers kept. Liveliness tokens are easy to fake: further agents are ignored until a peer is gone."""
AT_ONCE = 2
"""Most modules fetched from one peer at a time: a slow peer must not occupy all fetches."""
FIRST_PIECE = 131_072
QUICK, SLOW = 0.1, 1.0
"""Seconds per piece below which the next piece is twice as large, and above which it is half as large."""
LACKS_FOR = 10.0
"""Seconds for which a peer is not asked again for a module that it did not have."""
SILENCE = 5.0
"""Seconds after which a peer that has never replied is no longer waited for."""
REST, LONGEST_REST = 2.0, 120.0
IN_VAIN = 3
"""Unanswered requests in a row that count as a failure; failures after which a useless peer may be dropped."""
BETWEEN_TURNS = 10.0
"""Least time between two turns of one peer, in seconds, so that listing the same ids again gains it nothing."""


@dataclass
class Peer:
    """One other agent."""

    agent: str
    hello: Hello | None = None
    alive: bool = True
    last_contact: float = 0.0
    """Time of its last reply, by the monotonic clock."""
    piece: int = FIRST_PIECE
    busy: int = 0
    failures: int = 0
    rests_until: float = 0.0
    lacks: dict[str, float] = field(default_factory=dict)
    bytes_received: int = 0
    appeared: float = 0.0
    is_new: bool = True
    """Whether it has appeared, and its hello has not been acted on yet."""
    level: bool = False
    """Whether this agent knew everything on the peer's last list."""
    unanswered: int = 0
    """Number of questions in a row that another peer answered first."""
    seconds: float = 0.0
    """Duration of its last piece, in seconds."""
    seconds_per_byte: float = 0.0
    turn: float = inf
    """Time at which to ask it for notices that another peer was asked for first."""
    had_turn: float = -inf

    @property
    def silent(self) -> bool:
        """Whether it appeared more than `SILENCE` seconds ago and has never said hello."""
        return self.hello is None and time.monotonic() - self.appeared > SILENCE

    @property
    def delivers(self) -> bool:
        """Whether it has sent pieces, the last one in time, and has not failed since."""
        return self.bytes_received > 0 and self.seconds <= SLOW and self.failures == 0

    def order(self, teacher: str) -> tuple[int, bool, int, int, bool]:
        """Return a sort key for whom to ask for a module of this teacher: the smallest key is asked first."""
        is_teacher = self.agent == teacher
        known = self.delivers or (is_teacher and self.busy == 0)
        return self.failures, not known, self.unanswered, self.busy, not is_teacher


class Peers:
    """All peers; safe to use from several threads."""

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        self._guard = threading.Lock()

    def appeared(self, agent: str) -> bool:
        """Note that an agent is present; return whether that is new."""
        with self._guard:
            peer = self._peers.get(agent)
            if peer is None:
                if len(self._peers) >= MAX_PEERS and not self._evict():
                    return False
                peer = self._peers[agent] = Peer(agent, alive=False)
            is_new, peer.alive = not peer.alive, True
            if is_new:
                peer.appeared, peer.level, peer.is_new = time.monotonic(), False, True
                peer.rests_until, peer.failures = 0.0, 0
                peer.lacks.clear()
            return is_new

    def gone(self, agent: str) -> None:
        with self._guard:
            if agent in self._peers:
                self._peers[agent].alive = False

    def rested(self) -> list[Peer]:
        """Return the peers that are present and have not failed recently."""
        now = time.monotonic()
        return [peer for peer in self.alive() if peer.rests_until <= now]

    def let_rest(self, agent: str) -> None:
        peer = self._peers.get(agent)
        if peer is not None:
            self.failed(peer)

    def all_gone(self) -> None:
        """Mark all peers as gone, for example on another network."""
        with self._guard:
            for peer in self._peers.values():
                peer.alive = False

    def greeted(self, agent: str, hello: Hello) -> None:
        with self._guard:
            peer = self._peers.get(agent)
            if peer is not None:
                peer.hello, peer.last_contact = hello, time.monotonic()

    def has_greeted(self, agent: str) -> bool:
        """Return whether an agent is present and has said hello."""
        peer = self._peers.get(agent)
        return peer is not None and peer.alive and peer.hello is not None

    def newly_greeted(self, agent: str) -> bool:
        """Return `True` once per appearance of an agent: at the first call after it has said hello."""
        with self._guard:
            peer = self._peers.get(agent)
            if peer is None or peer.hello is None or not peer.is_new:
                return False
            peer.is_new = False
            return True

    def level(self, agent: str, level: bool) -> None:
        with self._guard:
            peer = self._peers.get(agent)
            if peer is not None:
                peer.level = level

    def put_off(self, agent: str, until: float) -> None:
        """Note that a peer lists notices that another was just asked for, and when to ask this one."""
        with self._guard:
            peer = self._peers.get(agent)
            if peer is not None:
                peer.turn = max(until, peer.had_turn + BETWEEN_TURNS)

    def whose_turn(self) -> list[Peer]:
        """Return the peers that were put off and are due now."""
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

    def take(self, digest: str, first: str, shunned: Collection[str], proven: bool = False) -> Peer | None:
        """Return a peer to fetch a module from, or None if all are busy or lack it; release it with `free`.

        Peers that have delivered quickly and the teacher come first, then the least busy. Peers that have signed
        nothing yet are not asked: liveliness tokens are easy to fake. With `proven`, only a peer that has
        delivered before is returned.
        """
        with self._guard:
            free = [peer for peer in self._able(digest, shunned) if peer.busy < AT_ONCE]
            free = [peer for peer in free if peer.delivers or not proven]
            random.shuffle(free)
            chosen = min(free, key=lambda p: p.order(first), default=None)
            if chosen is not None:
                chosen.busy += 1
            return chosen

    def free(self, peer: Peer) -> None:
        """Release a peer that `take` returned."""
        with self._guard:
            peer.busy -= 1

    def may_have(self, digest: str, shunned: Collection[str]) -> bool:
        """Return whether any peer can be asked for a module, now or when it is less busy."""
        with self._guard:
            return bool(self._able(digest, shunned))

    def _able(self, digest: str, shunned: Collection[str]) -> list[Peer]:
        now = time.monotonic()
        return [
            peer
            for peer in self._peers.values()
            if peer.alive
            and peer.hello is not None
            and peer.agent not in shunned
            and peer.rests_until <= now
            and peer.lacks.get(digest, 0.0) <= now
        ]

    def delivered(self, peer: Peer, count: int, seconds: float) -> None:
        """Note that a piece arrived; its duration decides whether the next is larger or smaller."""
        with self._guard:
            peer.bytes_received += count
            peer.seconds, peer.seconds_per_byte = seconds, seconds / max(count, 1)
            peer.failures = peer.unanswered = 0
            peer.last_contact = time.monotonic()
            if seconds < QUICK and count >= peer.piece // 2:
                peer.piece = min(2 * peer.piece, MAX_PIECE)
            elif seconds > SLOW:
                peer.piece = max(peer.piece // 2, MIN_PIECE)

    def lacked(self, peer: Peer, digest: str) -> None:
        now = time.monotonic()
        with self._guard:
            peer.lacks = {lacked: until for lacked, until in peer.lacks.items() if until > now}
            peer.lacks[digest] = now + LACKS_FOR
            peer.failures = peer.unanswered = 0  # it replies, unlike silent peers

    def overtaken(self, peer: Peer) -> None:
        """Note that another peer was faster; after `IN_VAIN` times in a row the peer has failed."""
        with self._guard:
            peer.unanswered += 1
        if peer.unanswered >= IN_VAIN:
            self.failed(peer)

    def failed(self, peer: Peer) -> None:
        """Note that a peer did not reply; it is not asked for a while, longer each time."""
        with self._guard:
            peer.failures += 1
            peer.unanswered = 0
            peer.piece = MIN_PIECE
            doubled = min(peer.failures - 1, 10)
            peer.rests_until = time.monotonic() + min(REST * 2**doubled, LONGEST_REST)

    def _evict(self) -> bool:
        """Drop a peer that is gone, or else one that never signed anything, or else one that only failed.

        The order matters: a present peer that is dropped does not appear again, and honest peers may fail too.
        """
        idle = [peer for peer in self._peers.values() if peer.busy == 0]
        for useless in (
            lambda peer: not peer.alive,
            lambda peer: peer.hello is None,
            lambda peer: peer.failures >= IN_VAIN and not peer.bytes_received,
        ):
            peer = next(filter(useless, idle), None)
            if peer is not None:
                del self._peers[peer.agent]
                return True
        return False


log = logging.getLogger(__name__)

LOOK = 2.0
"""Seconds between two checks of the connection to the mesh."""
CALLED_AT_ONCE = 16
CALL, LONGEST = 2.0, 60.0
"""Seconds before the first attempt to reconnect to a lost peer, and the longest time between two attempts."""
MAX_ADDRESSES = 256
"""Most agents whose addresses are kept: other agents report them, and may report anything."""


class Membership:
    """One agent's connection to the mesh.

    Parameters
    ----------
    declare
        Called with every new wire, to register what is served and received on it.
    """

    def __init__(
        self,
        settings: MeshSettings,
        home: Path,
        identity: Identity,
        ledger: Ledger,
        peers: Peers,
        declare: Callable[[Wire], None],
    ) -> None:
        self._settings, self._home, self._identity = settings, home, identity
        self._ledger, self._peers, self._declare = ledger, peers, declare
        self._wire: Wire | None = None
        self._opened_with: tuple[str, ...] = ()
        self._calls: dict[str, tuple[int, float]] = {}
        self._leaving = threading.Event()
        self._staying: threading.Thread | None = None
        self.locators: tuple[str, ...] = ()
        self.trouble: str | None = None

    def wire(self) -> Wire:
        """Return the wire to the other agents; raise `NoReplyError` if there is none now."""
        if self._wire is None:
            raise NoReplyError("this node is not connected to the mesh now")
        return self._wire

    def begin(self) -> None:
        """Join the mesh and start the thread that keeps it joined. Wrong settings raise an error immediately."""
        self._opened_with = self._addresses()
        self._try_to_join()
        self._staying = threading.Thread(target=self._stay, name="skillmesh-membership", daemon=True)
        self._staying.start()

    def leave(self) -> None:
        self._leaving.set()
        if self._staying is not None:
            self._staying.join(timeout=10)
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def remember(self, agent: str) -> None:
        """Store the addresses of an agent that has just replied, so that it can be reached again later."""
        peer = self._peers.get(agent)
        if self._settings.network != "fixed" or peer is None or peer.hello is None:
            return
        known, reported = self._ledger.addresses(), usable(peer.hello.locators, self._settings)
        changed = set(known.get(agent, ())) != set(reported)
        if changed and (agent in known or len(known) < MAX_ADDRESSES):
            self._ledger.note_addresses(agent, reported)

    def _stay(self) -> None:
        while not self._leaving.wait(LOOK):
            try:
                if self._wire is None:
                    self._try_to_join()
                elif self._moved():
                    log.info("the network has changed; joining the mesh there")
                    self._wire.close()
                    self._try_to_join()
                elif self._settings.network == "fixed":
                    self._call_lost_peers()
                if self._wire is not None:
                    self.trouble = None
            except Exception as error:
                self.trouble = str(error)
                log.warning("cannot join the mesh now: %s", error)

    def _try_to_join(self) -> None:
        """Join the mesh; if the gateway is away, note that and return, to be called again later."""
        self._wire = None
        try:
            session = from_background(partial(open_session, self._settings, self._home), A_LITTLE)
        except GatewayAwayError as error:
            if self.trouble is None:
                log.warning("%s", error)
            self.trouble = str(error)
            return
        if self._leaving.is_set():
            close_session(session)
            return
        self.trouble = None
        self.locators = locators(session)
        wire = Wire(session, self._identity)
        self._wire = wire  # before peers are seen: they are asked immediately
        self._declare(wire)
        wire.appear()

    def _moved(self) -> bool:
        now = self._addresses()
        new = set(now) - set(self._opened_with)
        self._opened_with = now if new else self._opened_with
        return bool(new)

    def _addresses(self) -> tuple[str, ...]:
        return addresses(self._settings.interface) if self._settings.network == "lan" else ()

    def _call_lost_peers(self) -> None:
        """Try to reconnect to known agents that are away, less often the longer each stays away."""
        present = {peer.agent for peer in self._peers.alive()}
        present |= self._ledger.view().bans.keys()
        lost = {agent: places for agent, places in self._ledger.addresses().items() if agent not in present}
        self._calls = {agent: call for agent, call in self._calls.items() if agent in lost}
        now = time.monotonic()
        due = [agent for agent in lost if self._calls.setdefault(agent, (0, now + CALL))[1] <= now and lost[agent]]
        places = []
        for agent in random.sample(due, min(len(due), CALLED_AT_ONCE)):
            times = self._calls[agent][0] + 1
            self._calls[agent] = times, now + min(CALL * 2 ** min(times, 10), LONGEST) * random.uniform(0.5, 1.0)
            places.append(lost[agent][times % len(lost[agent])])
        if places:
            introduce(self.wire().session, self._settings, self._home, places)
