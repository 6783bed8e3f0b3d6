"""A module's file on its way: the leaves that have arrived, on disk, so that nothing is fetched twice.

The file is its own record. What lies in it is believed only where its hash is the announced one, so a process that
was killed, or a disk that was full, leaves nothing worse than a gap.
"""

from __future__ import annotations

import os
from pathlib import Path

from skillmesh.module.notice import LEAF, Announcement, leaf_hash


class Partial:
    """The file of one announced module, complete or with gaps."""

    def __init__(self, folder: Path, announcement: Announcement) -> None:
        self.path = folder / announcement.digest  # anyone can announce any id, but not the same digest
        self._announcement = announcement
        self._missing = self._gaps()
        self._asked: set[int] = set()

    @property
    def complete(self) -> bool:
        return not self._missing

    def reserve(self) -> None:
        """Take the room for all of it: a disk that is full should say so before anything is fetched in vain."""
        with self.path.open("ab") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, self._announcement.size)

    def claim(self, most: int) -> tuple[int, int] | None:
        """The next gap that nobody was asked for, as offset and length of at most `most` bytes; whole leaves."""
        wanted = [leaf for leaf in sorted(self._missing) if leaf not in self._asked]
        if not wanted:
            return None
        first, count = wanted[0], 1
        while count < max(1, most // LEAF) and first + count in self._missing and first + count not in self._asked:
            count += 1
        self._asked.update(range(first, first + count))
        start = first * LEAF
        return start, min((first + count) * LEAF, self._announcement.size) - start

    def unclaim(self, offset: int, length: int) -> None:
        """Give back a gap whose piece did not come."""
        self._asked.difference_update(self._leaves(offset, length))

    def fill(self, offset: int, data: bytes) -> bool:
        """Store a piece; `False`, and nothing is stored, where its bytes are not the announced ones."""
        leaves = self._leaves(offset, len(data))
        for leaf in leaves:
            start = leaf * LEAF - offset
            if leaf_hash(data[start : start + LEAF]) != self._announcement.leaf(leaf):
                return False
        there = self.path.exists()
        if not there:  # nothing has come yet, or somebody took the file away
            self._missing = self._all()
        with self.path.open("r+b" if there else "w+b") as file:
            file.seek(offset)
            file.write(data)
        self._missing.difference_update(leaves)
        self._asked.difference_update(leaves)
        return True

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(self._announcement.size)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _all(self) -> set[int]:
        return set(self._leaves(0, self._announcement.size))

    def _leaves(self, offset: int, length: int) -> range:
        return range(offset // LEAF, -(-(offset + length) // LEAF))

    def _gaps(self) -> set[int]:
        """Which leaves are not there, or not as announced."""
        missing = self._all()
        if not self.path.exists():
            return missing
        with self.path.open("rb") as file:
            for leaf in sorted(missing):
                length = min(LEAF, self._announcement.size - leaf * LEAF)
                if leaf_hash(file.read(length)) == self._announcement.leaf(leaf):
                    missing.discard(leaf)
        return missing
