"""The ledger: the notices that an agent has received and its decisions, in one SQLite file beside its bank.

The bank's files hold the modules that the agent can use now. The ledger holds the signed notices of all modules it
has heard of, the teachers it trusts, and the modules it will not fetch again (forgotten, refused, held in
quarantine) with the reasons. Several processes may use one ledger at once: a running node and other commands.

*Known* notices are the current notices of trusted teachers. The root hash covers only these, so two agents that
trust the same teachers and have received the same notices have the same root, whatever each of them decided.
Links have their own table and root, because older releases do not know them; so the other root stays comparable.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from skillmesh.common.files import PRIVATE, write_whole
from skillmesh.errors import AgentError, FormatVersionError, LedgerDamagedError, ModuleError
from skillmesh.module.card import now
from skillmesh.module.notice import LINK, Announcement, Link, Notice, Slot, decode

log = logging.getLogger(__name__)

FILE = "ledger.sqlite"
MAGIC = b"SQLite format 3\0"
BESIDE = ("", "-wal", "-shm")
"""Suffixes of the files that SQLite keeps for one ledger."""
WAIT = 60.0
"""Seconds to wait for other processes that change the ledger."""
MAX_SEEN = 1_000
"""Largest number of untrusted teachers' notices kept: enough to list them, too few to fill a disk."""
MAX_KNOWN = 50_000
"""Largest number of notices kept if everyone is trusted: keys are free to create, and each one is a teacher."""
MAX_BANS = 10_000
"""Largest number of bans kept for agents that the user did not list: new keys to misbehave with are free."""
MAX_REFUSED = 10_000
"""Largest number of refused modules remembered without a current notice, not counting those the user dropped."""
BY_USER = "dropped by the user"
"""Beginning of the reason if the user decided."""

NAMES_ARE_GIVEN = 1
"""First version of the file in which a trusted teacher's name is always one that the user gave."""

Choice = Literal["refused", "held", "released"]
"""Decision about one module: refused permanently, held in quarantine, or released from it by the user."""

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

_DAMAGE = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,  # tables or columns that are not the ledger's
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_CONSTRAINT,
)
"""SQLite error codes of a damaged file, for which trying again does not help."""
_IOERR_CORRUPTFS = 8458
"""SQLite's code for a damaged file system; Python has a name for it only with SQLite 3.34 or newer."""
_UNREADABLE = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, _IOERR_CORRUPTFS)
"""SQLite error codes of a disk that cannot read the file. Other disk errors come from writing, and may pass."""
_NO_WRITING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""SQLite error codes if it cannot create its files beside the ledger. Reading may still be possible."""


class Chosen(NamedTuple):
    """A decision about one module."""

    choice: Choice
    reason: str
    since: str


@dataclass(frozen=True)
class LedgerView:
    """An immutable snapshot of the ledger, so threads may read it without a lock."""

    known: Mapping[Slot, Notice]
    seen: Mapping[Slot, Notice]
    """Notices of teachers that are not trusted."""
    root: str
    trusted: Mapping[str, str]
    """Names that the user gave, by trusted key; empty strings if none was given. Without the agent's own key."""
    forgotten: frozenset[Slot]
    choices: Mapping[str, Chosen]
    bans: Mapping[str, str]
    """Reason for each ban, by the agent's key."""
    links: Mapping[Slot, Link] = field(default_factory=dict)
    """Links of trusted makers, including withdrawn links."""
    seen_links: Mapping[Slot, Link] = field(default_factory=dict)
    links_root: str = ""

    def at(self, slot: Slot) -> Notice | None:
        """Return the current notice in a slot, of a trusted teacher or not, or `None`."""
        return self.known.get(slot) or self.seen.get(slot) or self.links.get(slot) or self.seen_links.get(slot)

    @property
    def believed(self) -> list[Notice]:
        """All notices that are passed on to other agents: first those of modules, then links."""
        return [*self.known.values(), *self.links.values()]

    @property
    def heard(self) -> list[Notice]:
        """All notices in the ledger, including those of untrusted teachers."""
        return [*self.believed, *self.seen.values(), *self.seen_links.values()]


NOTHING = LedgerView(
    {}, {}, hashlib.sha256().hexdigest(), {}, frozenset(), {}, {}, links_root=hashlib.sha256().hexdigest()
)
"""Empty view, used if the ledger cannot be read."""


