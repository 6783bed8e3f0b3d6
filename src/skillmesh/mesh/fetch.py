"""Fetching a module's file: piece by piece, each checked as it comes, from one holder after the other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from skillmesh.mesh.partial import Partial
from skillmesh.mesh.peers import Peer, Peers
from skillmesh.mesh.protocol import PIECE, ask_piece, read_piece
from skillmesh.mesh.wire import LieError, NoReplyError, Pending, Wire
from skillmesh.module.notice import Announcement

WINDOW = 2
"""Pieces under way at once: while one is checked, the next is on the line."""
TIMEOUT = 10.0
"""Seconds for a piece; at 32 KiB that is the slowest line on which anything arrives."""


class NobodyError(NoReplyError):
    """No reachable agent has the module now."""


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
        self._wire, self._peers, self._folder = wire, peers, folder
        self._blame, self._banned = blame, banned
        self.bytes_fetched = 0
        """Bytes of pieces that came, right or wrong: what is more than the modules' sizes was fetched twice."""

    def fetch(self, announcement: Announcement) -> Partial:
        """Return the whole file; what had come before is not fetched again."""
        partial = Partial(self._folder, announcement)
        shunned: set[str] = set()
        while not partial.complete:
            avoid = shunned | self._banned()
            with self._peers.holder(announcement.digest, announcement.teacher_key, avoid) as peer:
                if peer is None:
                    raise NobodyError(f"nobody has {announcement.task!r} now")
                try:
                    partial.reserve()
                    self._take(partial, announcement, peer)
                except LieError as error:
                    self._blame(peer.agent, f"{error} (of {announcement.task!r})")
                    shunned.add(peer.agent)
                except NoReplyError:
                    self._peers.failed(peer)
                    shunned.add(peer.agent)
        return partial

    def _take(self, partial: Partial, announcement: Announcement, peer: Peer) -> None:
        """Take from one holder all that is missing, or what it has."""
        window: deque[tuple[int, int, float, Pending]] = deque()
        try:
            while True:
                while len(window) < WINDOW and (gap := partial.claim(peer.piece)):
                    question = ask_piece(announcement, *gap)
                    pending = self._wire().ask(peer.agent, PIECE, question, TIMEOUT, gap[1] + 1, bulk=True)
                    window.append((*gap, time.monotonic(), pending))
                if not window:
                    return
                offset, length, asked, pending = window[0]
                piece = read_piece(pending.wait(), length)
                if piece is None:
                    self._peers.lacked(peer, announcement.digest)
                    return
                self.bytes_fetched += length
                if not partial.fill(offset, piece):
                    raise LieError(f"sent {length:,} bytes at {offset:,} whose hash is not the announced one")
                self._peers.delivered(peer, length, time.monotonic() - asked)
                window.popleft()
        finally:
            for offset, length, _, pending in window:
                pending.cancel()
                partial.unclaim(offset, length)
