"""Raw descriptors of images already seen, on disk, by the hash of the image's content.

One SQLite file per network. It is a cache: a damaged file is put aside and begun anew, and the oldest half goes
when it grows over its limit.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from pathlib import Path
from threading import Lock

import numpy as np
import platformdirs

from skillmesh.backbone.representation import Raw
from skillmesh.common.files import make_folder

log = logging.getLogger(__name__)

LIMIT_BYTES = 4 * 10**9
LOOK_AFTER = 10_000
"""Descriptors after which the size is looked at again; some 30 MB."""
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What a damaged file raises; the second where SQLite's own message quotes it, and is no text any more."""


def default_folder() -> Path:
    """`SKILLMESH_CACHE`, or where this system keeps caches."""
    return Path(os.environ.get("SKILLMESH_CACHE") or platformdirs.user_cache_dir("skillmesh"))


def content_key(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


class DescriptorCache:
    """Descriptors by content key. Threads may share one; so may processes."""

    def __init__(
        self, folder: Path, network_fingerprint: str, limit_bytes: int = LIMIT_BYTES, width: int | None = None
    ) -> None:
        """Open or make the cache; `width` is how many numbers a descriptor has, where that is known."""
        make_folder(folder)
        self.path = folder / f"descriptors-{network_fingerprint[:16]}.sqlite"
        self._lock = Lock()
        self._bytes = None if width is None else np.dtype(np.float16).itemsize * width
        try:
            self._connection = self._open()
        except sqlite3.OperationalError:  # locked, no room, no permission: not damaged
            raise
        except DAMAGE as error:
            self._begin_anew(error)
        self._limit, self._added = limit_bytes, 0
        with self._lock:
            self._keep_under_limit(shrink=True)

    def get(self, key: bytes) -> Raw | None:
        with self._lock:
            try:
                row = self._connection.execute("SELECT value FROM raw WHERE key = ?", (key,)).fetchone()
            except DAMAGE as error:
                self._give_up(error)
                return None
        value = row[0] if row is not None else None
        if not isinstance(value, bytes) or len(value) % 2 or len(value) != (self._bytes or len(value)):
            return None  # there is nothing, or it is damaged in a way that SQLite does not see
        return np.frombuffer(value, dtype=np.float16)

    def put(self, items: list[tuple[bytes, Raw]]) -> None:
        rows = [(key, value.tobytes()) for key, value in items]
        with self._lock:
            try:
                with self._connection:
                    self._connection.executemany("INSERT OR IGNORE INTO raw (key, value) VALUES (?, ?)", rows)
            except DAMAGE as error:
                self._give_up(error)
            self._added += len(rows)
            if self._added >= LOOK_AFTER:  # a node may hold it open for months
                self._keep_under_limit()

    def close(self) -> None:
        self._connection.close()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a lost commit costs a forward pass, no more
        connection.execute("CREATE TABLE IF NOT EXISTS raw (id INTEGER PRIMARY KEY, key BLOB UNIQUE, value BLOB)")
        connection.commit()
        return connection

    def _give_up(self, error: Exception) -> None:
        """Go on without this entry: a cache must not stop the work."""
        if isinstance(error, sqlite3.OperationalError):  # locked, or no room on the disk
            log.warning("the descriptor cache %s cannot be used now: %s", self.path, error)
        else:
            self._connection.close()
            self._begin_anew(error)

    def _begin_anew(self, error: Exception) -> None:
        log.warning("the descriptor cache %s is damaged (%s) and begun anew", self.path, error)
        self.path.replace(self.path.with_suffix(".damaged"))
        for ending in ("-wal", "-shm"):  # they belong to the damaged file
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        self._connection = self._open()

    def _keep_under_limit(self, shrink: bool = False) -> None:
        """Drop the oldest half where there is too much; the file has the room for others then, or `shrink`s."""
        self._added = 0
        pages = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, "
        try:
            if self._connection.execute(f"{pages} pragma_page_size").fetchone()[0] <= self._limit:
                return
            with self._connection:
                self._connection.execute("DELETE FROM raw WHERE id <= (SELECT (MIN(id) + MAX(id)) / 2 FROM raw)")
            if shrink:
                self._connection.execute("VACUUM")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except DAMAGE as error:
            self._give_up(error)
