"""Exchanging notices: agents compare root hashes and fetch the notices that they lack.

Announcements arrive immediately but may be lost; this exchange is the guarantee. Any two agents that can reach
each other, directly or through others, end up with the same notices.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from skillmesh.errors import ModuleError
from skillmesh.mesh.membership import MAX_PEERS, Peers
from skillmesh.mesh.wire import (
    DIGEST,
    MAX_DIGEST,
    MAX_NOTICES,
    NOTICES,
    NOTICES_AT_ONCE,
    SHORT,
    Hello,
    LieError,
    NoReplyError,
    Pending,
    Wire,
    pool,
    read_digest,
    read_notices,
    short,
    split_ids,
    write_digest,
    write_notices,
)
from skillmesh.module.notice import Notice, decode
from skillmesh.store.ledger import MAX_SEEN, Ledger, LedgerView

log = logging.getLogger(__name__)

TIMEOUT = 10.0
AT_MOST = 4_096
"""Most new notices fetched from one peer in one exchange; the next exchange fetches the rest."""
PATIENCE = 1.0
"""Seconds for which a notice requested from a first peer is requested from no other. After that, all peers that
list it are asked: peers that list notices but never send them cause no longer delay, however many they are."""
ASKED_FOR, MAX_ASKED = 60.0, 100_000
"""Seconds for which requests are remembered, and for how many notices; beyond that, several peers may be asked."""
MAX_EMPTY = 1_000
"""Notices that a peer may list and not send (they may have been replaced meanwhile) before it counts as a lie."""
MAX_USELESS = 100_000
HEARD_AT_ONCE = 256
"""Most announcements that wait to be processed."""
HEARD_PER_SECOND, RUSH = 100, 512
"""Announcements accepted from all teachers that the user did not list together: per second in the long run, and at
once. Checking one takes 0.3 ms."""
ROOT_BYTES = 32


class Listing(NamedTuple):
    """What to do about a peer's list of notices."""

    wanted: bytes
    """Short ids of the notices to request from it, joined."""
    whole: bool
    """Whether these are all of its unknown notices."""
    again: float | None
    """Time at which to ask it for the notices requested from another peer; None if there are none."""


Exchange: TypeAlias = Generator[Pending, bytes, None]
"""An exchange with one peer: a generator that yields questions and is sent the reply to each."""