class Ledger:
    """An agent's ledger on disk.

    A damaged file does not prevent reading: a warning is logged, and the view holds what was last read, or
    nothing. Changes raise a `LedgerDamagedError` that names `skillmesh repair`. A read-only ledger (a home without
    write permission, a full disk) is read once, as it is when it is opened.

    Parameters
    ----------
    own_key
        The agent's public key. An agent always trusts itself.
    open_trust
        Whether every teacher is trusted.
    per_teacher
        Largest number of slots kept per teacher; a node has this limit, other commands have none. The slots with
        the smallest hashes are kept. That does not depend on the order of arrival, so agents agree even about a
        teacher who announces a million.
    expected
        Whether there must be a ledger, because the bank holds modules. A missing or empty file then counts as
        damage, as it does after a repair that was stopped before its last step.
    """

    def __init__(
        self,
        path: Path,
        own_key: str,
        open_trust: bool = False,
        per_teacher: int | None = None,
        expected: bool = False,
    ) -> None:
        self.path = path
        self.own_key = own_key
        self.open_trust = open_trust
        self.per_teacher = per_teacher
        self._guard = threading.RLock()
        self._decoded: dict[str, Notice] = {}
        self._view: tuple[object, LedgerView] | None = None
        self._changes = 0
        self._unlisted = 0
        """Number of notices of teachers that the user did not list; used only during a merge."""
        self.damage: str | None = None
        """Description of the damage to the file, or `None`."""
        self._warned = False
        self._closed = False
        self._unwritable: str | None = None
        """Reason why an undamaged ledger cannot be changed, or `None`."""
        self._database = _memory()
        try:
            if not _size(path) and (expected or new_beside(path)):
                raise self._damaged("is empty" if path.exists() else "is missing")
            if _is_no_database(path):  # SQLite would remove the log of changes beside it
                raise self._damaged("is damaged: file is not a database")
            self._open()
        except LedgerDamagedError:
            self._database.close()
            self._database = _memory()
            self._warn()

    def close(self) -> None:
        self._closed = True
        self._database.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            home = str(self.path.parent)
            raise AgentError(f"the agent at {home} is closed; open it again with Agent({home!r})")

    def refuse_unchangeable(self) -> None:
        """Raise an `AgentError` if the ledger cannot be changed. Called before long work, not after it."""
        self._refuse_closed()
        if self._view is None:
            self.view()  # damage may lie in the middle of the file
        self._refuse_damaged()
        if self._unwritable is not None:
            raise AgentError(
                f"cannot change the ledger {self.path}: {self._unwritable}; nothing in it was changed; make room "
                "or make the folder writable, then try again"
            )

    def as_bytes(self) -> bytes:
        """Return the whole ledger as the bytes of a file."""
        with self._guard, self._explaining_errors():
            return self._database.serialize()

    # Notices.

    def view(self) -> LedgerView:
        """Return the ledger as it is now, including other processes' changes. Fast if nothing has changed."""
        with self._guard:
            self._refuse_closed()
            if self.damage is None:
                with suppress(LedgerDamagedError):
                    return self._current()
            self._warn()
            return self._view[1] if self._view else NOTHING

    def _current(self) -> LedgerView:
        with self._explaining_errors():
            version = self._database.execute("PRAGMA data_version").fetchone()[0]
            state = (version, self._changes, self.open_trust)
            if self._view is None or self._view[0] != state:
                self._database.execute("BEGIN")  # reads all tables as of one moment
                try:
                    self._view = state, self._read()
                finally:
                    if self._database.in_transaction:  # an error of the disk makes SQLite roll back by itself
                        self._database.execute("COMMIT")
            return self._view[1]

    def merge(self, notices: Iterable[Notice], heard_from: str) -> list[Notice]:
        """Store notices whose signatures were checked; return the trusted ones that are new and were kept."""
        with self._changing():
            self._unlisted = self._count_unlisted()  # once, since counting for each notice is slow
            added = [notice for notice in notices if self._merge_one(notice, heard_from)]
            for teacher in {notice.teacher_key for notice in added}:
                self._limit_slots(teacher)
            current = self._current_digests()
        return [notice for notice in added if notice.digest in current]

    def latest_version(self, slot: Slot) -> int:
        """Return the highest version ever received for this slot, or 0 if there is none."""
        notice = self._known_at(slot)
        return notice.version if notice else 0

    def withdrawn(self, slot: Slot, version: int) -> bool:
        """Return whether the teacher has withdrawn this version."""
        notice = self._known_at(slot)
        return notice is not None and not isinstance(notice, Announcement) and notice.version >= version

    # Trust.

    def trusts(self, key: str) -> bool:
        return self.open_trust or key == self.own_key or key in self.view().trusted

    def trust(self, key: str, name: str = "") -> None:
        """Trust a teacher. Without `name`, a name that the user gave before is kept."""
        if key == self.own_key:
            return
        with self._changing():
            self._database.execute(
                "INSERT INTO trusted VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET name = excluded.name "
                "WHERE excluded.name != ''",
                (key, name, now()),
            )
            self._limit_slots(key)

    def distrust(self, key: str) -> None:
        with self._changing():
            self._database.execute("DELETE FROM trusted WHERE key = ?", (key,))

    # Decisions.

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
            if choice == "refused":  # those with current notices are kept, or they would be fetched again
                self._database.execute(
                    "DELETE FROM choices WHERE id IN (SELECT id FROM choices WHERE id != ? "
                    "AND choice = 'refused' AND id NOT IN (SELECT digest FROM notices) AND reason NOT LIKE ? "
                    "ORDER BY since DESC, id LIMIT -1 OFFSET ?)",
                    (module_id, f"{BY_USER}%", MAX_REFUSED - 1),
                )

    def unchoose(self, module_id: str, choice: Choice = "held") -> None:
        """Remove a decision if it is still `choice`: another process may have changed it."""
        with self._changing():
            self._database.execute("DELETE FROM choices WHERE id = ? AND choice = ?", (module_id, choice))

    def reconsider_formats(self) -> None:
        """Allow modules refused for a newer format to be tried again: this release may be able to read them."""
        with self._changing():
            newer = f"{FormatVersionError.__name__}:%"
            self._database.execute("DELETE FROM choices WHERE choice = 'refused' AND reason LIKE ?", (newer,))

    def ban(self, agent: str, reason: str) -> None:
        with self._changing():
            self._database.execute("INSERT OR IGNORE INTO bans VALUES (?, ?, ?)", (agent, reason[:1000], now()))
            self._database.execute(
                "DELETE FROM bans WHERE agent IN (SELECT agent FROM bans WHERE agent != ? AND agent NOT IN "
                "(SELECT key FROM trusted) ORDER BY since DESC, agent LIMIT -1 OFFSET ?)",
                (agent, MAX_BANS - 1),
            )

    def unban(self, agent: str) -> None:
        with self._changing():
            self._database.execute("DELETE FROM bans WHERE agent = ?", (agent,))

    # Addresses of other agents.

    def addresses(self) -> dict[str, list[str]]:
        with self._guard, self._explaining_errors():
            rows = self._database.execute("SELECT agent, locator FROM addresses ORDER BY agent, since DESC")
            addresses: dict[str, list[str]] = {}
            for agent, locator in rows:
                addresses.setdefault(agent, []).append(locator)
            return addresses

    def note_addresses(self, agent: str, locators: Iterable[str]) -> None:
        """Store the addresses at which an agent says it listens, in place of its earlier ones."""
        with self._changing():
            self._database.execute("DELETE FROM addresses WHERE agent = ?", (agent,))
            rows = [(agent, locator, now()) for locator in locators]
            self._database.executemany("INSERT OR REPLACE INTO addresses VALUES (?, ?, ?)", rows)

    def restore(self, table: str, rows: Iterable[tuple[str, ...]]) -> None:
        """Write rows recovered from a damaged ledger into a table; see `mesh/repair.py`."""
        with self._changing():
            for row in rows:
                marks = ", ".join("?" * len(row))
                self._database.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", row)

    # Storage.

    def _open(self) -> None:
        with self._explaining_errors():
            exists = _size(self.path) > 0
            if os.access(self.path if exists else self.path.parent, os.W_OK) or not self.path.parent.is_dir():
                try:
                    self._open_to_write()
                    return
                except sqlite3.OperationalError as error:
                    if not exists or error.sqlite_errorcode & 0xFF not in _NO_WRITING:
                        raise
                    self._unwritable = str(error)
            self._unwritable = self._unwritable or "it is read-only"
            self._database.close()
            self._database = self._copy()
            self._clear_claimed_names()

    def _open_to_write(self) -> None:
        if not self.path.exists():
            # SQLite would create a file that others can read, and that is empty for a moment.
            with suppress(FileExistsError):
                write_whole(self.path, _memory().serialize(), mode=PRIVATE, new=True)
        self._database.close()
        self._database = _connect(str(self.path))
        self._use_write_ahead_log()
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("PRAGMA wal_autocheckpoint=200")
        self._database.execute("PRAGMA journal_size_limit=1000000")
        self._database.executescript(_SCHEMA)
        self._clear_claimed_names()

    def _copy(self) -> sqlite3.Connection:
        """Return an in-memory copy of the ledger, with any tables that an older release did not create."""
        memory = _connect(":memory:")
        if _size(self.path):
            try:
                with reading(self.path) as source:
                    source.backup(memory)
            except OSError as error:
                raise unreadable(self.path, error) from error
        memory.executescript(_SCHEMA)
        return memory

    def _use_write_ahead_log(self) -> None:
        """Let readers and a writer work at once. Retry, as SQLite refuses one of two that open a new ledger."""
        deadline = time.monotonic() + WAIT
        while True:
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _clear_claimed_names(self) -> None:
        """Clear names that no user gave: the first release stored a teacher's claimed name or key instead."""
        if self._database.execute("PRAGMA user_version").fetchone()[0] >= NAMES_ARE_GIVEN:
            return
        with self._transaction():
            for key, name in self._database.execute("SELECT key, name FROM trusted").fetchall():
                rows = self._database.execute("SELECT digest, data FROM notices WHERE teacher_key = ?", (key,))
                claims = {self._decode(*row).teacher for row in rows.fetchall()}
                if name == key[:12] or name in claims:
                    self._database.execute("UPDATE trusted SET name = '' WHERE key = ?", (key,))
            self._database.execute(f"PRAGMA user_version = {NAMES_ARE_GIVEN}")

    def _merge_one(self, notice: Notice, heard_from: str) -> bool:
        current = self._at(notice.slot)
        if current is not None and current.rank >= notice.rank:
            return False
        trusted = self._trusted_now(notice.teacher_key)
        if current is None and self._is_full(notice.teacher_key, trusted):
            return False
        row = (*notice.slot, notice.digest, _order_key(notice.slot), notice.encode(), heard_from)
        self._database.execute(f"INSERT OR REPLACE INTO {_table(notice.slot)} VALUES (?, ?, ?, ?, ?, ?)", row)
        self._unlisted += current is None
        self._decoded[notice.digest] = notice  # its signature was checked
        return trusted

    def _limit_slots(self, teacher: str) -> None:
        if self.per_teacher is None or teacher == self.own_key:
            return
        for table in TABLES:
            self._database.execute(
                f"DELETE FROM {table} WHERE teacher_key = ? AND order_key NOT IN "
                f"(SELECT order_key FROM {table} WHERE teacher_key = ? ORDER BY order_key LIMIT ?)",
                (teacher, teacher, self.per_teacher),
            )

    def _current_digests(self) -> set[str]:
        both = "SELECT digest FROM notices UNION ALL SELECT digest FROM links"
        return {digest for (digest,) in self._database.execute(both)}

    def _known_at(self, slot: Slot) -> Notice | None:
        """Return a slot's current notice for a decision. Raise an error if the ledger is damaged."""
        with self._guard:
            self._refuse_damaged()
            with self._explaining_errors():
                return self._at(slot)

    def _at(self, slot: Slot) -> Notice | None:
        query = f"SELECT digest, data FROM {_table(slot)} WHERE teacher_key = ? AND task = ?"
        row = self._database.execute(query, slot).fetchone()
        return self._decode(*row) if row else None

    def _trusted_now(self, key: str) -> bool:
        return self.open_trust or key == self.own_key or self._listed(key)

    def _listed(self, key: str) -> bool:
        return self._database.execute("SELECT 1 FROM trusted WHERE key = ?", (key,)).fetchone() is not None

    def _is_full(self, key: str, trusted: bool) -> bool:
        """Return whether the limit leaves no room for this teacher's new slot. Listed teachers have no limit."""
        if key == self.own_key or self._listed(key):
            return False
        return self._unlisted >= (MAX_KNOWN if trusted else MAX_SEEN)

    def _count_unlisted(self) -> int:
        others = "WHERE teacher_key != ? AND teacher_key NOT IN (SELECT key FROM trusted)"
        counts = [
            self._database.execute(f"SELECT count(*) FROM {table} {others}", (self.own_key,)).fetchone()[0]
            for table in TABLES
        ]
        return int(sum(counts))

    def _read(self) -> LedgerView:
        execute = self._database.execute
        trusted = dict(self._texts("SELECT key, name FROM trusted ORDER BY name, key"))
        decoded: dict[str, Notice] = {}
        known, seen = self._sorted("notices", trusted, decoded)
        links, seen_links = self._sorted("links", trusted, decoded)
        self._decoded = decoded
        choices = execute("SELECT id, choice, reason, since FROM choices")
        return LedgerView(
            known=known,
            seen=seen,
            root=root_of(known.values()),
            trusted=trusted,
            forgotten=frozenset(Slot(*row) for row in self._texts("SELECT teacher_key, task FROM forgotten")),
            choices={module_id: Chosen(*rest) for module_id, *rest in choices},
            bans=dict(self._texts("SELECT agent, reason FROM bans")),
            links=_only_links(links),
            seen_links=_only_links(seen_links),
            links_root=root_of(links.values()),
        )

    def _texts(self, query: str) -> list[tuple[str, str]]:
        """Return rows of two strings. Raise an error for other types, which a damaged file may hold."""
        rows: list[tuple[str, str]] = self._database.execute(query).fetchall()
        if not all(isinstance(value, str) for row in rows for value in row):
            raise self._damaged("is damaged: it holds bytes or numbers instead of text")
        return rows

    def _sorted(
        self, table: str, trusted: Mapping[str, str], decoded: dict[str, Notice]
    ) -> tuple[dict[Slot, Notice], dict[Slot, Notice]]:
        """Return a table's notices of trusted teachers, and those of all others."""
        known: dict[Slot, Notice] = {}
        seen: dict[Slot, Notice] = {}
        for digest, data in self._database.execute(f"SELECT digest, data FROM {table} ORDER BY teacher_key, task"):
            notice = decoded[digest] = self._decode(digest, data)
            believed = self.open_trust or notice.teacher_key == self.own_key or notice.teacher_key in trusted
            (known if believed else seen)[notice.slot] = notice
        return known, seen

    def _decode(self, digest: str, data: bytes) -> Notice:
        """Return a notice, with its signature checked on the first read only: a check takes 0.1 ms."""
        if digest not in self._decoded:
            try:
                self._decoded[digest] = decode(data)
            except ModuleError as error:
                # The error's own advice is for receiving a notice from a peer, so it is kept only as the cause.
                raise self._damaged("is damaged: a notice in it is not what its teacher signed") from error
        return self._decoded[digest]

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Run one transaction: all of it is stored or nothing, even if the process is killed."""
        with self._guard:
            self.refuse_unchangeable()
            with self._transaction():
                yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._guard, self._explaining_errors():
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
    def _explaining_errors(self) -> Iterator[None]:
        try:
            with _errors_as_text():
                yield
        except sqlite3.Error as error:
            if is_damage(error, self.path):
                raise self._damaged(f"is damaged: {error}") from error
            if _cannot_open(error) and self.path.exists():
                raise unreadable(self.path, error) from error
            raise AgentError(
                f"cannot use the ledger {self.path}: {error}; nothing in it was changed; make room, make the "
                "folder writable, or put the file back from a copy"
            ) from error
        except MemoryError as error:
            if self._is_sound():
                raise
            raise self._damaged("is damaged: a row of it cannot be read") from error

    def _is_sound(self) -> bool:
        """Return whether SQLite's check passes. For some damaged rows SQLite only reports a lack of memory."""
        try:
            return bool(self._database.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        except sqlite3.Error:
            return False

    def _damaged(self, how: str) -> LedgerDamagedError:
        """Record the damage, and return the error for callers that cannot continue without a ledger."""
        self.damage = self.damage or f"the ledger {self.path} {how}"
        return LedgerDamagedError(
            f"{self.damage}; nothing in it was changed; `skillmesh repair` builds a new one from what is left, or "
            "put the file back from a copy"
        )

    def _refuse_damaged(self) -> None:
        if self.damage is not None:
            raise self._damaged("")

    def _warn(self) -> None:
        """Log a warning, once, that the agent continues without a ledger."""
        if not self._warned:
            self._warned = True
            command = f"`skillmesh --home {shlex.quote(str(self.path.parent))} repair`"
            log.warning(
                "%s; continuing without it: trust, given names and merged tasks are unknown; %s builds a new one",
                self.damage,
                command,
            )


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a ledger's file without changing it or creating files beside it. Needs no write permission."""
    wal, shm = (path.with_name(path.name + ending) for ending in BESIDE[1:])
    if _size(wal) and not shm.exists():  # copied or moved without it: SQLite has to read the whole log
        with TemporaryDirectory(prefix="skillmesh-ledger-") as folder:
            for file in (path, wal):
                shutil.copyfile(file, Path(folder) / file.name)
            with closing(_connect(str(Path(folder) / path.name))) as database:
                yield database
        return
    how = "mode=ro" if _size(wal) else "mode=ro&immutable=1"
    with closing(_connect(f"{path.absolute().as_uri()}?{how}")) as database:
        yield database


def _connect(name: str) -> sqlite3.Connection:
    uri = name.startswith("file:")
    return sqlite3.connect(name, timeout=WAIT, isolation_level=None, check_same_thread=False, uri=uri)


def _memory() -> sqlite3.Connection:
    """Return a new, empty ledger in memory."""
    database = _connect(":memory:")
    database.executescript(_SCHEMA)
    database.execute(f"PRAGMA user_version = {NAMES_ARE_GIVEN}")
    return database


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_no_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) not in (MAGIC, b"")
    except OSError:  # missing or unreadable: SQLite reports it
        return False


