"""Modules that are not in the bank: those that an agent wants, is fetching, or holds in quarantine."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from skillmesh.common.config import MeshSettings
from skillmesh.common.files import HOUR, PRIVATE, make_folder, remove, sync_folder, write_whole
from skillmesh.core import Core, slot_of
from skillmesh.errors import AgentError, ModuleError, TaskExistsError, UnknownTaskError, WithdrawnError
from skillmesh.module import Module
from skillmesh.module.identity import refuse_bad_key
from skillmesh.module.notice import LEAF, Announcement, Slot, leaf_hash
from skillmesh.module.teachers import Teachers, odd_notice
from skillmesh.store.bank import SUFFIX, specs_for
from skillmesh.store.ledger import BY_USER, Ledger, LedgerView

# A module's file while it is fetched: the leaves that have arrived are on disk, so that nothing is fetched twice.
#
# There is no other record. A leaf in the file counts only if it has the announced hash, so a killed process or a
# full disk leaves nothing worse than a gap.


class Partial:
    """The file of one announced module, complete or with gaps."""

    def __init__(self, folder: Path, announcement: Announcement) -> None:
        self.path = folder / announcement.digest  # anyone can announce any id, but digests differ
        self._announcement = announcement
        self._missing = self._gaps()
        self._asked: set[int] = set()

    @property
    def complete(self) -> bool:
        return not self._missing

    def reserve(self) -> None:
        """Reserve disk space for the whole file: a full disk should fail before anything is fetched in vain."""
        with self.path.open("ab") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, self._announcement.size)

    def claim(self, most: int) -> tuple[int, int] | None:
        """Return offset and length of the next gap not yet requested: whole leaves, at most `most` bytes."""
        open_leaves = [leaf for leaf in sorted(self._missing) if leaf not in self._asked]
        if not open_leaves:
            return None
        first, count = open_leaves[0], 1
        while count < max(1, most // LEAF) and first + count in self._missing and first + count not in self._asked:
            count += 1
        self._asked.update(range(first, first + count))
        start = first * LEAF
        return start, min((first + count) * LEAF, self._announcement.size) - start

    def unclaim(self, offset: int, length: int) -> None:
        """Release a claimed gap whose piece did not arrive."""
        self._asked.difference_update(self._leaves(offset, length))

    def fill(self, offset: int, data: bytes) -> bool:
        """Store a piece; return `False` and store nothing if its leaves do not have the announced hashes."""
        leaves = self._leaves(offset, len(data))
        for leaf in leaves:
            start = leaf * LEAF - offset
            if leaf_hash(data[start : start + LEAF]) != self._announcement.leaf(leaf):
                return False
        exists = self.path.exists()
        if not exists:  # nothing has arrived yet, or the file was deleted
            self._missing = self._all()
        with self.path.open("r+b" if exists else "w+b") as file:
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
        """Return the leaves that are missing or do not have the announced hash."""
        missing = self._all()
        if not self.path.exists():
            return missing
        with self.path.open("rb") as file:
            for leaf in sorted(missing):
                length = min(LEAF, self._announcement.size - leaf * LEAF)
                if leaf_hash(file.read(length)) == self._announcement.leaf(leaf):
                    missing.discard(leaf)
        return missing


log = logging.getLogger(__name__)

Rank = tuple[int, bool, str]
"""Version, whether withdrawn, and id: of two notices the larger one counts."""

NOT_TRUSTED = "is not trusted any more"


@dataclass(frozen=True)
class HeldModule:
    """A module in quarantine, with the reason and the time."""

    module: Module
    reason: str
    since: str

    @property
    def next_step(self) -> str:
        """Advice to the user, with a command."""
        if self.reason.endswith(NOT_TRUSTED):
            return f"to trust its teacher again: `skillmesh trust add {self.module.card.teacher_key}`"
        return f"to let it answer anyway: `skillmesh quarantine release {self.module.id[:12]}`"

    def as_dict(self, teachers: Teachers) -> dict[str, str]:
        """Return a JSON-compatible dict; the teacher has the name that the agent uses."""
        card = self.module.card
        return {
            "task": card.task,
            "teacher": teachers.name(card),
            "teacher_key": card.teacher_key,
            "id": self.module.id,
            "reason": self.reason,
            "next": self.next_step,
        }


class Shelf:
    """The folders `partial` and `quarantine` in an agent's home."""

    def __init__(self, home: Path, ledger: Ledger) -> None:
        self.partial = home / "partial"
        self.quarantine = home / "quarantine"
        self._ledger = ledger
        self._ranks: dict[str, tuple[Slot, Rank]] = {}
        """By module id, slot and rank of each held file, so that files are not read at every step."""
        for folder in (self.partial, self.quarantine):
            with contextlib.suppress(OSError):  # a read-only home is used as it is
                make_folder(folder)

    @property
    def size(self) -> int:
        """Size of both folders, in bytes."""
        return sum(self.partial_sizes().values()) + sum(_sizes(self.quarantine).values())

    def partial_sizes(self) -> dict[str, int]:
        """Return the bytes on disk of each module being fetched, by its announcement's digest."""
        return _sizes(self.partial)

    def hold(self, module_id: str, data: bytes, reason: str) -> None:
        """Put a module into quarantine; the file is written first, so that each decision has its file."""
        try:
            write_whole(self._path(module_id), data, mode=PRIVATE)
        except OSError as error:
            raise AgentError(
                f"cannot write to the quarantine {self.quarantine}: {error.strerror}; nothing was changed; free "
                "disk space or fix the folder, then try again"
            ) from error
        self._ledger.choose(module_id, "held", reason)

    def held(self) -> list[HeldModule]:
        """Return the modules in quarantine, sorted by task."""
        modules = [
            HeldModule(module, chosen.reason, chosen.since)
            for module_id, chosen in self._ledger.view().choices.items()
            if chosen.choice == "held" and (module := self._load(module_id)) is not None
        ]
        return sorted(modules, key=lambda h: (h.module.card.task, h.module.id))

    def find(self, task: str, teachers: Teachers) -> HeldModule:
        """Find one module in quarantine by the beginning of its id, `task@teacher` or its task."""
        held = self.held()
        name, _, teacher = task.rpartition("@")
        keys = teachers.meant(teacher, (h.module.card for h in held if h.module.card.task == name))
        matches = (
            [h for h in held if len(task) >= 8 and h.module.id.startswith(task)]
            or [h for h in held if h.module.card.task == name and h.module.card.teacher_key in keys]
            or [h for h in held if h.module.card.task == task]
        )
        if len(matches) == 1:
            return matches[0]
        choices = ", ".join(
            f"{h.module.card.task}@{teachers.name(h.module.card)} ({h.module.id[:12]})" for h in held
        )
        problem = f"{len(matches)} modules in quarantine match" if matches else "no module in quarantine matches"
        raise UnknownTaskError(f"{problem} {task!r}; in quarantine: {choices or 'none'}; name one by its id")

    def release(self, held: HeldModule, agent: Core) -> Module:
        """Import a module from quarantine into the bank, as the user decided."""
        # Chosen first: a node that puts its teacher's modules away at this moment leaves out what was released.
        self._ledger.choose(held.module.id, "released", "released by the user")
        try:
            module = agent.import_bytes(self._path(held.module.id).read_bytes())
        except BaseException:
            self._ledger.choose(held.module.id, "held", held.reason)
            raise
        remove(self._path(module.id))
        return module

    def drop(self, held: HeldModule) -> None:
        """Delete a held module; it is not fetched again."""
        self._ledger.choose(held.module.id, "refused", f"{BY_USER}; it was held: {held.reason}")
        remove(self._path(held.module.id))

    def let_go(self, module_id: str) -> None:
        """Delete a held module's file and the decision to hold it."""
        remove(self._path(module_id))
        self._ledger.unchoose(module_id)

    def try_again(self, held: HeldModule, announcement: Announcement) -> None:
        """Have a module vetted again, as if it had just arrived for this announcement."""
        self._path(held.module.id).replace(self.partial / announcement.digest)
        for folder in (self.partial, self.quarantine):
            sync_folder(folder)
        self._ledger.unchoose(held.module.id)

    def file_of(self, module_id: str) -> bytes | None:
        try:
            return self._path(module_id).read_bytes()
        except OSError:
            return None

    def tidy(self, view: LedgerView) -> None:
        """Remove files that a newer notice replaces (another version, a withdrawal).

        Damaged files are removed too: they are fetched and vetted again.
        """
        standing = {notice.digest for notice in view.known.values()}
        for path in _files(self.partial):
            if path.name not in standing:
                path.unlink(missing_ok=True)
        held = [module_id for module_id, chosen in view.choices.items() if chosen.choice == "held"]
        self._ranks = {module_id: rank for module_id in held if (rank := self._rank(module_id)) is not None}
        for module_id in held:
            place = self._ranks.get(module_id)
            if place is None or _superseded(*place, view):
                self.let_go(module_id)
        for path in _files(self.quarantine):  # a drop or release was killed before its removal
            chosen = view.choices.get(path.stem)
            if chosen is not None and chosen.choice != "held" and _is_old(path):
                path.unlink(missing_ok=True)

    def _rank(self, module_id: str) -> tuple[Slot, Rank] | None:
        """Return slot and rank of a held module, or None if its file is missing or damaged."""
        if module_id in self._ranks and self._path(module_id).exists():
            return self._ranks[module_id]
        module = self._load(module_id)
        return None if module is None else (slot_of(module), (module.card.version, False, module.id))

    def _load(self, module_id: str) -> Module | None:
        try:
            return Module.load(self._path(module_id), specs_for)
        except ModuleError as error:
            log.warning("the module %s… in quarantine cannot be used: %s", module_id[:12], error)
            return None

    def _path(self, module_id: str) -> Path:
        return self.quarantine / f"{module_id}{SUFFIX}"