class Sync:
    """One agent's side of the exchange."""

    def __init__(
        self,
        wire: Callable[[], Wire],
        ledger: Ledger,
        peers: Peers,
        hello: Callable[[LedgerView], Hello],
        heard: Callable[[], None],
    ) -> None:
        self._wire, self._ledger, self._peers = wire, ledger, peers
        self._hello, self._heard = hello, heard
        self._useless: dict[bytes, None] = {}
        """Ids of notices that changed nothing when fetched (of strangers, or superseded); not fetched again."""
        self._empty: Counter[str] = Counter()
        self._asked: dict[bytes, float] = {}
        """Time of the first request for each notice."""
        self._announcements: deque[tuple[str, bytes]] = deque()
        self._by_user: Collection[str] = ()
        """Teachers that the user listed."""
        self._left, self._counted = float(RUSH), time.monotonic()
        self._guard = threading.Lock()

    # Questions from other agents.

    def answer_digest(self, body: bytes) -> bytes:
        view = self._ledger.view()
        hello = self._hello(view)
        knows_links = len(body) == 2 * ROOT_BYTES
        if body == _roots(view) if knows_links else body.hex() == view.root:
            hello = hello.model_copy(update={"same": True})
        return write_digest(hello, view.believed if knows_links else view.known.values())

    def answer_notices(self, body: bytes) -> bytes:
        view = self._ledger.view()
        return write_notices(body, {short(notice): notice for notice in view.believed})

    # Questions to other agents, and their announcements.

    def exchange(self, agent: str) -> Exchange:
        """Fetch the notices of a peer that this agent does not know."""
        view = self._ledger.view()
        listing = self._listed(agent, view.root, (yield self._ask(agent, DIGEST, _roots(view), MAX_DIGEST)))
        deadline = time.monotonic() + 2 * TIMEOUT
        try:
            for start in range(0, len(listing.wanted), NOTICES_AT_ONCE * SHORT):
                ids = split_ids(listing.wanted[start : start + NOTICES_AT_ONCE * SHORT])
                yield from self._fetch(agent, ids, deadline)
        except NoReplyError:
            self._peers.let_rest(agent)
            raise
        if listing.again is not None:
            self._peers.put_off(agent, listing.again)
        self._peers.level(agent, listing.whole and not self._unknown(split_ids(listing.wanted)))

    def _ask(self, agent: str, verb: str, body: bytes, limit: int) -> Pending:
        return self._wire().ask(agent, verb, body, TIMEOUT, limit)

    def _listed(self, agent: str, root: str, reply: bytes) -> Listing:
        """Return what to request from a peer that replied to `root`. Nothing else of its list is kept."""
        hello, inventory = read_digest(reply)
        if hello.same and hello.root != root:
            raise LieError("claims to know the same notices, but sent another root hash")
        self._peers.greeted(agent, hello)
        unknown = self._unknown(inventory)
        random.shuffle(unknown)
        wanted, again = self._choose(unknown)
        return Listing(b"".join(wanted), len(wanted) == len(unknown), again)

    def _unknown(self, inventory: Iterable[bytes]) -> list[bytes]:
        known = {short(notice) for notice in self._ledger.view().heard}
        return [item for item in inventory if item not in known and item not in self._useless]

    def _choose(self, unknown: Iterable[bytes]) -> tuple[list[bytes], float | None]:
        """Return what to request from one peer, and when to request the rest that other peers were asked for."""
        wanted: list[bytes] = []
        again: float | None = None
        with self._guard:
            now = time.monotonic()
            self._forget_asked(now)
            for item in unknown:
                asked = self._asked.get(item)
                if asked is not None and now < asked + PATIENCE:
                    again = max(again or 0.0, asked + PATIENCE)
                elif len(wanted) < AT_MOST:
                    wanted.append(item)
                    if len(self._asked) < MAX_ASKED:
                        self._asked.setdefault(item, now)
        return wanted, again

    def _forget_asked(self, now: float) -> None:
        """Forget requests older than `ASKED_FOR`; the oldest come first."""
        while self._asked and now > (oldest := next(iter(self._asked.items())))[1] + ASKED_FOR:
            del self._asked[oldest[0]]

    def _fetch(self, agent: str, wanted: Sequence[bytes], deadline: float) -> Exchange:
        """Fetch these notices; a peer that sends only a few at a time is left at `deadline` until the next one."""
        while time.monotonic() < deadline and agent not in self._ledger.view().bans:
            wanted = self._unknown(wanted)  # others may have sent some meanwhile
            if not wanted:
                break
            notices = read_notices((yield self._ask(agent, NOTICES, b"".join(wanted), MAX_NOTICES)), wanted)
            if not notices:
                self._empty[agent] += len(wanted)
                if self._empty[agent] > MAX_EMPTY:
                    raise LieError(f"listed {self._empty[agent]:,} notices that it does not send")
                if len(self._empty) > MAX_PEERS:
                    del self._empty[next(iter(self._empty))]
                break
            self._empty.pop(agent, None)
            self._merge(notices, agent)
            received = {short(notice) for notice in notices}
            wanted = [item for item in wanted if item not in received]

    def _merge(self, notices: Iterable[Notice], agent: str) -> None:
        received = list(notices)
        news = self._ledger.merge(received, agent)
        standing = {notice.digest for notice in news}
        for notice in received:
            if notice.digest not in standing:
                self._useless[short(notice)] = None
        while len(self._useless) > MAX_USELESS:
            del self._useless[next(iter(self._useless))]
        if news:
            self._heard()

    def hear(self, sender: str, data: bytes) -> None:
        """Queue an announcement. In a flood most are dropped: the exchange brings the notices that count.

        A teacher that the user did not list must be present and have said hello, since keys cost nothing.
        """
        if len(self._announcements) >= HEARD_AT_ONCE:
            return
        if sender in self._by_user or (self._peers.has_greeted(sender) and self._budget()):
            self._announcements.append((sender, data))
            self._heard()

    def _budget(self) -> bool:
        """Return whether one more announcement of teachers not listed by the user is accepted, and count it."""
        now = time.monotonic()
        self._left = min(self._left + (now - self._counted) * HEARD_PER_SECOND, RUSH)
        self._counted = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def take_heard(self) -> list[Notice]:
        """Add all queued announcements to the ledger; return the new notices."""
        view = self._ledger.view()
        self._by_user = view.trusted.keys()
        known = {notice.digest for notice in view.heard}
        notices: list[Notice] = []
        for _ in range(len(self._announcements)):  # later ones wait for the next call
            sender, data = self._announcements.popleft()
            full = len(view.seen) + len(view.seen_links) >= MAX_SEEN and not self._ledger.trusts(sender)
            if sender not in view.bans and not full:
                notices += self._announced(sender, data, view, known)
        if notices:
            self._merge(notices, "announcements")
        return notices

    def _announced(self, sender: str, data: bytes, view: LedgerView, known: set[str]) -> list[Notice]:
        """Return the announced notice in a list, empty if it is invalid, known or not signed by its sender.

        A notice that was replaced is not new, however often others replay it.
        """
        try:
            notice = decode(data)
        except ModuleError as error:
            log.debug("invalid announcement from %s…: %s", sender[:12], error)
            return []
        standing = view.at(notice.slot)
        if notice.teacher_key != sender or notice.digest in known or (standing and standing.rank >= notice.rank):
            return []
        known.add(notice.digest)
        return [notice]

    def reconsider(self) -> None:
        """Consider all notices again: the user's list of trusted teachers has changed."""
        self._useless.clear()


