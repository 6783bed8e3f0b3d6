"""Hearing of everything: agents compare root hashes with one another and pass on the notices that one lacks.

Announcements travel at once but may be lost; this exchange is the guarantee. Any two agents that can reach each
other, directly or by way of others, end up with the same notices.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

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
from skillmesh.mesh.wire import LieError, Wire
from skillmesh.module.notice import Notice, decode

log = logging.getLogger(__name__)

TIMEOUT = 10.0
AT_MOST = 4_096
"""New notices that are taken from one peer in one exchange; the rest comes with the next."""
MAX_EMPTY = 1_000
"""Ids that a peer may list and then not show (they may have been replaced meanwhile) before that is a lie."""
MAX_USELESS = 100_000


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
        self._asking: set[bytes] = set()
        self._guard = threading.Lock()

    # What others ask.

    def answer_digest(self, body: bytes) -> bytes:
        view = self._ledger.view()
        hello = self._hello(view)
        if body.hex() == view.root:
            hello = hello.model_copy(update={"same": True})
        return write_digest(hello, view.known.values())

    def answer_notices(self, body: bytes) -> bytes:
        view = self._ledger.view()
        return write_notices(body, {short(notice): notice for notice in view.known.values()})

    # What this agent asks and hears.

    def exchange(self, agent: str) -> list[Notice]:
        """Ask one peer what it knows, and take what is news."""
        view = self._ledger.view()
        pending = self._wire().ask(agent, DIGEST, bytes.fromhex(view.root), TIMEOUT, MAX_DIGEST)
        hello, inventory = read_digest(pending.wait())
        if hello.same and hello.root != view.root:
            raise LieError("says that it knows the same, under another root hash")
        self._peers.greeted(agent, hello)
        news: list[Notice] = []
        with self._unasked(inventory) as unknown:
            for start in range(0, len(unknown), NOTICES_AT_ONCE):
                news += self._take(agent, unknown[start : start + NOTICES_AT_ONCE])
        return news

    @contextmanager
    def _unasked(self, inventory: Iterable[bytes]) -> Iterator[list[bytes]]:
        """The notices that are news here and that no other exchange is asking for at this moment."""
        with self._guard:
            view = self._ledger.view()
            had = {short(notice) for notice in (*view.known.values(), *view.seen.values())}
            unknown = [i for i in inventory if i not in had and i not in self._useless and i not in self._asking]
            random.shuffle(unknown)
            del unknown[AT_MOST:]
            self._asking.update(unknown)
        try:
            yield unknown
        finally:
            with self._guard:
                self._asking.difference_update(unknown)

    def _take(self, agent: str, wanted: Sequence[bytes]) -> list[Notice]:
        news: list[Notice] = []
        while wanted:
            body = self._wire().ask(agent, NOTICES, b"".join(wanted), TIMEOUT, MAX_NOTICES).wait()
            notices = read_notices(body, wanted)
            if not notices:
                self._empty[agent] += len(wanted)
                if self._empty[agent] > MAX_EMPTY:
                    raise LieError(f"listed {self._empty[agent]:,} notices that it cannot show")
                break
            news += self._merge(notices, agent)
            got = {short(notice) for notice in notices}
            wanted = [item for item in wanted if item not in got]
        return news

    def _merge(self, notices: Iterable[Notice], agent: str) -> list[Notice]:
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
        return news

    def hear(self, sender: str, data: bytes) -> Notice | None:
        """Take in an announcement; only teachers announce, so a sender's notices are signed by itself."""
        view = self._ledger.view()
        if sender in view.bans or (len(view.seen) >= MAX_SEEN and not self._ledger.trusts(sender)):
            return None
        try:
            notice = decode(data)
        except ModuleError as error:
            log.debug("an announcement of %s… is none: %s", sender[:12], error)
            return None
        if notice.teacher_key != sender:
            log.debug("an announcement of %s… is by another teacher", sender[:12])
            return None
        news = self._merge([notice], sender)
        return news[0] if news else None

    def reconsider(self) -> None:
        """Look at everything again: the user trusts other teachers now."""
        self._useless.clear()
