"""The bank: the modules that an agent holds, one file each, named by module id; and the signing of its own.

There is no index that could disagree with the files. A module is written to a temporary file and then renamed, so
a bank holds a module completely or not at all, even if the process is killed.
"""

from __future__ import annotations

import logging
import os
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from skillmesh.anchors import KINDS
from skillmesh.common.choices import Sharing
from skillmesh.common.config import AgentConfig
from skillmesh.common.files import PARTIAL, PRIVATE, make_folder, sync_folder, write_whole
from skillmesh.errors import (
    AgentError,
    AmbiguousTaskError,
    BackboneMismatchError,
    CardError,
    ModuleError,
    TaskExistsError,
    UnknownTaskError,
    option,
)
from skillmesh.learning.adaptation import Biases
from skillmesh.learning.head import Head, probe_specs
from skillmesh.module import Identity, Module, in_order, now
from skillmesh.module.card import Card
from skillmesh.module.notice import Announcement, Slot, announce
from skillmesh.module.teachers import Teachers, refuse_odd_names
from skillmesh.numerics.arrays import Spec
from skillmesh.store.home import (
    VALIDATION,
    release_of,
    remove_other_validation,
    remove_validation,
    save_validation,
)
from skillmesh.store.ledger import Ledger
from skillmesh.store.sharing import Unshared

if TYPE_CHECKING:
    from skillmesh.learning.lesson import Lesson


def specs_for(card: Card) -> dict[str, Spec]:
    classes = len(card.classes)
    specs = Head.specs(classes, card.head_dim, exponents=card.toes is not None)
    specs |= probe_specs(card.validation_images, card.dim)
    for kind in card.anchors:
        specs |= KINDS[kind].specs(classes, card.dim)
    if card.pattern is not None:
        specs["pattern"] = Spec("U8", (card.pattern, card.pattern, 3))
    if card.biases is not None:
        specs |= Biases.specs(*card.biases)
    return specs


log = logging.getLogger(__name__)

SUFFIX = ".skill"
TICK_NS = 100_000_000
"""Time in nanoseconds that is longer than the timestamp resolution of any file system."""


@dataclass(frozen=True)
class Damaged:
    """A file in the bank that cannot be used, and the reason."""

    path: Path
    error: ModuleError


