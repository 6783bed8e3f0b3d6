"""Pieces of modules' files: fetched from whoever sends them, each checked as it comes, and lent to others.

No thread waits for a peer. A peer that is asked for a piece and keeps silent is left its time, but soon others are
asked beside it, twice as many each time: however many only pretend to have something, they are found out together.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial as bound
from pathlib import Path
from typing import NamedTuple

from skillmesh.core import Core
from skillmesh.mesh.membership import Peer, Peers
from skillmesh.mesh.shelf import Partial, Shelf
from skillmesh.mesh.wire import (
    MIN_PIECE,
    PIECE,
    LieError,
    NoReplyError,
    Pending,
    Wire,
    ask_piece,
    asked_piece,
    pool,
    read_piece,
    thread,
    write_piece,
)
from skillmesh.module.notice import LEAF, Announcement, leaf_hash
from skillmesh.store.ledger import LedgerView

log = logging.getLogger(__name__)

WORKERS = 8
"""Threads that check and store what comes."""
WINDOW = 2
"""Pieces under way at once: while one is checked, the next is on the line."""
TIMEOUT = 10.0
"""Seconds for a piece; at 32 KiB that is the slowest line on which anything arrives."""
FIRST_TIMEOUT = 3.0
"""Seconds for the first piece that a peer is ever asked for; one on a slow line is then asked for less."""
HEDGE = 1.0
"""Seconds without any piece after which others are asked too, at least."""
BESIDE_PROVEN = 8
"""Peers that are asked at once while one is among them that has delivered before: it is rather slow than silent,
and to ask hundreds who pretend would make both ends slower still."""
USUAL = 4
"""Times what a peer's pieces take at present after which others are asked too: a slow line is no silence."""
LOOK = 0.1


class NobodyError(NoReplyError):
    """No reachable agent has the module now."""


Fetched = Callable[[Partial | Exception], None]
"""Called with the whole file, or with why there is none."""


class Fetcher:
    """Fetches files for one agent.

    Parameters
    ----------
    blame
        Called with an agent and what it did.
    banned
        The agents that are not to be asked.
    """

    def __init__(
        self,
        wire: Callable[[], Wire],
        peers: Peers,
        folder: Path,
        blame: Callable[[str, str], None],
        banned: Callable[[], set[str]],
    ) -> None:
        self.wire, self.peers, self.folder = wire, peers, folder
        self.blame, self.banned = blame, banned
        self.bytes_fetched = 0
        """Bytes of pieces that came, right or wrong: what is more than the modules' sizes was fetched twice."""
        self.questions = 0
        """How many pieces were asked for."""
        self._under_way: set[_Fetch] = set()
        self._waiting: dict[_Fetch, None] = {}
        """Those for which every peer that may have them is busy, in their order."""
        self._guard = threading.Lock()
        self._over = threading.Event()

    def start(self, when_over: contextlib.ExitStack) -> None:
        self._workers = pool("fetch", WORKERS, when_over)
        thread("hedge", self._look_after, when_over)
        when_over.callback(self._over.set)

    def fetch(self, announcement: Announcement, fetched: Fetched) -> None:
        """Fetch a file; what had come before is not fetched again. `fetched` is called in a thread of this."""
        begun = _Fetch(self, announcement, fetched)
        with self._guard:
            self._under_way.add(begun)
        self.go_on(begun)

    def go_on(self, fetch: _Fetch) -> None:
        with contextlib.suppress(RuntimeError):  # the pool has just been closed
            self._workers.submit(fetch.go_on)

    def waits(self, fetch: _Fetch) -> None:
        """Note that a fetch goes on when a peer is free."""
        with self._guard:
            self._waiting[fetch] = None

    def freed(self) -> None:
        """Let the next go on that waits for a peer."""
        with self._guard:
            fetch = next(iter(self._waiting), None)
            if fetch is not None:
                del self._waiting[fetch]
        if fetch is not None:
            self.go_on(fetch)

    def ended(self, fetch: _Fetch) -> None:
        with self._guard:
            self._under_way.discard(fetch)
            self._waiting.pop(fetch, None)

    def make_sure_of_room(self, size: int) -> None:
        """Refuse to ask for what the disk could not keep, beside all that was asked for and has not come yet."""
        disk = os.statvfs(self.folder)
        with self._guard:
            promised = sum(fetch.promised for fetch in self._under_way)
        if promised + size > disk.f_bavail * disk.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))

    def _look_after(self) -> None:
        """See to fetches to which nobody replies."""
        while not self._over.wait(LOOK):
            now = time.monotonic()
            with self._guard:
                due = [fetch for fetch in self._under_way if fetch.look_at <= now]
            for fetch in due:
                fetch.look_at = now + 1.0
                self.go_on(fetch)
            self.freed()


