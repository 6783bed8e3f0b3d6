"""Fetching module files from peers in pieces, each checked on arrival, and sending pieces to other agents.

No thread waits for a peer. A peer that does not reply to a request may use its whole timeout, but soon other peers
are asked too, twice as many each time: however many pretend to have a file, they are detected together.
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
"""Threads that check and store pieces."""
WINDOW = 2
"""Pieces requested from a peer at once: while one is checked, the next is being sent."""
TIMEOUT = 10.0
"""Timeout for a piece, in seconds; with pieces of 32 KiB it sets the slowest usable connection."""
FIRST_TIMEOUT = 3.0
"""Timeout for the first piece ever requested from a peer, in seconds; a slow peer is then asked for less."""
HEDGE = 1.0
"""Least time without any piece, in seconds, after which further peers are asked too."""
BESIDE_PROVEN = 8
"""Most peers asked at once while one of them has delivered before: that one is probably slow rather than silent,
and asking hundreds of pretenders would slow down both ends further."""
USUAL = 4
"""Multiple of a peer's current time per piece after which others are asked too: slow is not silent."""
LOOK = 0.1


class NobodyError(NoReplyError):
    """No reachable agent has the module now."""


Fetched = Callable[[Partial | Exception], None]
"""Called with the complete file, or with the error that prevented it."""


class Fetcher:
    """Fetches files for one agent.

    Parameters
    ----------
    blame
        Called with an agent and the offence that it committed.
    banned
        Returns the agents that must not be asked.
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
        """Bytes of all pieces received, right or wrong; any excess over the modules' sizes was fetched twice."""
        self.questions = 0
        """Number of pieces requested."""
        self._under_way: set[_Fetch] = set()
        self._waiting: dict[_Fetch, None] = {}
        """Fetches for which every possible peer is busy, oldest first."""
        self._guard = threading.Lock()
        self._over = threading.Event()

    def start(self, when_over: contextlib.ExitStack) -> None:
        self._workers = pool("fetch", WORKERS, when_over)
        thread("hedge", self._watch, when_over)
        when_over.callback(self._over.set)

    def fetch(self, announcement: Announcement, fetched: Fetched) -> None:
        """Start fetching the pieces of a file not yet on disk. `fetched` is called in a thread of the fetcher."""
        fetch = _Fetch(self, announcement, fetched)
        with self._guard:
            self._under_way.add(fetch)
        self.resume(fetch)

    def resume(self, fetch: _Fetch) -> None:
        with contextlib.suppress(RuntimeError):  # the pool has just been closed
            self._workers.submit(fetch.resume)

    def waits(self, fetch: _Fetch) -> None:
        """Note that a fetch waits until a peer is free."""
        with self._guard:
            self._waiting[fetch] = None

    def freed(self) -> None:
        """Resume the next fetch that waits for a peer."""
        with self._guard:
            fetch = next(iter(self._waiting), None)
            if fetch is not None:
                del self._waiting[fetch]
        if fetch is not None:
            self.resume(fetch)

    def ended(self, fetch: _Fetch) -> None:
        with self._guard:
            self._under_way.discard(fetch)
            self._waiting.pop(fetch, None)

    def make_sure_of_room(self, size: int) -> None:
        """Raise `OSError` if the disk cannot store `size` bytes besides all files already requested."""
        disk = os.statvfs(self.folder)
        with self._guard:
            promised = sum(fetch.promised for fetch in self._under_way)
        if promised + size > disk.f_bavail * disk.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))

    def _watch(self) -> None:
        """Resume fetches to which no peer replies."""
        while not self._over.wait(LOOK):
            now = time.monotonic()
            with self._guard:
                due = [fetch for fetch in self._under_way if fetch.look_at <= now]
            for fetch in due:
                fetch.look_at = now + 1.0
                self.resume(fetch)
            self.freed()


class _Asked(NamedTuple):
    """A request for a piece, with the time at which it was sent."""

    offset: int
    length: int
    at: float


@dataclass(eq=False)
class _Line:
    """A peer and the pieces requested from it."""

    peer: Peer
    asked: dict[Pending, _Asked] = field(default_factory=dict)


def _patience(line: _Line) -> float:
    """Return the seconds after which others are asked too, from the peer's last speed and open requests."""
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
        """Bytes of a requested file for which no disk space is reserved yet."""

    def resume(self) -> None:
        """Store the pieces that have arrived, and request those that are missing."""
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
                self._fetcher.waits(self)  # a delivering peer may be found or become free
            return None
        if self._fetcher.peers.may_have(self._announcement.digest, self._avoided | self._fetcher.banned()):
            self._fetcher.waits(self)
            return None
        return NobodyError(f"no reachable agent has {self._announcement.task!r} now")

    def _widen(self) -> None:
        """Ask twice as many peers if no piece has arrived for a while."""
        now = time.monotonic()
        patience = max((_patience(line) for line in self._lines), default=HEDGE)
        if self._lines and now - self._progress >= patience:
            most = BESIDE_PROVEN if self._proven else len(self._fetcher.peers.all())
            self._wanted_lines, self._progress = min(2 * len(self._lines), most), now
        self.look_at = max(self._progress + patience, now + LOOK)

    @property
    def _proven(self) -> bool:
        """Whether one of the peers being asked has delivered before."""
        return any(line.peer.delivers for line in self._lines)

    def _ask_around(self, partial: Partial) -> None:
        """Ask the wanted number of peers, and always one that has delivered before if there is one."""
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
            except NoReplyError:  # the node is not connected to the mesh now
                self._avoided.add(line.peer.agent)
                self._leave(line)

    def _ask(self, partial: Partial, line: _Line) -> None:
        """Request missing pieces from a peer; if others have not replied, the start of the piece that they owe."""
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
        """Queue the reply. zenoh calls this in its own thread, which must not be blocked."""
        self._replies.put((line, pending))
        self._fetcher.resume(self)

    def _take(self, partial: Partial, line: _Line, pending: Pending) -> None:
        """Store the piece that a peer sent, or note that it lied, lacks the file or did not reply."""
        asked = line.asked.get(pending)
        if asked is None:  # the request was cancelled before the reply
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
        """Continue with the peer that sent a piece, and drop the slower ones."""
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
        """Reserve disk space for the file once a peer has sent a piece: a mere announcement takes no space."""
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


# What an agent sends: pieces of currently announced files, from its bank and its quarantine.


class Library:
    """Answers requests for pieces. Files that were withdrawn, replaced or never announced are not sent."""

    def __init__(self, agent: Core, shelf: Shelf) -> None:
        self._agent, self._shelf = agent, shelf
        self._index: tuple[LedgerView | None, dict[str, Announcement]] = (None, {})
        self.bytes_sent = 0

    def answer_piece(self, body: bytes) -> bytes | None:
        request = asked_piece(body)
        if request is None:
            return None
        piece = self._piece(*request)
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
    """Return whether the complete leaves of a piece have the announced hashes. An honest agent must not be banned
    for a bad disk, or because another agent announced a false file under this module's id."""
    for start in range(0, len(piece), LEAF):
        leaf = piece[start : start + LEAF]
        ends_file = offset + start + len(leaf) == announced.size
        whole = len(leaf) == LEAF or ends_file
        if whole and leaf_hash(leaf) != announced.leaf((offset + start) // LEAF):
            return False
    return True
