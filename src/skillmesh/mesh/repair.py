"""Replace a damaged ledger by a new one, built from its readable rows and from the bank.

Rows that can still be read are kept, after the same checks as for new ones. The rest is lost and reported as lost:
nothing is guessed. The bank stays as it is, the agent's own tasks are announced again, and modules in quarantine
stay there. The damaged file is moved aside, never deleted.

The new ledger is written completely beside the old one before the old one is touched. A repair that is interrupted
leaves either the damaged ledger in its place, or no ledger and the new one beside it. The latter counts as damage
too: the next repair reads the file that the first one moved aside.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from filelock import FileLock, Timeout

from skillmesh.common.files import PRIVATE, remove, sync_folder, write_whole
from skillmesh.core import Core, slot_of
from skillmesh.errors import AgentError, ModuleError
from skillmesh.mesh.node import LOCK
from skillmesh.mesh.shelf import Shelf
from skillmesh.module import Module
from skillmesh.module.notice import Notice, announce, decode
from skillmesh.store.ledger import BESIDE, Choice, Ledger, is_damage, new_beside, reading, unreadable

_HEX_64 = re.compile(r"[0-9a-f]{64}")
LONGEST = 1_000
"""Longest reason, name or address, in characters."""
WHY_UNKNOWN = "why it was held was lost with the ledger"

LOSSES = {
    "notices": "notices of other agents' tasks (they come back at the next sync) and this agent's withdrawals",
    "links": "which tasks are merged",
    "trusted": "trusted teachers and the names that you gave them: add them again with `skillmesh trust add`",
    "forgotten": "the list of forgotten tasks: those of trusted teachers may come back at the next sync",
    "choices": "which modules were refused or released: they are vetted again if they are fetched again",
    "bans": "which agents are banned",
    "addresses": "the addresses of other agents",
}
"""What the user loses with each table, for messages."""


@dataclass(frozen=True)
class Repair:
    """Result of a repair."""

    damage: str | None
    """Description of the damage; None if there was none and nothing was changed."""
    aside: Path | None = None
    """Path to which the damaged file was moved."""
    kept: dict[str, int] | None = None
    """Number of rows that could still be read, by table."""
    lost: tuple[str, ...] = ()
    """Tables that could not be read completely."""
    announced: tuple[str, ...] = ()
    """The agent's own tasks, which it still announces."""
    others: int = 0
    """Number of modules in the bank that others taught."""
    held: int = 0
    """Number of modules in quarantine whose reason was lost."""


def repair(agent: Core) -> Repair:
    """Check an agent's whole ledger, and build a new one if it is damaged."""
    with alone(agent.home, "repair"):
        agent.ledger.view()
        damage = agent.ledger.damage or _fault(agent.ledger.path)
        if damage is None:
            return Repair(None)
        agent.ledger.close()
        path, beside, aside = _places(agent.ledger.path)
        moved = not path.exists()
        if moved:  # by an interrupted repair, perhaps not all files
            _move_aside(path, aside)
        with TemporaryDirectory(prefix="skillmesh-repair-") as folder:
            # Open trust, whatever the settings are: the limit for strangers' notices must not drop readable rows.
            new = Ledger(Path(folder) / "ledger.sqlite", agent.identity.public_key, open_trust=True)
            kept, lost = _restore(aside if moved else path, new)
            announced = _announce_own(agent, new)
            held = _hold_again(agent.home, new)
            write_whole(beside, new.as_bytes(), mode=PRIVATE)
            new.close()
        _move_aside(path, aside)
        beside.replace(path)
        sync_folder(path.parent)
        moved_to = aside if aside.exists() else None
        return Repair(damage, moved_to, kept, lost, announced, len(agent.bank) - len(_own(agent)), held)


def _places(path: Path) -> tuple[Path, Path, Path]:
    """Return the paths of the ledger, of the new ledger while it is written, and of the damaged one moved aside.

    If the ledger is missing, an interrupted repair has moved it: the last two paths are those that it used.
    Otherwise anything that an interrupted repair wrote is of no use and is removed.
    """
    stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    while left := new_beside(path):
        if not path.exists():
            stamp = left.stem.partition(".new-")[2]
            break
        remove(left)
    beside, aside = (path.with_name(f"{path.stem}.{what}-{stamp}{path.suffix}") for what in ("new", "damaged"))
    return path, beside, aside


@contextmanager
def alone(home: Path, work: str) -> Iterator[None]:
    """Hold the node's lock during this work, so that no node and no other such work runs on this home."""
    lock = FileLock(home / LOCK, timeout=0, mode=PRIVATE)
    try:
        lock.acquire()
    except Timeout:
        raise AgentError(f"a node runs on {home}; stop it first, then {work}") from None
    except OSError as error:
        raise AgentError(f"cannot {work} {home}: {error.strerror}; make the folder writable") from error
    try:
        yield
    finally:
        lock.release()