def is_damage(error: sqlite3.Error, path: Path) -> bool:
    """Return whether the error means that the file itself is damaged, so that only a repair helps."""
    if _cannot_open(error):
        return path.exists() and not path.is_file()
    code = _code(error)
    return code in _UNREADABLE or code & 0xFF in _DAMAGE


def _cannot_open(error: sqlite3.Error) -> bool:
    """Return whether SQLite could not open a file: no permission, or too many open files."""
    return _code(error) & 0xFF == sqlite3.SQLITE_CANTOPEN


def unreadable(path: Path, error: Exception) -> AgentError:
    """Return the error for a ledger that cannot be read, although it may be undamaged."""
    why = str(error)
    try:
        path.open("rb").close()  # SQLite does not say why
    except OSError as reason:
        why = reason.strerror or why
    return AgentError(
        f"the ledger {path} cannot be read: {why}; nothing in it was changed; run as the user who owns it, "
        "make its folder writable, or close other programs if too many files are open, then try again"
    )


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)


def new_beside(path: Path) -> Path | None:
    """Return the new ledger of a repair that was not finished, or `None`; see `mesh/repair.py`."""
    return max(path.parent.glob(f"{path.stem}.new-*{path.suffix}"), default=None)


@contextmanager
def _errors_as_text() -> Iterator[None]:
    """Raise SQLite's error for damage if its message quotes damaged bytes that Python cannot decode as text."""
    try:
        yield
    except UnicodeDecodeError as error:
        damage = sqlite3.DatabaseError(f"the file is damaged ({error.reason})")
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise damage from error


def root_of(notices: Iterable[Notice]) -> str:
    """Return one hash over a set of notices, independent of their order."""
    digests = sorted(notice.digest for notice in notices)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _table(slot: Slot) -> str:
    return "links" if slot.task.startswith(LINK) else "notices"


def _only_links(notices: Mapping[Slot, Notice]) -> dict[Slot, Link]:
    return {slot: notice for slot, notice in notices.items() if isinstance(notice, Link)}


def _order_key(slot: Slot) -> str:
    return hashlib.sha256("\n".join(slot).encode()).hexdigest()