def _roots(view: LedgerView) -> bytes:
    """Return two hashes of what this agent knows: of the modules' notices, then of the links.

    Older releases send only the first and are sent no links, since they would take them for a lie. Asked with
    both, they answer as if the hashes differed, and list what they have.
    """
    return bytes.fromhex(view.root) + bytes.fromhex(view.links_root)


# Exchanges in progress. None holds a thread while it waits: silent peers, however many, delay no other exchange.

WORKERS = 4


class Exchanges:
    """Runs exchanges, at most one with each peer.

    Parameters
    ----------
    begun
        Creates the exchange with an agent.
    ended
        Called with an agent, and with the error if the exchange failed.
    """

    def __init__(self, begun: Callable[[str], Exchange], ended: Callable[[str, Exception | None], None]) -> None:
        self._begun, self._ended = begun, ended
        self._with: set[str] = set()
        self._guard = threading.Lock()

    def start(self, when_over: contextlib.ExitStack) -> None:
        self._workers = pool("sync", WORKERS, when_over)

    def begin(self, agent: str) -> None:
        """Start an exchange with a peer, unless one is in progress."""
        with self._guard:
            if agent in self._with:
                return
            self._with.add(agent)
        self._resume(agent, self._begun(agent))

    def _resume(self, agent: str, exchange: Exchange, asked: Pending | None = None) -> None:
        """Run an exchange up to its next question."""
        try:
            question = _answered(exchange, asked) if asked else next(exchange)
        except StopIteration:
            self._over(agent)
        except Exception as error:
            self._over(agent, error)
        except BaseException:
            self._with.discard(agent)
            raise
        else:
            question.then(partial(self._resume_soon, agent, exchange, question))

    def _resume_soon(self, agent: str, exchange: Exchange, asked: Pending) -> None:
        """Resume in the pool. zenoh calls this in its own thread, which must not be blocked."""
        with contextlib.suppress(RuntimeError):  # the pool has just been closed
            self._workers.submit(self._resume, agent, exchange, asked)

    def _over(self, agent: str, error: Exception | None = None) -> None:
        self._with.discard(agent)
        self._ended(agent, error)


def _answered(exchange: Exchange, asked: Pending) -> Pending:
    """Send an exchange the reply to its question, or the error; return its next question."""
    try:
        reply = asked.wait()
    except (NoReplyError, LieError) as error:
        return exchange.throw(error)
    return exchange.send(reply)
