"""The ledger: what an agent has heard of and what it decided, in one SQLite file beside its bank.

The bank's files say what the agent can use now; the ledger says what there is in the world (signed notices), whom
the agent believes (trust), and what it will not fetch again (forgotten, refused, held back) and why. Several
processes may use one ledger at once: a node that runs, and commands beside it.

*Known* are the standing notices of trusted teachers. The root hash is over them and nothing else, so two agents
that trust the same teachers and have heard the same notices have the same root, whatever each of them decided.
Links have a table and a root of their own: older releases know nothing of them, and their roots stay comparable.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from skillmesh.errors import AgentError, FormatVersionError, ModuleError
from skillmesh.module.card import now
from skillmesh.module.notice import LINK, Announcement, Link, Notice, Slot, decode

WAIT = 60.0
"""Seconds to wait for other processes that change the ledger."""
MAX_SEEN = 1_000
"""Notices of untrusted teachers that are kept: enough to show them, too few to fill a disk with."""
MAX_KNOWN = 50_000
"""Where everyone is trusted, notices that are kept in all: keys cost nothing to make up, and each is a teacher."""

NAMES_ARE_GIVEN = 1
"""Version of the file from which on a trusted teacher's name is one that the user gave."""

Choice = Literal["refused", "held", "released"]
"""What was decided of one module: refused for good, held in quarantine, or released from it by the user."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS notices (
    teacher_key TEXT NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL, order_key TEXT NOT NULL,
    data BLOB NOT NULL, heard_from TEXT NOT NULL, PRIMARY KEY (teacher_key, task)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS links (
    teacher_key TEXT NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL, order_key TEXT NOT NULL,
    data BLOB NOT NULL, heard_from TEXT NOT NULL, PRIMARY KEY (teacher_key, task)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS trusted (key TEXT PRIMARY KEY, name TEXT NOT NULL, since TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS forgotten (
    teacher_key TEXT NOT NULL, task TEXT NOT NULL, since TEXT NOT NULL,
    PRIMARY KEY (teacher_key, task)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS choices (
    id TEXT PRIMARY KEY, choice TEXT NOT NULL, reason TEXT NOT NULL, since TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS bans (agent TEXT PRIMARY KEY, reason TEXT NOT NULL, since TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS addresses (
    agent TEXT NOT NULL, locator TEXT NOT NULL, since TEXT NOT NULL,
    PRIMARY KEY (agent, locator)) WITHOUT ROWID;
"""


TABLES = ("notices", "links")


class Chosen(NamedTuple):
    """A decision about one module."""

    choice: Choice
    reason: str
    since: str


@dataclass(frozen=True)
class View:
    """The ledger at one moment; it never changes, so threads may read it without a lock."""

    known: Mapping[Slot, Notice]
    seen: Mapping[Slot, Notice]
    """Notices of teachers that are not trusted."""
    root: str
    trusted: Mapping[str, str]
    """Names that the user gave, by key; empty where none was given. The agent's own key is left out."""
    forgotten: frozenset[Slot]
    choices: Mapping[str, Chosen]
    bans: Mapping[str, str]
    """Reasons by agent."""
    links: Mapping[Slot, Link] = field(default_factory=dict)
    """Of makers that are trusted, withdrawn ones too."""
    seen_links: Mapping[Slot, Link] = field(default_factory=dict)
    links_root: str = ""

    def at(self, slot: Slot) -> Notice | None:
        """What stands in a slot, whether or not its teacher is trusted."""
        return self.known.get(slot) or self.seen.get(slot) or self.links.get(slot) or self.seen_links.get(slot)

    @property
    def believed(self) -> list[Notice]:
        """All that is passed on: modules' notices first, then links."""
        return [*self.known.values(), *self.links.values()]

    @property
    def heard(self) -> list[Notice]:
        """All that is kept, of strangers too."""
        return [*self.believed, *self.seen.values(), *self.seen_links.values()]