class Bank:
    """Modules of one backbone and representation, on disk and in memory.

    Modules are ordered by content id, so two agents with the same modules hold them in the same order, however
    they arrived.
    """

    def __init__(
        self,
        folder: Path,
        backbone: str,
        refuse: Callable[[Module], None] = lambda _: None,
        teachers: Callable[[], Teachers] = lambda: Teachers({}),
    ) -> None:
        """Open the bank.

        Parameters
        ----------
        refuse
            Function that raises a `ModuleError` for modules that the bank's owner cannot use.
        teachers
            Function that returns the owner's names for teachers. By default they have only the names they claim.
        """
        self.folder = folder
        self.backbone = backbone
        self._refuse, self._teachers = refuse, teachers
        self.damaged: list[Damaged] = []
        # This dict is replaced, never changed, so a thread that is answering keeps the modules it started with.
        self._modules: dict[str, Module] = {}
        self._ordered: tuple[dict[str, Module], list[Module], dict[Slot, Module]] = self._modules, [], {}
        self._seen: object = None
        self._lock = FileLock(folder / ".lock", timeout=60, mode=PRIVATE)
        self.read_only = not os.access(folder if folder.exists() else folder.parent, os.W_OK)
        with self._locked_for_reading():
            if not self.read_only:
                for abandoned in folder.glob(f"*{PARTIAL}"):  # no writer is active: this process holds the lock
                    abandoned.unlink()
            self._refresh()
            self._drop_superseded()

    def refresh(self) -> bool:
        """Read what other processes have stored or removed; return whether the modules changed."""
        if self._folder_time() == self._seen:
            return False
        before = self._modules
        with self._locked_for_reading():
            self._refresh()
        return self._modules.keys() != before.keys()

    @property
    def size(self) -> int:
        """Total size of the modules on disk, in bytes."""
        return sum(module.size for module in self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._in_order()[1])

    def _in_order(self) -> tuple[dict[str, Module], list[Module], dict[Slot, Module]]:
        """Return the modules by id, in order, and by slot, computed once for each change: every answer asks."""
        found = self._ordered
        if found[0] is not self._modules:
            modules = self._modules
            ordered = in_order(modules.values())
            # Reversed: of two versions that a killed process left, the first in order counts.
            slots = {Slot(m.card.teacher_key, m.card.task): m for m in reversed(ordered)}
            self._ordered = found = modules, ordered, slots
        return found

    def find(self, task: str) -> Module:
        """Return the module of a task by its name, or by `name@teacher` if several teachers use that name.

        `name@teacher` is tried first, so a task whose own name looks like that cannot replace another.
        """
        _, at, teacher = task.rpartition("@")
        literal = not at or not self._teachers().names_someone(teacher)
        matches = self.taught(task) or [m for m in self if literal and m.card.task == task]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise AmbiguousTaskError(
                f"{len(matches)} teachers taught {task!r}; say which: {', '.join(self.selectors(matches))}"
            )
        known = ", ".join(sorted({m.card.task for m in self})) or "none"
        raise UnknownTaskError(f"there is no task {task!r} here; known tasks: {known}")

    def taught(self, task: str) -> list[Module]:
        """Return the modules that `name@teacher` refers to, with the owner's names for teachers."""
        name, at, teacher = task.rpartition("@")
        same = [m for m in self if at and m.card.task == name]
        if not same:
            return []
        keys = self._teachers().meant(teacher, (m.card for m in same))
        return [m for m in same if m.card.teacher_key in keys]

    def selectors(self, modules: Sequence[Module]) -> list[str]:
        """Return an unambiguous `name@teacher` for each of these modules."""
        names = [self._teachers().of(m) for m in modules]
        return [
            f"{m.card.task}@{name if names.count(name) == 1 else m.card.teacher_key}"
            for m, name in zip(modules, names, strict=True)
        ]

    def held(self, task: str, teacher_key: str) -> Module | None:
        """Return the bank's module for this teacher's task, or `None`."""
        return self._in_order()[2].get(Slot(teacher_key, task))

    def check(self, data: bytes) -> Module:
        """Return the module in a file's bytes, without storing it. Raise a `ModuleError` if it cannot be used."""
        return self.check_module(Module.from_bytes(data, specs_for))

    def check_module(self, module: Module) -> Module:
        """Return the module. Raise a `ModuleError` if it does not fit this bank."""
        refuse_odd_names(self._fitting(module).card)  # only for new modules: a bank keeps those it holds
        return module

    def _fitting(self, module: Module) -> Module:
        if module.card.backbone != self.backbone:
            raise BackboneMismatchError(
                f"the module {module.card.task!r} was made for backbone {module.card.backbone} "
                f"({module.card.backbone_name}), this agent's is {self.backbone}; modules work only on the "
                f"backbone that they were learned on; {self._advice(module.card)}"
            )
        self._refuse(module)
        return module

    def _advice(self, card: Card) -> str:
        """Return what to do about a module of another backbone."""
        releases = (release_of().get(card.backbone), release_of().get(self.backbone))
        if releases == ("an earlier", "this"):
            return (
                "it has the calibration of an earlier release; its teacher can move to that of this release with "
                "the command `renew`; ask for it again then"
            )
        if releases == ("this", "an earlier"):
            return (
                "it has the calibration of this release, and this agent keeps that of an earlier one; move this "
                "agent with `skillmesh renew`"
            )
        return "import it into an agent with that backbone"

    def get(self, module_id: str) -> Module | None:
        return self._modules.get(module_id)

    def add(self, data: bytes, checked: Module | None = None) -> Module:
        """Store a module. A newer version replaces the same teacher's older one; an equal one changes nothing.

        If a teacher signs two modules with the same version, the larger id wins, so that all agents keep the same.
        `checked` is the result of `check` for these bytes; passing it avoids reading them twice.
        """
        module = checked or self.check(data)
        with self.locked():
            older = self.held(module.card.task, module.card.teacher_key)
            if older == module:
                return older
            if older is not None and (older.card.version, older.id) > (module.card.version, module.id):
                teacher = self._teachers().name(module.card)
                raise TaskExistsError(
                    f"{teacher}'s task {module.card.task!r} is here in version {older.card.version}; "
                    f"this file is version {module.card.version}; forget the task first to go back to it"
                )
            self._write(module.id, data)
            self._modules = {**self._modules, module.id: module}
            self._drop_superseded()
        return module

    def remove(self, module: Module) -> None:
        with self.locked(refresh=False):
            self._drop(module)
            sync_folder(self.folder)

    def file_of(self, module: Module) -> bytes:
        """Return the bytes of the module's file in the bank."""
        return self._path(module.id).read_bytes()

    def _path(self, module_id: str) -> Path:
        return self.folder / f"{module_id}{SUFFIX}"

    @contextmanager
    def locked(self, refresh: bool = True) -> Iterator[None]:
        """Lock the bank against changes by other processes and read its current state. The lock is reentrant."""
        try:
            make_folder(self.folder)
            self._lock.acquire()
        except (Timeout, OSError) as error:
            raise AgentError(
                f"the bank {self.folder} cannot be locked ({error}); wait for the other command that uses it, "
                "or make the folder writable"
            ) from error
        try:
            if refresh:
                self._refresh()
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _locked_for_reading(self) -> Iterator[None]:
        """Lock out writers while reading. A read-only bank is read without a lock."""
        with nullcontext() if self.read_only else self.locked(refresh=False):
            yield

    def _folder_time(self) -> int:
        """Return the folder's modification time in ns, or 0 if a read-only home has no such folder."""
        return 0 if self.read_only and not self.folder.exists() else self.folder.stat().st_mtime_ns

    def _refresh(self) -> None:
        changed = self._folder_time()
        # File timestamps have a limited resolution: a second change within one step would go unnoticed.
        self._seen = changed if abs(time.time_ns() - changed) > TICK_NS else None
        on_disk = {path.stem: path for path in sorted(self.folder.glob(f"*{SUFFIX}"))}
        modules = {stem: module for stem, module in self._modules.items() if stem in on_disk}
        self.damaged = [damaged for damaged in self.damaged if damaged.path.stem in on_disk]
        known = modules.keys() | {damaged.path.stem for damaged in self.damaged}
        for stem, path in on_disk.items():
            if stem in known:
                continue
            try:
                module = self._fitting(Module.load(path, specs_for))
                if module.id != path.stem:
                    raise ModuleError(
                        f"{path.name} holds the module {module.id}, not that of its name; import it again"
                    )
                modules[module.id] = module
            except ModuleError as error:
                if self.read_only and not path.exists():  # without a lock, another process may have removed it
                    continue
                log.warning("a module in the bank cannot be used: %s: %s", path, error)
                self.damaged.append(Damaged(path, error))
        self._modules = modules

    def _drop_superseded(self) -> None:
        """Keep only the newest version of each teacher's task. A killed process may have left two of them."""
        newest: dict[tuple[str, str], Module] = {}
        for module in sorted(self._modules.values(), key=lambda m: (m.card.version, m.id)):
            key = (module.card.task, module.card.teacher_key)
            if key in newest:
                self._drop(newest[key])
            newest[key] = module

    def _drop(self, module: Module) -> None:
        if not self.read_only:
            self._path(module.id).unlink(missing_ok=True)
        self._modules = {stem: held for stem, held in self._modules.items() if stem != module.id}

    def _write(self, module_id: str, data: bytes) -> None:
        try:
            write_whole(self._path(module_id), data, mode=PRIVATE)
        except OSError as error:
            raise AgentError(
                f"cannot write to the bank {self.folder}: {error.strerror}; nothing was stored; make room or make "
                "the folder writable, then try again"
            ) from error