def _fault(path: Path) -> str | None:
    """Return what SQLite's integrity check finds wrong in a file whose rows could all be read, or None."""
    try:
        with reading(path) as database:
            (result,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    except UnicodeDecodeError as error:
        result = error.reason
    except (sqlite3.Error, OSError) as error:
        result = _damage(error, path)
    return None if result == "ok" else f"the ledger {path} is damaged: {' '.join(result.split())}"


def _damage(error: Exception, path: Path) -> str:
    """Return the text of an error that means damage; raise any other, so that a sound ledger loses no rows."""
    if isinstance(error, sqlite3.Error) and is_damage(error, path):
        return str(error)
    raise unreadable(path, error) from error


def _restore(path: Path, new: Ledger) -> tuple[dict[str, int], tuple[str, ...]]:
    """Copy the readable rows to the new ledger; return their number by table, and the tables that lost rows."""
    kept, lost = dict.fromkeys(LOSSES, 0), []
    for table in ("trusted", *(name for name in LOSSES if name != "trusted")):  # trusted first: they get more room
        rows, whole = _rows(path, table)
        sound = [row for row in rows if _FITS[table](row)]
        if table in ("notices", "links"):
            notices = [(notice, heard_from) for *_, data, heard_from in sound if (notice := _decoded(data))]
            for source in {heard_from for _, heard_from in notices}:
                new.merge([notice for notice, heard_from in notices if heard_from == source], source)
            kept[table] = len(notices)
        else:
            new.restore(table, sound)
            kept[table] = len(sound)
        if not whole or kept[table] < len(rows):
            lost.append(table)
    return kept, tuple(lost)


def _rows(path: Path, table: str) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the readable rows of a table, and whether these are all of its rows."""
    rows: list[tuple[Any, ...]] = []
    if not path.is_file() or path.stat().st_size == 0:
        return rows, False
    try:
        with reading(path) as database:
            for row in database.execute(f"SELECT {', '.join(_COLUMNS[table])} FROM {table}"):
                rows.append(row)  # noqa: PERF402 - keeps the rows before a damaged page
    except UnicodeDecodeError:
        return rows, False
    except MemoryError:  # SQLite also raises this for some damaged rows
        if _fault(path) is None:
            raise
        return rows, False
    except (sqlite3.Error, OSError) as error:
        text = _damage(error, path)
        return rows, table == "links" and "no such table" in text  # older releases had no links
    return rows, True


_COLUMNS = {
    "notices": ("teacher_key", "task", "digest", "order_key", "data", "heard_from"),
    "links": ("teacher_key", "task", "digest", "order_key", "data", "heard_from"),
    "trusted": ("key", "name", "since"),
    "forgotten": ("teacher_key", "task", "since"),
    "choices": ("id", "choice", "reason", "since"),
    "bans": ("agent", "reason", "since"),
    "addresses": ("agent", "locator", "since"),
}


def _begins_with_key(row: tuple[Any, ...]) -> bool:
    return all(isinstance(cell, str) and len(cell) <= LONGEST for cell in row) and bool(_HEX_64.fullmatch(row[0]))


def _is_notice(row: tuple[Any, ...]) -> bool:
    return isinstance(row[-2], bytes) and isinstance(row[-1], str)


_FITS: dict[str, Callable[[tuple[Any, ...]], bool]] = {
    **dict.fromkeys(("trusted", "forgotten", "bans", "addresses"), _begins_with_key),
    **dict.fromkeys(("notices", "links"), _is_notice),
    "choices": lambda row: _begins_with_key(row) and row[1] in get_args(Choice),
}


def _decoded(data: bytes) -> Notice | None:
    try:
        return decode(data)
    except ModuleError:
        return None


def _own(agent: Core) -> list[Module]:
    return [module for module in agent.bank if module.card.teacher_key == agent.identity.public_key]


def _announce_own(agent: Core, new: Ledger) -> tuple[str, ...]:
    """Announce the agent's own shared tasks for which no notice is left; return all own tasks now announced."""
    own = [module for module in _own(agent) if not agent.keeps(module)]
    notices = [announce(module.card, module.id, agent.bank.file_of(module), agent.identity) for module in own]
    new.merge(notices, agent.identity.public_key)
    standing = new.view().known
    return tuple(
        sorted(
            module.card.task for module in own if getattr(standing.get(slot_of(module)), "id", None) == module.id
        )
    )


def _hold_again(home: Path, new: Ledger) -> int:
    """Mark files in quarantine as held if their reason was lost, so that they stay listed; return their number."""
    held = [path.stem for path in Shelf(home, new).quarantine.glob("*.skill") if _HEX_64.fullmatch(path.stem)]
    unknown = [module_id for module_id in held if module_id not in new.view().choices]
    for module_id in unknown:
        new.choose(module_id, "held", WHY_UNKNOWN)
    return len(unknown)


def _move_aside(path: Path, aside: Path) -> None:
    """Move the ledger and the files that SQLite keeps beside it.

    The ledger is moved first: without its other files it could pass for sound, while a missing one is damage.
    """
    for ending in BESIDE:
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).replace(aside.with_name(aside.name + ending))
    sync_folder(path.parent)