def trust(agent: Core, shelf: Shelf, key: str, name: str = "") -> None:
    """Trust a teacher, under a name if one is given; its modules in quarantine are vetted again."""
    if key == agent.identity.public_key:
        raise AgentError("this is the agent's own key, which it always trusts; expected the key of another agent")
    refuse_bad_key(key)
    if name:
        agent.teachers.refuse_taken(name, key)
    agent.ledger.trust(key, name)
    known = agent.ledger.view().known
    for held in shelf.held():
        if held.module.card.teacher_key != key or not held.reason.endswith(NOT_TRUSTED):
            continue
        standing = known.get(slot_of(held.module))
        if isinstance(standing, Announcement) and standing.id == held.module.id:
            shelf.try_again(held, standing)
        else:  # it came as a file, so no peer would offer it again
            with contextlib.suppress(WithdrawnError, TaskExistsError):
                agent.import_bytes(shelf.file_of(held.module.id) or b"")
                shelf.let_go(held.module.id)


def distrust(agent: Core, shelf: Shelf, key: str) -> list[Module]:
    """Stop trusting a teacher: its modules move to quarantine, from where `trust add` restores them."""
    if key == agent.identity.public_key:
        raise AgentError("this is the agent's own key; it always trusts itself")
    moved = put_away(agent, shelf, key)
    agent.ledger.distrust(key)  # last, so that an interrupted call can be repeated
    return moved


