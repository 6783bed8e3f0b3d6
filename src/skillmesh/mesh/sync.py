"""Hearing of everything: agents compare root hashes with one another and pass on the notices that one lacks.

Announcements travel at once but may be lost; this exchange is the guarantee. Any two agents that can reach each
other, directly or by way of others, end up with the same notices.
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
"""New notices that are taken from one peer in one exchange; the rest comes with the next."""
PATIENCE = 1.0
"""Seconds for which what a first peer was asked for is left to it. From then on all who list it are asked: however
many list much and show nothing, they gain no more than that."""
ASKED_FOR, MAX_ASKED = 60.0, 100_000
"""Seconds for which it is known what was asked for, and of how many notices; beyond, nothing is left to anyone."""
MAX_EMPTY = 1_000
"""Ids that a peer may list and then not show (they may have been replaced meanwhile) before that is a lie."""
MAX_USELESS = 100_000
HEARD_AT_ONCE = 256
"""Announcements that wait to be taken in."""
HEARD_PER_SECOND, RUSH = 100, 512
"""Announcements of teachers that the user did not list, of all together, in the long run and at once: each takes
0.3 ms to check."""
ROOT_BYTES = 32


class Listing(NamedTuple):
    """What came of a peer's list."""

    wanted: bytes
    """The ids of the notices that it is to be asked for."""
    whole: bool
    """Whether these are all of its news."""
    again: float | None
    """When to ask it for those that another was being asked for."""


Exchange: TypeAlias = Generator[Pending, bytes, None]
"""An exchange with one peer. It goes on with the reply to each question that it yields."""


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
        """Notices that were fetched and changed nothing: of strangers, or superseded. Not fetched again."""
        self._empty: Counter[str] = Counter()
        self._asked: dict[bytes, float] = {}
        """When a peer was first asked for a notice."""
        self._announcements: deque[tuple[str, bytes]] = deque()
        self._by_user: Collection[str] = ()
        """Teachers that the user listed."""
        self._left, self._counted = float(RUSH), time.monotonic()
        self._guard = threading.Lock()

    # What others ask.

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

    # What this agent asks and hears.

    def exchange(self, agent: str) -> Exchange:
        """Take from a peer what is news."""
        view = self._ledger.view()
        listing = self._listed(agent, view.root, (yield self._ask(agent, DIGEST, _roots(view), MAX_DIGEST)))
        deadline = time.monotonic() + 2 * TIMEOUT
        try:
            for start in range(0, len(listing.wanted), NOTICES_AT_ONCE * SHORT):
                some = split_ids(listing.wanted[start : start + NOTICES_AT_ONCE * SHORT])
                yield from self._take(agent, some, deadline)
        except NoReplyError:
            self._peers.let_rest(agent)
            raise
        if listing.again is not None:
            self._peers.put_off(agent, listing.again)
        self._peers.level(agent, listing.whole and not self._unknown(split_ids(listing.wanted)))

    def _ask(self, agent: str, verb: str, body: bytes, limit: int) -> Pending:
        return self._wire().ask(agent, verb, body, TIMEOUT, limit)

    def _listed(self, agent: str, root: str, reply: bytes) -> Listing:
        """What to ask a peer for that was told this root. Nothing else of its list, however long, is kept."""
        hello, inventory = read_digest(reply)
        if hello.same and hello.root != root:
            raise LieError("says that it knows the same, under another root hash")
        self._peers.greeted(agent, hello)
        unknown = self._unknown(inventory)
        random.shuffle(unknown)
        wanted, again = self._choose(unknown)
        return Listing(b"".join(wanted), len(wanted) == len(unknown), again)

    def _unknown(self, inventory: Iterable[bytes]) -> list[bytes]:
        had = {short(notice) for notice in self._ledger.view().heard}
        return [item for item in inventory if item not in had and item not in self._useless]

    def _choose(self, unknown: Iterable[bytes]) -> tuple[list[bytes], float | None]:
        """What to ask one peer for, and when the rest is no longer left to those who were asked before."""
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
        """Drop what was first asked for long ago; the eldest come first."""
        while self._asked and now > (eldest := next(iter(self._asked.items())))[1] + ASKED_FOR:
            del self._asked[eldest[0]]

    def _take(self, agent: str, wanted: Sequence[bytes], deadline: float) -> Exchange:
        """Take these notices; one who shows them drop by drop is left after a while, until the next exchange."""
        while time.monotonic() < deadline and agent not in self._ledger.view().bans:
            wanted = self._unknown(wanted)  # others may have shown some meanwhile
            if not wanted:
                break
            notices = read_notices((yield self._ask(agent, NOTICES, b"".join(wanted), MAX_NOTICES)), wanted)
            if not notices:
                self._empty[agent] += len(wanted)
                if self._empty[agent] > MAX_EMPTY:
                    raise LieError(f"listed {self._empty[agent]:,} notices that it cannot show")
                if len(self._empty) > MAX_PEERS:
                    del self._empty[next(iter(self._empty))]
                break
            self._empty.pop(agent, None)
            self._merge(notices, agent)
            got = {short(notice) for notice in notices}
            wanted = [item for item in wanted if item not in got]

    def _merge(self, notices: Iterable[Notice], agent: str) -> None:
        taken = list(notices)
        news = self._ledger.merge(taken, agent)
        standing = {notice.digest for notice in news}
        for notice in taken:
            if notice.digest not in standing:
                self._useless[short(notice)] = None
        while len(self._useless) > MAX_USELESS:
            del self._useless[next(iter(self._useless))]
        if news:
            self._heard()

    def hear(self, sender: str, data: bytes) -> None:
        """Note an announcement. In a flood most are dropped: the exchange brings what counts.

        A teacher that the user did not list is heard only if it is there and has said hello: keys cost nothing.
        """
        if len(self._announcements) >= HEARD_AT_ONCE:
            return
        if sender in self._by_user or (self._peers.has_greeted(sender) and self._budget()):
            self._announcements.append((sender, data))
            self._heard()

    def _budget(self) -> bool:
        """Whether one more announcement may be taken in of those whom the user did not list, however many keys."""
        now = time.monotonic()
        self._left = min(self._left + (now - self._counted) * HEARD_PER_SECOND, RUSH)
        self._counted = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def take_heard(self) -> list[Notice]:
        """Take in what was announced, in one go; return what was new."""
        view = self._ledger.view()
        self._by_user = view.trusted.keys()
        known = {notice.digest for notice in view.heard}
        notices: list[Notice] = []
        for _ in range(len(self._announcements)):  # those that come meanwhile wait for the next time
            sender, data = self._announcements.popleft()
            full = len(view.seen) + len(view.seen_links) >= MAX_SEEN and not self._ledger.trusts(sender)
            if sender not in view.bans and not full:
                notices += self._announced(sender, data, view, known)
        if notices:
            self._merge(notices, "announcements")
        return notices

    def _announced(self, sender: str, data: bytes, view: LedgerView, known: set[str]) -> list[Notice]:
        """The notice, if it is one and news. Only teachers announce: a sender's notices are signed by itself.

        What was replaced is no news, however often others play it again.
        """
        try:
            notice = decode(data)
        except ModuleError as error:
            log.debug("an announcement of %s… is none: %s", sender[:12], error)
            return []
        standing = view.at(notice.slot)
        if notice.teacher_key != sender or notice.digest in known or (standing and standing.rank >= notice.rank):
            return []
        known.add(notice.digest)
        return [notice]

    def reconsider(self) -> None:
        """Look at everything again: the user trusts other teachers now."""
        self._useless.clear()


