"""What an agent lends: pieces of the files that stand, from its bank and its quarantine."""

from __future__ import annotations

from skillmesh.core import Core
from skillmesh.mesh.protocol import asked_piece, write_piece
from skillmesh.mesh.shelf import Shelf
from skillmesh.module.notice import LEAF, Announcement, leaf_hash
from skillmesh.store.ledger import LedgerView


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