def put_away(agent: Core, shelf: Shelf, key: str, keep: Collection[str] = ()) -> list[Module]:
    """Move a teacher's modules, except those of the ids in `keep`, from the bank to quarantine; return them."""
    moved = [module for module in agent.bank if module.card.teacher_key == key and module.id not in keep]
    for module in moved:
        shelf.hold(
            module.id, agent.bank.file_of(module), f"its teacher {agent.teachers.name(module.card)} {NOT_TRUSTED}"
        )
        agent.bank.remove(module)
    return moved


def _superseded(slot: Slot, rank: Rank, view: LedgerView) -> bool:
    """Return whether a later version replaces a module, or a withdrawal applies to it."""
    notice = view.at(slot)
    return notice is not None and notice.rank[:3] > rank


def _is_old(path: Path) -> bool:
    """Return whether a file is over an hour old, so that no command can still be deciding on it."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime > HOUR
    return False


def _sizes(folder: Path) -> dict[str, int]:
    sizes = {}
    for path in _files(folder):
        with contextlib.suppress(FileNotFoundError):  # just imported or removed
            sizes[path.name] = path.stat().st_size
    return sizes


def _files(folder: Path) -> Iterator[Path]:
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return (path for path in paths if path.is_file())


# Which of the known modules an agent wants, and why it declines the others.

AN_HOUR = 3600.0


class Wants(NamedTuple):
    """Announced modules that the agent does not hold."""

    wanted: list[Announcement]
    declined: Mapping[str, str]
    """Reason why a module is not fetched, by its announcement's digest."""


