"""Rows of names that were encoded before, on disk: a bank has thousands of names, and each takes 20 ms.

It is a cache. Where it cannot be read or written, names are encoded anew.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from skillmesh.errors import EncoderError
from skillmesh.synergy.encoders import Encoder, Letters, Rows, load_encoder

log = logging.getLogger(__name__)
FEW = 500
"""Names that are asked for together: SQLite has a limit."""


def name_encoder(cache: Path | None = None) -> Encoder:
    """The best encoder that works with what is installed: meaning, or else equal spelling in the plain form."""
    try:
        return Remembered(load_encoder(), cache)
    except EncoderError:
        return Spelling()


class Spelling(Letters):
    """Letters, where nobody looks at the matches: only plain forms that are equal count."""

    name = "spelling"
    threshold = 1.0


class Remembered:
    """An encoder that encodes a text once."""

    def __init__(self, encoder: Encoder, folder: Path | None) -> None:
        self.name, self.threshold = encoder.name, encoder.threshold
        self._encoder = encoder
        self._path = None if folder is None else folder / f"names-{encoder.name}.sqlite"
        self._known: dict[str, Rows] = {}

    def encode(self, texts: Sequence[str]) -> Rows:
        self._look_up([text for text in dict.fromkeys(texts) if text not in self._known])
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            self._known |= dict(zip(new, self._encoder.encode(new), strict=True))
            self._keep(new)
        return np.stack([self._known[text] for text in texts]) if texts else np.zeros((0, 0), np.float32)

    def _look_up(self, texts: Sequence[str]) -> None:
        with self._told_once(), contextlib.closing(self._open()) as database:
            for start in range(0, len(texts), FEW):
                some = texts[start : start + FEW]
                marks = ",".join("?" * len(some))
                found = database.execute(f"SELECT text, row FROM names WHERE text IN ({marks})", some)
                self._known |= {text: np.frombuffer(row, dtype=np.float32) for text, row in found}

    def _keep(self, texts: Sequence[str]) -> None:
        with self._told_once(), contextlib.closing(self._open()) as database, database:
            rows = [(text, self._known[text].tobytes()) for text in texts]
            database.executemany("INSERT OR IGNORE INTO names (text, row) VALUES (?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self._path or ":memory:", timeout=60)
        database.execute("CREATE TABLE IF NOT EXISTS names (text TEXT PRIMARY KEY, row BLOB)")
        return database

    @contextlib.contextmanager
    def _told_once(self) -> Iterator[None]:
        """What goes wrong with the file is no reason to stop, nor to try it again."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            log.warning("encoded names are not kept: %s: %s", self._path, error)
            self._path = None