def _roots(view: LedgerView) -> bytes:
    """What this agent knows, in two hashes: that of modules, and behind it that of links.

    An older release asks with the first alone and is told of no links, since it would take one for a lie; asked
    with both it answers as if they differed, and lists what it has.
    """
    return bytes.fromhex(view.root) + bytes.fromhex(view.links_root)


# Exchanges under way. None holds a thread while it waits: the silent, however many, keep nobody waiting.

WORKERS = 4


class Exchanges:
    """At most one exchange with each peer.

    Parameters
    ----------
    begun
        Makes the exchange with an agent.
    ended
        Called with an agent, and with what went wrong if something did.
    """

    def __init__(self, begun: Callable[[str], Exchange], ended: Callable[[str, Exception | None], None]) -> None:
        self._begun, self._ended = begun, ended
        self._with: set[str] = set()
        self._guard = threading.Lock()

    def start(self, when_over: contextlib.ExitStack) -> None:
        self._workers = pool("sync", WORKERS, when_over)

    def begin(self, agent: str) -> None:
        """Ask a peer what it knows, unless it is being asked."""
        with self._guard:
            if agent in self._with:
                return
            self._with.add(agent)
        self._go_on(agent, self._begun(agent))

    def _go_on(self, agent: str, exchange: Exchange, asked: Pending | None = None) -> None:
        """Go one step, up to the next question."""
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
            question.then(partial(self._go_on_soon, agent, exchange, question))

    def _go_on_soon(self, agent: str, exchange: Exchange, asked: Pending) -> None:
        """Called in a thread of zenoh, which is not to be kept."""
        with contextlib.suppress(RuntimeError):  # the pool has just been closed
            self._workers.submit(self._go_on, agent, exchange, asked)

    def _over(self, agent: str, error: Exception | None = None) -> None:
        self._with.discard(agent)
        self._ended(agent, error)


def _answered(exchange: Exchange, asked: Pending) -> Pending:
    """Tell an exchange what came of its question; returns the next one."""
    try:
        reply = asked.wait()
    except (NoReplyError, LieError) as error:
        return exchange.throw(error)
    return exchange.send(reply)