class Chooser:
    """Decides what to fetch, from the user's settings and from earlier decisions."""

    def __init__(self, agent: Core, settings: MeshSettings, shelf: Shelf) -> None:
        self._agent, self._settings, self._shelf = agent, settings, shelf
        self._begun: dict[str, dict[str, float]] = {}
        """By teacher, the modules whose fetch began in the last hour, with the time."""
        self._guard = threading.Lock()

    def choose(self, view: LedgerView) -> Wants:
        wanted: list[Announcement] = []
        declined: dict[str, str] = {}
        held = {(m.card.teacher_key, m.card.task): (m.card.version, m.id) for m in self._agent.bank}
        room = self._settings.quota_bytes - self._agent.bank.size - self._shelf.size
        on_disk = self._shelf.partial_sizes()
        begun = self._begun_this_hour()
        for announcement in view.known.values():
            if not isinstance(announcement, Announcement):
                continue
            if held.get(announcement.slot, (0, "")) >= (announcement.version, announcement.id):
                continue
            of_teacher = begun.setdefault(announcement.teacher_key, set())
            remaining = announcement.size - on_disk.get(announcement.digest, 0)
            reason = (
                self._decided(announcement, view)
                or self._unfit(announcement)
                or self._limited(announcement, remaining, room, of_teacher)
            )
            if reason is None:
                room -= remaining
                of_teacher.add(announcement.digest)
                wanted.append(announcement)
            else:
                declined[announcement.digest] = reason
        return Wants(wanted, declined)

    def fetching(self, announcement: Announcement) -> None:
        """Count a module whose fetch begins towards its teacher's hourly limit; retries are not counted."""
        with self._guard:
            self._begun.setdefault(announcement.teacher_key, {}).setdefault(announcement.digest, time.monotonic())

    def _begun_this_hour(self) -> dict[str, set[str]]:
        since = time.monotonic() - AN_HOUR
        with self._guard:
            self._begun = {
                teacher: recent
                for teacher, times in self._begun.items()
                if (recent := {module_id: began for module_id, began in times.items() if began > since})
            }
            return {teacher: set(times) for teacher, times in self._begun.items()}

    def _decided(self, announcement: Announcement, view: LedgerView) -> str | None:
        if (banned := view.bans.get(announcement.teacher_key)) is not None:
            key = announcement.teacher_key[:12]
            return f"its teacher is banned: {banned}; to lift the ban: `skillmesh peers --unban {key}`"
        if announcement.slot in view.forgotten:
            return f"forgotten; to fetch it again: `skillmesh remember {shlex.quote(announcement.task)}`"
        for name in (announcement.digest, announcement.id):  # decisions on the announcement, and on the module
            chosen = view.choices.get(name)
            if chosen is not None and chosen.choice != "released":
                return f"{chosen.choice}: {chosen.reason}"
        return None

    def _unfit(self, announcement: Announcement) -> str | None:
        config, bank = self._agent.config, self._agent.bank
        if (odd := odd_notice(announcement)) is not None:
            return odd
        if announcement.backbone != bank.backbone:
            return f"made for backbone {announcement.backbone[:16]}…, this agent's is {bank.backbone[:16]}…"
        theirs = (announcement.representation, announcement.compact, config.anchor in announcement.anchors)
        if theirs != (config.representation, config.compact, True):
            return "made with other settings (representation, compact or anchor) than this agent's"
        if not self.interesting(announcement):
            return "not among this agent's interests"
        return None

    def _limited(self, announcement: Announcement, remaining: int, room: int, begun: set[str]) -> str | None:
        most = self._settings.max_module_bytes
        if announcement.size > most:
            return f"{announcement.size:,} bytes, more than max_module_bytes = {most:,}"
        if announcement.digest not in begun and len(begun) >= self._settings.modules_per_hour:
            teacher = self._agent.teachers.name(announcement)
            return f"{teacher} has reached its {self._settings.modules_per_hour} modules per hour; fetched later"
        if remaining > room:
            return f"the quota of {self._settings.quota_bytes:,} bytes is used up; raise quota_bytes"
        return None

    def interesting(self, announcement: Announcement) -> bool:
        tags = {f"tag:{tag}" for tag in announcement.tags or ()}
        patterns = self._settings.interests
        return not patterns or any(p in tags or fnmatchcase(announcement.task, p) for p in patterns)
