"""Build a new ledger in the place of a damaged one, from what is left of it and from the bank.

What can still be read of the damaged file is kept, checked as if it had just arrived. The rest is lost, and said
to be: nothing is guessed. The bank is left as it is, the agent's own tasks are announced again, and what lies in
quarantine stays there. The damaged file is moved aside, never deleted.

The new ledger is written whole beside the old one before that is touched. Whoever is stopped then leaves the
damaged one in its place, or else one that is missing with the new one beside it, and that is damage too: the
next repair reads what the first has moved aside.
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
from skillmesh.module.notice import Notice, announce, decode
from skillmesh.store.ledger import BESIDE, Choice, Ledger, is_damage, new_beside, reading, unreadable

_HEX_64 = re.compile(r"[0-9a-f]{64}")
LONGEST = 1_000
"""Characters of a reason, a name or an address at most."""
WHY_UNKNOWN = "why it was held was lost with the ledger"

LOSSES = {
    "notices": "what it had heard of others' tasks (comes back at the next sync) and its own withdrawals",
    "links": "which tasks are merged",
    "trusted": "whom it trusts and the names that you gave: nobody is trusted until `skillmesh trust add`",
    "forgotten": "what was forgotten here: trusted teachers' tasks may come back at the next sync",
    "choices": "which modules were refused or released: they are judged again if they come",
    "bans": "which agents are banned",
    "addresses": "where other agents were found",
}
"""What is lost with each table, as the user knows it."""


@dataclass(frozen=True)
class Repair:
    """What a repair has done."""

    damage: str | None
    """What was wrong; none: nothing, and nothing was done."""
    aside: Path | None = None
    """Where the damaged file lies now."""
    kept: dict[str, int] | None = None
    """By table, rows that could still be read."""
    lost: tuple[str, ...] = ()
    """Tables that could not be read to their end."""
    announced: tuple[str, ...] = ()
    """The agent's own tasks, which it announces as before."""
    others: int = 0
    """Number of modules in the bank that others taught."""
    held: int = 0
    """Number of modules in quarantine whose reason was lost."""


def repair(agent: Core) -> Repair:
    """Look at all of an agent's ledger, and build a new one if it is damaged."""
    with _alone(agent.home):
        agent.ledger.view()
        damage = agent.ledger.damage or _fault(agent.ledger.path)
        if damage is None:
            return Repair(None)
        agent.ledger.close()
        path, beside, aside = _places(agent.ledger.path)
        moved = not path.exists()
        if moved:  # by a repair that was stopped, perhaps before it had moved all
            _move_aside(path, aside)
        with TemporaryDirectory(prefix="skillmesh-repair-") as folder:
            new = Ledger(Path(folder) / "ledger.sqlite", agent.identity.public_key, agent.ledger.open_trust)
            kept, lost = _restore(aside if moved else path, new)
            announced = _announce_own(agent, new)
            held = _hold_again(agent.home, new)
            write_whole(beside, new.as_bytes(), mode=PRIVATE)
            new.close()
        _move_aside(path, aside)
        beside.replace(path)
        sync_folder(path.parent)
        there = aside if aside.exists() else None
        return Repair(damage, there, kept, lost, announced, len(agent.bank) - len(announced), held)


def _places(path: Path) -> tuple[Path, Path, Path]:
    """Return where the ledger is, where the new one is written, and where the damaged one goes.

    If the ledger is gone, the last two are as the repair that moved it had them; if not, that repair has done
    nothing yet, and what it wrote is of no use.
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
def _alone(home: Path) -> Iterator[None]:
    """Keep nodes and other repairs out."""
    lock = FileLock(home / LOCK, timeout=0, mode=PRIVATE)
    try:
        lock.acquire()
    except Timeout:
        raise AgentError(f"a node runs on {home}; stop it first, then repair") from None
    except OSError as error:
        raise AgentError(f"cannot repair {home}: {error.strerror}; make the folder writable") from error
    try:
        yield
    finally:
        lock.release()


def _fault(path: Path) -> str | None:
    """Say what SQLite finds wrong in a file whose rows could all be read."""
    try:
        with reading(path) as database:
            (said,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    except UnicodeDecodeError as error:
        said = error.reason
    except (sqlite3.Error, OSError) as error:
        said = _damage(error, path)
    return None if said == "ok" else f"the ledger {path} is damaged: {' '.join(said.split())}"


def _damage(error: Exception, path: Path) -> str:
    """Say what is damaged; an error that has another cause must cost no row of a ledger that is sound."""
    if isinstance(error, sqlite3.Error) and is_damage(error, path):
        return str(error)
    raise unreadable(path, error) from error


def _restore(path: Path, new: Ledger) -> tuple[dict[str, int], tuple[str, ...]]:
    """Take over what can be read; return the rows of each table, and the tables of which some cannot."""
    kept, lost = dict.fromkeys(LOSSES, 0), []
    for table in ("trusted", *(name for name in LOSSES if name != "trusted")):  # the trusted first: they have room
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
    """Return a table's rows as far as they can be read, and whether these are all."""
    rows: list[tuple[Any, ...]] = []
    if not path.is_file() or path.stat().st_size == 0:
        return rows, False
    try:
        with reading(path) as database:
            for row in database.execute(f"SELECT {', '.join(_COLUMNS[table])} FROM {table}"):
                rows.append(row)  # noqa: PERF402 - those before a damaged page count
    except UnicodeDecodeError:
        return rows, False
    except MemoryError:  # SQLite says so of some damaged rows, too
        if _fault(path) is None:
            raise
        return rows, False
    except (sqlite3.Error, OSError) as error:
        said = _damage(error, path)
        return rows, table == "links" and "no such table" in said  # an older release had none
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


def _announce_own(agent: Core, new: Ledger) -> tuple[str, ...]:
    """Announce the agent's own tasks again, where no notice of them is left and they were not withdrawn."""
    own = [module for module in agent.bank if module.card.teacher_key == agent.identity.public_key]
    notices = [announce(module.card, module.id, agent.bank.file_of(module), agent.identity) for module in own]
    new.merge(notices, agent.identity.public_key)
    standing = new.view().known
    return tuple(
        sorted(
            module.card.task for module in own if getattr(standing.get(slot_of(module)), "id", None) == module.id
        )
    )


def _hold_again(home: Path, new: Ledger) -> int:
    """Keep what lies in quarantine there: without a decision nobody would see it any more."""
    held = [path.stem for path in Shelf(home, new).quarantine.glob("*.skill") if _HEX_64.fullmatch(path.stem)]
    unknown = [module_id for module_id in held if module_id not in new.view().choices]
    for module_id in unknown:
        new.choose(module_id, "held", WHY_UNKNOWN)
    return len(unknown)


def _move_aside(path: Path, aside: Path) -> None:
    """Move the ledger and what SQLite keeps beside it.

    The ledger goes first: without the rest it could be taken for a whole one, while one that is missing is damage.
    """
    for ending in BESIDE:
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).replace(aside.with_name(aside.name + ending))
    sync_folder(path.parent)