# Turning a lesson into one of the agent's own modules: card, version, signature, storage, announcement.

CHOSEN = {
    "task": ("the task's name", "give it another name"),
    "teacher": ("the agent's name", "write another into the first line of key.pem in its home"),
    "classes": ("a class's name", "rename its folder"),
    "tags": ("a tag", "choose another"),
    "licence": ("the licence", "choose another"),
    "note": ("the note", "choose another"),
}
"""Card fields that the user chooses, each with its name in messages and the advice if its value is refused."""


class Signing:
    """Makes, signs and stores an agent's own modules, in its name and with its key."""

    def __init__(self, home: Path, config: AgentConfig, identity: Identity, bank: Bank, ledger: Ledger) -> None:
        self._config, self._identity, self._bank, self._ledger = config, identity, bank, ledger
        self._validation = home / VALIDATION
        self.unshared = Unshared(home)

    def own(self, task: str) -> Module | None:
        """Return the module of one of the agent's own tasks, or `None` if the bank does not hold it."""
        return self._bank.held(task, self._identity.public_key)

    def refuse_to_learn(
        self, task: str, user_fields: dict[str, Any], replace: bool, classes: tuple[str, ...] = ("one", "two")
    ) -> None:
        """Raise an error before long work if the task's name is taken or its card would be refused."""
        self._ledger.refuse_unchangeable()
        task = unicodedata.normalize("NFC", task)
        if not replace and self.own(task) is not None:
            raise TaskExistsError(
                f"the task {task!r} is learned already; give it another name, or learn it again with "
                f"{option('replace=True', '--replace')}"
            )
        facts = {
            "task": task,
            "classes": classes,
            "counts": (1,) * len(classes),
            "anchors": (self._config.anchor,),
        }
        self.card(facts | user_fields, dim=1, validation_images=0, temperature=1.0, version=1)

    def refuse_composed(self, task: str) -> None:
        if self.own(task) is not None:
            raise TaskExistsError(
                f"this agent has a task {task!r} already; compose under another name, or replace it "
                f"with {option('replace=True', '--replace')}"
            )

    def keep(
        self,
        lesson: Lesson,
        user_fields: dict[str, Any],
        *,
        replace: bool = False,
        older: Module | None = None,
        sharing: Sharing | None = None,
    ) -> Module:
        """Sign a lesson, put it into the bank in place of the older version, and announce it if it is shared.

        `sharing` is by default that of the older version.
        Other commands may have learned the same task in the meantime. Their module is replaced only if the caller
        asks for it (`replace`), or if this lesson extends exactly that version (`older`).
        """
        task = lesson.facts["task"]
        with self._bank.locked():
            current = self.own(task)
            if older is not None and (current is None or current.id != older.id):
                raise TaskExistsError(
                    f"the task {task!r} was changed by another command meanwhile; nothing was stored; run the "
                    "same command again to extend the new version"
                )
            if older is None and current is not None and not replace:
                raise TaskExistsError(
                    f"another command has learned the task {task!r} meanwhile, and its module stays; give this "
                    f"one another name, or learn it again with {option('replace=True', '--replace')}"
                )
            signed, data = self.sign(lesson, user_fields)
            if sharing is not None:
                # Before it is in the bank, from where a node would announce it.
                self.unshared.choose(task, sharing)
            try:
                module = self._bank.add(data, self._bank.check_module(signed))
            except BaseException:
                remove_validation(self._validation, signed.id)
                raise
            # An unusable file may become usable again, with other settings or restored from a copy.
            unusable = {damaged.path.stem for damaged in self._bank.damaged}
            remove_other_validation(self._validation, {held.id for held in self._bank} | unusable)
            if self.unshared.of(task) == "shared":
                self._announce(module, data)
        return module

    def share(self, module: Module, sharing: Sharing) -> None:
        """Announce one of the agent's own modules, or choose that it is not; one that was announced stays so."""
        card = module.card
        if sharing == "shared":
            self._refuse_unshared_parts(card)
            self.unshared.choose(card.task, sharing)
            self._announce(module, self._bank.file_of(module))
        elif self.unshared.of(card.task) == "shared" and self.announced(module):
            raise AgentError(
                f"{card.task!r} was shared already, and other agents may have it; to take it back, withdraw it "
                f"with {option('agent.withdraw', '`skillmesh withdraw TASK`')}"
            )
        else:
            self.unshared.choose(card.task, sharing)

    def announced(self, module: Module) -> bool:
        """Return whether some version of this own task is announced, and not withdrawn."""
        standing = self._ledger.view().at(Slot(module.card.teacher_key, module.card.task))
        return isinstance(standing, Announcement)

    def _refuse_unshared_parts(self, card: Card) -> None:
        """Refuse to share a task composed of classes of tasks that are not shared: its card names them."""
        sources = (self._bank.get(source) for source, _ in card.origins)
        if parts := sorted({repr(part.card.task) for part in sources if part is not None and self.keeps(part)}):
            raise AgentError(
                f"{card.task!r} is composed of classes of {', '.join(parts)}, not shared; share that first"
            )

    def keeps(self, module: Module) -> bool:
        """Return whether a module is the agent's own and is not to reach others."""
        own = module.card.teacher_key == self._identity.public_key
        return own and self.unshared.of(module.card.task) != "shared"

    def _announce(self, module: Module, data: bytes) -> None:
        try:
            self._ledger.remember(Slot(module.card.teacher_key, module.card.task))
            notice = announce(module.card, module.id, data, self._identity)
            self._ledger.merge([notice], self._identity.public_key)
        except AgentError as error:
            raise AgentError(
                f"the task {module.card.task!r} is stored and can be used, but is not announced to others until a "
                f"node next runs here: {error}"
            ) from error

    def sign(self, lesson: Lesson, user_fields: dict[str, Any]) -> tuple[Module, bytes]:
        """Return a signed module and its bytes. Its validation descriptors are stored in the agent's home."""
        card = self.card(lesson.facts | user_fields, version=self._next_version(lesson.facts["task"]))
        module, data = Module.create(card, lesson.tensors, self._identity, specs_for)
        save_validation(self._validation, module.id, lesson.validation, lesson.validation_labels)
        return module, data

    def card(self, facts: dict[str, Any], **rest: Any) -> Card:
        """Return the card of an own module. Errors in fields that the user chose use the names in `CHOSEN`."""
        try:
            card = self._card(facts, **rest)
            refuse_odd_names(card)
            return card
        except CardError as error:
            if error.field not in CHOSEN:
                raise
            what, advice = CHOSEN[error.field]
            raise AgentError(f"{what} is {error.found}, expected {error.expected}; {advice}") from error

    def _card(self, facts: dict[str, Any], **rest: Any) -> Card:
        return Card(
            **facts,
            **rest,
            backbone=self._bank.backbone,
            backbone_name=self._config.backbone,
            representation=self._config.representation,
            compact=self._config.compact,
            created=now(),
            teacher=self._identity.name,
            teacher_key=self._identity.public_key,
        )

    def _next_version(self, task: str) -> int:
        """Return the next version, also counting forgotten and withdrawn ones: other agents still know those."""
        older = self.own(task)
        slot = Slot(self._identity.public_key, task)
        return max(older.card.version if older else 0, self._ledger.latest_version(slot)) + 1


def fields_of_user(licence: str | None, note: str | None, tags: Sequence[str]) -> dict[str, Any]:
    """Return the card fields that the user gives."""
    return {"licence": licence, "note": note, "tags": tuple(sorted(set(tags))) or None}