class Ledger:
    """An agent's ledger on disk.

    Parameters
    ----------
    own_key
        The agent's public key: it always believes itself.
    open_trust
        Whether every teacher is believed.
    per_teacher
        So many slots of one teacher are kept (a node has such a limit, commands beside it have none), those whose
        hashes are least: which ones does not depend on the order of arrival, so agents agree even about a teacher
        who announces a million.
    """

    def __init__(self, path: Path, own_key: str, open_trust: bool = False, per_teacher: int | None = None) -> None:
        self.path = path
        self.own_key = own_key
        self.open_trust = open_trust
        self.per_teacher = per_teacher
        self._guard = threading.RLock()
        self._decoded: dict[str, Notice] = {}
        self._view: tuple[object, View] | None = None
        self._changes = 0
        with self._explained():
            self._database = sqlite3.connect(path, timeout=WAIT, isolation_level=None, check_same_thread=False)
            self._log_ahead()
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.execute("PRAGMA wal_autocheckpoint=200")
            self._database.execute("PRAGMA journal_size_limit=1000000")
            self._database.executescript(_SCHEMA)
            self._forget_claims()

    def close(self) -> None:
        self._database.close()

    # What is known.

    def view(self) -> View:
        """The ledger as it is now, other processes' changes included; cheap when nothing has changed."""
        with self._guard, self._explained():
            version = self._database.execute("PRAGMA data_version").fetchone()[0]
            state = (version, self._changes, self.open_trust)
            if self._view is None or self._view[0] != state:
                self._database.execute("BEGIN")  # all tables as they are at one moment
                try:
                    self._view = state, self._read()
                finally:
                    self._database.execute("COMMIT")
            return self._view[1]

    def merge(self, notices: Iterable[Notice], heard_from: str) -> list[Notice]:
        """Take in notices whose signatures were checked; return those that stand now and did not before."""
        with self._changing():
            news = [notice for notice in notices if self._merge_one(notice, heard_from)]
            for teacher in {notice.teacher_key for notice in news}:
                self._thin(teacher)
            standing = self._standing()
        return [notice for notice in news if notice.digest in standing]

    def latest_version(self, slot: Slot) -> int:
        """The highest version that was ever heard of in this slot; 0 where there was none."""
        with self._guard, self._explained():
            notice = self._at(slot)
        return notice.version if notice else 0

    def withdrawn(self, slot: Slot, version: int) -> bool:
        """Whether the teacher has withdrawn this version."""
        with self._guard, self._explained():
            notice = self._at(slot)
        return notice is not None and not isinstance(notice, Announcement) and notice.version >= version

    # Whom the agent believes.

    def trusts(self, key: str) -> bool:
        return self.open_trust or key == self.own_key or key in self.view().trusted

    def trust(self, key: str, name: str = "") -> None:
        """Believe a teacher; without a name it keeps the one that it was given before, if any."""
        if key == self.own_key:
            return
        with self._changing():
            self._database.execute(
                "INSERT INTO trusted VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET name = excluded.name "
                "WHERE excluded.name != ''",
                (key, name, now()),
            )
            self._thin(key)

    def distrust(self, key: str) -> None:
        with self._changing():
            self._database.execute("DELETE FROM trusted WHERE key = ?", (key,))

    # What the agent decided.

    def forget(self, slot: Slot) -> None:
        with self._changing():
            self._database.execute("INSERT OR REPLACE INTO forgotten VALUES (?, ?, ?)", (*slot, now()))

    def remember(self, slot: Slot) -> None:
        with self._changing():
            self._database.execute("DELETE FROM forgotten WHERE teacher_key = ? AND task = ?", slot)

    def choose(self, module_id: str, choice: Choice, reason: str) -> None:
        with self._changing():
            row = (module_id, choice, reason[:1000], now())
            self._database.execute("INSERT OR REPLACE INTO choices VALUES (?, ?, ?, ?)", row)

    def unchoose(self, module_id: str, choice: Choice = "held") -> None:
        """Take a decision back, if it is still this one: another process may have decided otherwise."""
        with self._changing():
            self._database.execute("DELETE FROM choices WHERE id = ? AND choice = ?", (module_id, choice))

    def reconsider_formats(self) -> None:
        """Try modules of newer formats again: this release may be newer too."""
        with self._changing():
            newer = f"{FormatVersionError.__name__}:%"
            self._database.execute("DELETE FROM choices WHERE choice = 'refused' AND reason LIKE ?", (newer,))

    def ban(self, agent: str, reason: str) -> None:
        with self._changing():
            self._database.execute("INSERT OR IGNORE INTO bans VALUES (?, ?, ?)", (agent, reason[:1000], now()))

    def unban(self, agent: str) -> None:
        with self._changing():
            self._database.execute("DELETE FROM bans WHERE agent = ?", (agent,))

    # Where others were found.

    def addresses(self) -> dict[str, list[str]]:
        with self._guard, self._explained():
            rows = self._database.execute("SELECT agent, locator FROM addresses ORDER BY agent, since DESC")
            found: dict[str, list[str]] = {}
            for agent, locator in rows:
                found.setdefault(agent, []).append(locator)
            return found

    def note_addresses(self, agent: str, locators: Iterable[str]) -> None:
        """Keep where an agent says that it listens; what it said before is replaced."""
        with self._changing():
            self._database.execute("DELETE FROM addresses WHERE agent = ?", (agent,))
            rows = [(agent, locator, now()) for locator in locators]
            self._database.executemany("INSERT OR REPLACE INTO addresses VALUES (?, ?, ?)", rows)

    # How it is kept.

    def _log_ahead(self) -> None:
        """Let readers and a writer work at once; of two that open a new ledger together SQLite refuses one."""
        deadline = time.monotonic() + WAIT
        while True:
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _forget_claims(self) -> None:
        """Drop names that no user gave: the first release kept a teacher's own claim, or its key, instead."""
        if self._database.execute("PRAGMA user_version").fetchone()[0] >= NAMES_ARE_GIVEN:
            return
        with self._changing():
            for key, name in self._database.execute("SELECT key, name FROM trusted").fetchall():
                rows = self._database.execute("SELECT digest, data FROM notices WHERE teacher_key = ?", (key,))
                claims = {self._decode(*row).teacher for row in rows.fetchall()}
                if name == key[:12] or name in claims:
                    self._database.execute("UPDATE trusted SET name = '' WHERE key = ?", (key,))
            self._database.execute(f"PRAGMA user_version = {NAMES_ARE_GIVEN}")

    def _merge_one(self, notice: Notice, heard_from: str) -> bool:
        standing = self._at(notice.slot)
        if standing is not None and standing.rank >= notice.rank:
            return False
        trusted = self._trusted_now(notice.teacher_key)
        if standing is None and self._is_full(notice.teacher_key, trusted):
            return False
        row = (*notice.slot, notice.digest, _order_key(notice.slot), notice.encode(), heard_from)
        self._database.execute(f"INSERT OR REPLACE INTO {_table(notice.slot)} VALUES (?, ?, ?, ?, ?, ?)", row)
        return trusted

    def _thin(self, teacher: str) -> None:
        if self.per_teacher is None or teacher == self.own_key:
            return
        for table in TABLES:
            self._database.execute(
                f"DELETE FROM {table} WHERE teacher_key = ?1 AND order_key NOT IN "
                f"(SELECT order_key FROM {table} WHERE teacher_key = ?1 ORDER BY order_key LIMIT ?2)",
                (teacher, self.per_teacher),
            )

    def _standing(self) -> set[str]:
        both = "SELECT digest FROM notices UNION ALL SELECT digest FROM links"
        return {digest for (digest,) in self._database.execute(both)}

    def _at(self, slot: Slot) -> Notice | None:
        query = f"SELECT digest, data FROM {_table(slot)} WHERE teacher_key = ? AND task = ?"
        row = self._database.execute(query, slot).fetchone()
        return self._decode(*row) if row else None

    def _trusted_now(self, key: str) -> bool:
        return self.open_trust or key == self.own_key or self._listed(key)

    def _listed(self, key: str) -> bool:
        return self._database.execute("SELECT 1 FROM trusted WHERE key = ?", (key,)).fetchone() is not None

    def _is_full(self, key: str, trusted: bool) -> bool:
        """Whether there is no room for one more slot of this teacher; for those that the user listed there is."""
        if key == self.own_key or self._listed(key):
            return False
        return self._count_unlisted() >= (MAX_KNOWN if trusted else MAX_SEEN)

    def _count_unlisted(self) -> int:
        others = "WHERE teacher_key != ? AND teacher_key NOT IN (SELECT key FROM trusted)"
        counts = [
            self._database.execute(f"SELECT count(*) FROM {table} {others}", (self.own_key,)).fetchone()[0]
            for table in TABLES
        ]
        return int(sum(counts))

    def _read(self) -> View:
        execute = self._database.execute
        trusted = dict(execute("SELECT key, name FROM trusted ORDER BY name, key").fetchall())
        decoded: dict[str, Notice] = {}
        known, seen = self._sorted("notices", trusted, decoded)
        links, seen_links = self._sorted("links", trusted, decoded)
        self._decoded = decoded
        choices = execute("SELECT id, choice, reason, since FROM choices")
        return View(
            known=known,
            seen=seen,
            root=root_of(known.values()),
            trusted=trusted,
            forgotten=frozenset(Slot(*row) for row in execute("SELECT teacher_key, task FROM forgotten")),
            choices={module_id: Chosen(*rest) for module_id, *rest in choices},
            bans=dict(execute("SELECT agent, reason FROM bans").fetchall()),
            links=_only_links(links),
            seen_links=_only_links(seen_links),
            links_root=root_of(links.values()),
        )

    def _sorted(
        self, table: str, trusted: Mapping[str, str], decoded: dict[str, Notice]
    ) -> tuple[dict[Slot, Notice], dict[Slot, Notice]]:
        """A table's notices: those of the believed, and the rest."""
        known: dict[Slot, Notice] = {}
        seen: dict[Slot, Notice] = {}
        for digest, data in self._database.execute(f"SELECT digest, data FROM {table} ORDER BY teacher_key, task"):
            notice = decoded[digest] = self._decode(digest, data)
            believed = self.open_trust or notice.teacher_key == self.own_key or notice.teacher_key in trusted
            (known if believed else seen)[notice.slot] = notice
        return known, seen

    def _decode(self, digest: str, data: bytes) -> Notice:
        """Notices are checked once more as they are read, but only the first time: a signature takes 0.1 ms."""
        if digest not in self._decoded:
            try:
                self._decoded[digest] = decode(data)
            except ModuleError as error:
                raise AgentError(
                    f"the ledger {self.path} is damaged: {error}; put the file back from a copy, or move it away "
                    "and let the agent hear of everything again"
                ) from error
        return self._decoded[digest]

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One transaction: all of it or nothing, whenever the process ends."""
        with self._guard, self._explained():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # a full disk makes SQLite roll back by itself
                    self._database.execute("ROLLBACK")
                raise
            self._changes += 1

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise AgentError(
                f"cannot use the ledger {self.path}: {error}; nothing was changed; make room, make the folder "
                "writable, or put the file back from a copy"
            ) from error


def root_of(notices: Iterable[Notice]) -> str:
    """One hash over a set of notices, whatever their order."""
    digests = sorted(notice.digest for notice in notices)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _table(slot: Slot) -> str:
    return "links" if slot.task.startswith(LINK) else "notices"


def _only_links(found: Mapping[Slot, Notice]) -> dict[Slot, Link]:
    return {slot: notice for slot, notice in found.items() if isinstance(notice, Link)}


def _order_key(slot: Slot) -> str:
    return hashlib.sha256("\n".join(slot).encode()).hexdigest()
