"""Hearing of everything: agents compare root hashes with one another and pass on the notices that one lacks.

Announcements travel at once but may be lost; this exchange is the guarantee. Any two agents that can reach each
other, directly or by way of others, end up with the same notices.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from skillmesh.errors import ModuleError
from skillmesh.ledger import MAX_SEEN, Ledger, View
from skillmesh.mesh.peers import Peers
from skillmesh.mesh.protocol import (
    DIGEST,
    MAX_DIGEST,
    MAX_NOTICES,
    NOTICES,
    NOTICES_AT_ONCE,
    Hello,
    read_digest,
    read_notices,
    short,
    write_digest,
    write_notices,
)
from skillmesh.mesh.wire import LieError, NoReplyError, Pending, Wire
from skillmesh.module.notice import Notice, decode

log = logging.getLogger(__name__)

TIMEOUT = 10.0
AT_MOST = 4_096
"""New notices that are taken from one peer in one exchange; the rest comes with the next."""
PATIENCE = 1.0
"""Seconds for which what one peer was asked for is not asked of another; half as many when two are being asked,
and so on. However many list much and show nothing, all of them together gain no more than twice that."""
MAX_EMPTY = 1_000
"""Ids that a peer may list and then not show (they may have been replaced meanwhile) before that is a lie."""
MAX_USELESS = 100_000
HEARD_AT_ONCE = 256
"""Announcements that wait to be taken in."""
ROOT_BYTES = 32


class Asked(NamedTuple):
    """How many peers are being asked for a notice, and until when others leave it to them."""

    peers: int
    until: float


NOBODY = Asked(0, 0.0)


class Listing(NamedTuple):
    """What came of a peer's list."""

    wanted: list[bytes]
    """The notices that it is to be asked for."""
    whole: bool
    """Whether these are all of its news."""
    again: float | None
    """When to ask it again for those that others were being asked for."""
    until: float
    """When it has had time enough to show them."""


Exchange: TypeAlias = Generator[Pending, bytes, float | None]
"""An exchange with one peer. It goes on with the reply to each question that it yields."""


class Sync:
    """One agent's side of the exchange."""

    def __init__(
        self,
        wire: Callable[[], Wire],
        ledger: Ledger,
        peers: Peers,
        hello: Callable[[View], Hello],
        heard: Callable[[], None],
    ) -> None:
        self._wire, self._ledger, self._peers = wire, ledger, peers
        self._hello, self._heard = hello, heard
        self._useless: dict[bytes, None] = {}
        """Notices that were fetched and changed nothing: of strangers, or superseded. Not fetched again."""
        self._empty: Counter[str] = Counter()
        self._asking: dict[bytes, Asked] = {}
        self._announcements: deque[tuple[str, bytes]] = deque()
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
        """Take from a peer what is news. Returns when to ask it again for what others were being asked for."""
        view = self._ledger.view()
        listing = self._listed(agent, view.root, (yield self._ask(agent, DIGEST, _roots(view), MAX_DIGEST)))
        try:
            for start in range(0, len(listing.wanted), NOTICES_AT_ONCE):
                yield from self._take(agent, listing.wanted[start : start + NOTICES_AT_ONCE], listing.until)
        except NoReplyError:
            self._peers.let_rest(agent)
            raise
        finally:
            self._release(listing.wanted)
        self._peers.level(agent, listing.whole and not self._unknown(listing.wanted))
        return listing.again

    def _ask(self, agent: str, verb: str, body: bytes, limit: int) -> Pending:
        return self._wire().ask(agent, verb, body, TIMEOUT, limit)

    def _listed(self, agent: str, root: str, reply: bytes) -> Listing:
        """What a peer that was told this root is to be asked for; the rest of a long list is not kept."""
        hello, inventory = read_digest(reply)
        if hello.same and hello.root != root:
            raise LieError("says that it knows the same, under another root hash")
        self._peers.greeted(agent, hello)
        return self._reserve(inventory)

    def _unknown(self, inventory: Iterable[bytes]) -> list[bytes]:
        had = {short(notice) for notice in self._ledger.view().heard}
        return [item for item in inventory if item not in had and item not in self._useless]

    def _reserve(self, inventory: Iterable[bytes]) -> Listing:
        """Take on the notices that are news here and that no other exchange may count on at this moment."""
        with self._guard:
            now = time.monotonic()
            unknown = self._unknown(inventory)
            random.shuffle(unknown)
            left_to = [self._asking[item].until for item in unknown if self._asked(item).until > now]
            wanted = [item for item in unknown if self._asked(item).until <= now][:AT_MOST]
            for item in wanted:
                peers = self._asked(item).peers
                self._asking[item] = Asked(peers + 1, now + PATIENCE * 0.5**peers)
        whole = len(wanted) == len(unknown)
        return Listing(wanted, whole, max(left_to, default=None), now + 2 * TIMEOUT)

    def _asked(self, item: bytes) -> Asked:
        return self._asking.get(item, NOBODY)

    def _release(self, items: Iterable[bytes]) -> None:
        with self._guard:
            for item in items:
                peers, until = self._asking.pop(item)
                if peers > 1:
                    self._asking[item] = Asked(peers - 1, until)

    def _take(self, agent: str, wanted: Sequence[bytes], until: float) -> Generator[Pending, bytes, None]:
        """Take these notices; one who shows them drop by drop is left after a while, until the next exchange."""
        while wanted and time.monotonic() < until:
            notices = read_notices((yield self._ask(agent, NOTICES, b"".join(wanted), MAX_NOTICES)), wanted)
            if not notices:
                self._empty[agent] += len(wanted)
                if self._empty[agent] > MAX_EMPTY:
                    raise LieError(f"listed {self._empty[agent]:,} notices that it cannot show")
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
        """Note an announcement. In a flood most are dropped: the exchange brings what counts."""
        if len(self._announcements) < HEARD_AT_ONCE:
            self._announcements.append((sender, data))
            self._heard()

    def take_heard(self) -> list[Notice]:
        """Take in what was announced, in one go; return what was new."""
        view = self._ledger.view()
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

    def _announced(self, sender: str, data: bytes, view: View, known: set[str]) -> list[Notice]:
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


def _roots(view: View) -> bytes:
    """What this agent knows, in two hashes: that of modules, and behind it that of links.

    An older release asks with the first alone and is told of no links, since it would take one for a lie; asked
    with both it answers as if they differed, and lists what it has.
    """
    return bytes.fromhex(view.root) + bytes.fromhex(view.links_root)