class _Asked(NamedTuple):
    """A question for a piece."""

    offset: int
    length: int
    at: float


@dataclass(eq=False)
class _Line:
    """A peer that is asked, and for what."""

    peer: Peer
    asked: dict[Pending, _Asked] = field(default_factory=dict)


def _patience(line: _Line) -> float:
    """Seconds after which others are asked beside a peer: by what its last piece took, and how much it owes."""
    owed = sum(asked.length for asked in line.asked.values())
    return min(max(HEDGE, USUAL * owed * line.peer.seconds_per_byte), TIMEOUT)


class _Fetch:
    """The fetch of one file, one step at a time."""

    def __init__(self, fetcher: Fetcher, announcement: Announcement, fetched: Fetched) -> None:
        self._fetcher, self._announcement, self._fetched = fetcher, announcement, fetched
        self._partial: Partial | None = None
        self._lines: list[_Line] = []
        self._wanted_lines = 1
        self._avoided: set[str] = set()
        self._replies: queue.SimpleQueue[tuple[_Line, Pending]] = queue.SimpleQueue()
        self._progress = time.monotonic()
        self._reserved = self._is_over = False
        self._guard = threading.Lock()
        self.look_at = self._progress + HEDGE
        self.promised = 0
        """Bytes that were asked for and have no room of their own yet."""

    def go_on(self) -> None:
        """Take what has come, and ask for what is missing."""
        with self._guard:
            if self._is_over:
                return
            try:
                outcome = self._step()
            except Exception as error:
                outcome = error
            if outcome is None:
                return
            self._is_over = True
            for line in list(self._lines):
                self._leave(line)
        self._fetcher.ended(self)
        self._fetched(outcome)

    def _step(self) -> Partial | Exception | None:
        if self._partial is None:
            self._partial = Partial(self._fetcher.folder, self._announcement)
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._partial, *self._replies.get_nowait())
        if self._partial.complete:
            return self._partial
        self._widen()
        self._ask_around(self._partial)
        if self._lines:
            if not self._proven:
                self._fetcher.waits(self)  # soon somebody may turn out to deliver, or be free again who does
            return None
        if self._fetcher.peers.may_have(self._announcement.digest, self._avoided | self._fetcher.banned()):
            self._fetcher.waits(self)
            return None
        return NobodyError(f"nobody has {self._announcement.task!r} now")

    def _widen(self) -> None:
        """Ask twice as many where nothing has come for a while."""
        now = time.monotonic()
        patience = max((_patience(line) for line in self._lines), default=HEDGE)
        if self._lines and now - self._progress >= patience:
            most = BESIDE_PROVEN if self._proven else len(self._fetcher.peers.all())
            self._wanted_lines, self._progress = min(2 * len(self._lines), most), now
        self.look_at = max(self._progress + patience, now + LOOK)

    @property
    def _proven(self) -> bool:
        """Whether somebody is being asked who has delivered before."""
        return any(line.peer.delivers for line in self._lines)

    def _ask_around(self, partial: Partial) -> None:
        """Ask as many as shall be asked; who delivered before is asked in any case."""
        digest, teacher = self._announcement.digest, self._announcement.teacher_key
        while (enough := len(self._lines) >= self._wanted_lines) is False or not self._proven:
            avoid = self._avoided | {line.peer.agent for line in self._lines} | self._fetcher.banned()
            peer = self._fetcher.peers.take(digest, teacher, avoid, proven=enough)
            if peer is None:
                break
            if not self._reserved and not self.promised:
                try:
                    self._fetcher.make_sure_of_room(self._announcement.size)
                except OSError:
                    self._fetcher.peers.free(peer)
                    raise
                self.promised = self._announcement.size
            self._lines.append(_Line(peer))
        for line in list(self._lines):
            try:
                self._ask(partial, line)
            except NoReplyError:  # the mesh is not joined at present
                self._avoided.add(line.peer.agent)
                self._leave(line)

    def _ask(self, partial: Partial, line: _Line) -> None:
        """Ask a peer for what is missing; beside one that keeps silent, for the beginning of what it owes."""
        alone = len(self._lines) == 1
        while len(line.asked) < (WINDOW if alone and line.peer.delivers else 1):
            owed = [asked for other in self._lines for asked in other.asked.values()]
            if owed and not alone:
                gap: tuple[int, int] | None = (owed[0].offset, min(owed[0].length, MIN_PIECE))
            else:
                gap = partial.claim(line.peer.piece if line.peer.bytes_received else MIN_PIECE)
            if gap is None:
                return
            known = line.peer.bytes_received or line.peer.failures
            pending = self._fetcher.wire().ask(
                line.peer.agent,
                PIECE,
                ask_piece(self._announcement, *gap),
                TIMEOUT if known else FIRST_TIMEOUT,
                gap[1] + 1,
                bulk=True,
            )
            self._fetcher.questions += 1
            line.asked[pending] = _Asked(*gap, time.monotonic())
            pending.then(bound(self._replied, line, pending))

    def _replied(self, line: _Line, pending: Pending) -> None:
        """Called in a thread of zenoh, which is not to be kept."""
        self._replies.put((line, pending))
        self._fetcher.go_on(self)

    def _take(self, partial: Partial, line: _Line, pending: Pending) -> None:
        """Store a piece, if it is one."""
        asked = line.asked.get(pending)
        if asked is None:  # it was left before it replied
            return
        peers, peer = self._fetcher.peers, line.peer
        try:
            piece = read_piece(pending.wait(), asked.length)
            if piece is None:
                peers.lacked(peer, self._announcement.digest)
                self._leave(line)
                return
            self._fetcher.bytes_fetched += asked.length
            self._reserve(partial)
            if not partial.fill(asked.offset, piece):
                what = f"{asked.length:,} bytes at {asked.offset:,}"
                raise LieError(f"sent {what} whose hash is not the announced one")
        except LieError as error:
            self._avoided.add(peer.agent)
            self._leave(line)
            self._fetcher.blame(peer.agent, f"{error} (of {self._announcement.task!r})")
        except NoReplyError:
            peers.failed(peer)
            self._avoided.add(peer.agent)
            self._leave(line)
        else:
            del line.asked[pending]
            self._delivered(line, asked)

    def _delivered(self, line: _Line, asked: _Asked) -> None:
        """Go on with the peer that sent something; the others were slower."""
        now = time.monotonic()
        self._fetcher.peers.delivered(line.peer, asked.length, now - asked.at)
        self._progress, self._wanted_lines = now, 1
        for other in [other for other in self._lines if other is not line]:
            if any(now - question.at > _patience(other) for question in other.asked.values()):
                self._fetcher.peers.failed(other.peer)
            else:
                self._fetcher.peers.overtaken(other.peer)
            self._leave(other)

    def _reserve(self, partial: Partial) -> None:
        """Take the room for all of it once somebody has some of it: what is only announced takes no disk."""
        if not self._reserved:
            partial.reserve()
            self._reserved, self.promised = True, 0

    def _leave(self, line: _Line) -> None:
        if self._partial is not None:
            for pending, asked in line.asked.items():
                pending.cancel()
                self._partial.unclaim(asked.offset, asked.length)
        line.asked.clear()
        self._lines.remove(line)
        self._fetcher.peers.free(line.peer)
        self._fetcher.freed()


# What an agent lends: pieces of the files that stand, from its bank and its quarantine.


class Library:
    """Answers questions for pieces. What was withdrawn, replaced or never announced is not lent."""

    def __init__(self, agent: Core, shelf: Shelf) -> None:
        self._agent, self._shelf = agent, shelf
        self._index: tuple[LedgerView | None, dict[str, Announcement]] = (None, {})
        self.bytes_sent = 0

    def answer_piece(self, body: bytes) -> bytes | None:
        asked = asked_piece(body)
        if asked is None:
            return None
        piece = self._piece(*asked)
        self.bytes_sent += len(piece or b"")
        return write_piece(piece)

    def _piece(self, digest: str, offset: int, length: int) -> bytes | None:
        announced = self._standing(digest)
        if announced is None or offset % LEAF or offset + length > announced.size:
            return None
        data = self._file(announced.id)
        if data is None:
            return None
        piece = data[offset : offset + length]
        return piece if _as_announced(piece, offset, announced) else None

    def _file(self, module_id: str) -> bytes | None:
        module = self._agent.bank.get(module_id)
        if module is None:
            return self._shelf.file_of(module_id)
        try:
            return self._agent.bank.file_of(module)
        except OSError:  # removed a moment ago
            return None

    def _standing(self, digest: str) -> Announcement | None:
        view = self._agent.ledger.view()
        if self._index[0] is not view:
            self._index = view, {n.digest: n for n in view.known.values() if isinstance(n, Announcement)}
        return self._index[1].get(digest)


def _as_announced(piece: bytes, offset: int, announced: Announcement) -> bool:
    """Check whole leaves before they go out: neither a bad disk nor somebody who announces a false file under this
    module's id must make a liar of an honest agent."""
    for start in range(0, len(piece), LEAF):
        leaf = piece[start : start + LEAF]
        ends_file = offset + start + len(leaf) == announced.size
        whole = len(leaf) == LEAF or ends_file
        if whole and leaf_hash(leaf) != announced.leaf((offset + start) // LEAF):
            return False
    return True
