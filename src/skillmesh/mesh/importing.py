"""Importing modules from the mesh: fetch what is wanted, many at once, verify it, vet it and store it in the bank.

known → wanted → fetched → arrived → vetted and stored → answering
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from skillmesh.answering.answering import Mapper
from skillmesh.core import Core
from skillmesh.errors import (
    AgentError,
    FormatVersionError,
    ModuleError,
    OddNameError,
    SkillmeshError,
    TaskExistsError,
)
from skillmesh.mesh.fetch import Fetcher, NobodyError
from skillmesh.mesh.shelf import Chooser, Partial, Shelf, Wants
from skillmesh.mesh.wire import thread
from skillmesh.module import Module
from skillmesh.module.notice import Announcement
from skillmesh.numerics.arrays import Costs, counted
from skillmesh.numerics.process import one_thread
from skillmesh.store.home import VALIDATION, load_validation
from skillmesh.store.ledger import LedgerView
from skillmesh.vetting.quarantine import Quarantine, background_of

# From a file that has arrived to a module that answers: verify it, vet it, store it, and build the mapper.
#
# All of this happens in one background thread, many modules at a time. Questions are answered with the current
# mapper meanwhile; the new one replaces it in one step.

log = logging.getLogger(__name__)


class Arrival(NamedTuple):
    """A complete file whose leaves all have the hashes that its teacher announced."""

    announcement: Announcement
    partial: Partial


class Importer:
    """Imports arrivals into one agent's bank, or puts them into its quarantine."""

    def __init__(self, agent: Core, shelf: Shelf, blame: Callable[[str, str], None]) -> None:
        self._agent, self._shelf, self._blame = agent, shelf, blame
        self._quarantine: tuple[list[str], Quarantine] | None = None
        self._tried: tuple[list[Module], Mapper | None] = ([], None)
        self.slowest = 0.0
        """Longest time so far from verifying a module to answering with it, in seconds."""
        self.costs = Costs()
        """Cost of vetting modules and building mappers so far."""

    def import_all(self, arrivals: Sequence[Arrival]) -> list[Module]:
        """Import and return the modules that pass all checks; the ledger lists the others, with the reason.

        An `OSError` or `AgentError` means that the disk could not store them: the files stay where they are.
        """
        began = time.monotonic()
        files: dict[str, tuple[Arrival, bytes]] = {}
        newcomers: list[Module] = []
        released: list[Module] = []
        for arrival in arrivals:
            data = self._read(arrival)
            module = None if data is None else self._verified(arrival, data)
            if data is None or module is None:
                arrival.partial.remove()
                continue
            files[module.id] = arrival, data
            chosen = self._agent.ledger.view().choices.get(module.id)
            (released if chosen and chosen.choice == "released" else newcomers).append(module)
        with one_thread(), counted() as costs:
            accepted = self._judged(newcomers, files) + released
            stored = self._stored(accepted, files)
            self.rebuild()
        for what, macs in costs.spent.items():
            self.costs.add(what, macs)
        if stored:
            self.slowest = max(self.slowest, time.monotonic() - began)
        return stored

    def rebuild(self) -> None:
        """Build the mapper of the current bank and answer with it from now on.

        A node that was never asked a question only stores modules: it has no mapper until the first question.
        """
        if not len(self._agent.bank) or not self._agent.was_asked:
            self._agent.use_nothing()
        else:
            self._agent.rebuild(self._tried_mapper)
        self._tried = [], None

    def _read(self, arrival: Arrival) -> bytes | None:
        """Return the file, or None if the user or the teacher changed their mind while it was being fetched."""
        if not self._wanted(arrival.announcement):
            return None
        try:
            return arrival.partial.read()
        except FileNotFoundError:  # just removed, for the same reason
            return None

    def _wanted(self, announced: Announcement) -> bool:
        """Return whether it is still announced by a trusted teacher, and is not forgotten, refused or held."""
        view = self._agent.ledger.view()
        standing, chosen = view.known.get(announced.slot), view.choices.get(announced.id)
        return (
            standing is not None
            and standing.digest == announced.digest
            and announced.slot not in view.forgotten
            and (chosen is None or chosen.choice == "released")
        )

    def _verified(self, arrival: Arrival, data: bytes) -> Module | None:
        """Return the module, or None if it is not what its teacher announced and signed; the ledger notes why."""
        announced = arrival.announcement
        try:
            if hashlib.sha256(data).hexdigest() != announced.sha256:
                raise ModuleError(
                    "its leaves are as announced but the whole file is not: the teacher contradicts itself"
                )
            module = self._agent.bank.check(data)
            if module.id != announced.id or not announced.describes(module.card):
                raise ModuleError("the card is not what its teacher announced")
        except ModuleError as error:
            reason = f"{type(error).__name__}: {error}"
            self._agent.ledger.choose(announced.digest, "refused", reason)
            log.warning("refused %r by %s: %s", announced.task, self._agent.teachers.name(announced), reason)
            if not isinstance(error, FormatVersionError | OddNameError):  # made by another release, not a lie
                self._blame(announced.teacher_key, f"announced {announced.task!r}, but {reason}")
            return None
        return module

    def _judged(self, newcomers: list[Module], files: dict[str, tuple[Arrival, bytes]]) -> list[Module]:
        if not newcomers:
            return []
        in_use = self._agent.in_use()
        live = list(self._agent.bank)
        mapper = self._agent.mapper()[1] if live and in_use == live else None
        verdict = self._trial(live).judge(live, newcomers, mapper)
        self._tried = verdict.modules, verdict.mapper
        for held in verdict.held:
            self._shelf.hold(held.module.id, files[held.module.id][1], held.reason)
            card = held.module.card
            log.warning("held back %r by %s: %s", card.task, self._agent.teachers.name(card), held.reason)
        for module in newcomers:
            if module not in verdict.accepted:  # held, or imported already by another command
                files[module.id][0].partial.remove()
        return list(verdict.accepted)

    def _stored(self, accepted: list[Module], files: dict[str, tuple[Arrival, bytes]]) -> list[Module]:
        stored = []
        for module in accepted:
            arrival, data = files[module.id]
            try:
                if self._wanted(arrival.announcement):
                    self._agent.bank.add(data, module)
                    stored.append(module)
                if not self._wanted(arrival.announcement):  # forgotten or withdrawn at this moment
                    self._agent.bank.remove(module)
            except TaskExistsError:  # a newer version was imported meanwhile
                pass
            arrival.partial.remove()
        return stored

    def _tried_mapper(self, modules: list[Module]) -> Mapper:
        """Return the mapper that vetting has built if it is of exactly these modules, or else a new one."""
        tried, mapper = self._tried
        if mapper is not None and tried == modules:
            return mapper
        config = self._agent.config
        return Mapper(modules, config.anchor, self._agent.prior, config.unanswered)

    def _trial(self, live: list[Module]) -> Quarantine:
        """Return the tests for new modules; they are rebuilt when the agent has learned a task itself."""
        agent = self._agent
        own = [module for module in live if module.card.teacher_key == agent.identity.public_key]
        ids = [module.id for module in own]
        if self._quarantine is None or self._quarantine[0] != ids:
            background = background_of(agent.calibration, agent.config.representation, agent.config.compact)
            images = load_validation(agent.home / VALIDATION, own)
            config = agent.config
            self._quarantine = ids, Quarantine(agent.prior, config.anchor, background, images, config.unanswered)
        return self._quarantine[1]


MOST_UNDER_WAY = 256
BATCH = 32
"""Most modules that are vetted and imported together."""
LINGER = 1.5
"""Seconds for which an arrived file waits for others that are being fetched."""
LOOK = 0.5
RETRY, LONGEST = 1.0, 60.0
"""First and longest wait, in seconds, before a module that no peer had is requested again; it doubles."""
IN_VAIN = 2.0
"""Seconds before another module is requested of a teacher whose last module no peer had."""
ENOUGH = 3
"""Number of failed attempts after which no reachable peer is assumed to have a module."""
RETRY_DISK = 3.0
TROUBLE = 20.0
"""Seconds for which a problem is shown if it does not recur: longer than the wait before any retry."""


class Importing:
    """Fetches and imports the modules that an agent knows of and wants."""

    def __init__(
        self, agent: Core, chooser: Chooser, fetcher: Fetcher, importer: Importer, done: Callable[[], None]
    ) -> None:
        """Create the importing side of a node; `done` is called whenever an import has succeeded or failed."""
        self._agent, self._chooser, self._done = agent, chooser, done
        self.fetcher, self.importer = fetcher, importer
        self.wants = Wants([], {})
        self.under_way: set[str] = set()
        """Digests of the modules that are being fetched, or have arrived and wait."""
        self._trouble: tuple[str, float] | None = None
        self._retry_at: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        """By module, the number of times that it was requested and no peer had it."""
        self._shares: dict[str, tuple[int, float]] = {}
        """By teacher, how many of its modules may be fetched at once, and the earliest time for the next."""
        self._arrivals: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._stopping = threading.Event()

    def start(self, when_over: contextlib.ExitStack) -> None:
        """Work until `when_over` is closed; the mapper of the existing bank is built first."""
        self.fetcher.start(when_over)
        self.rebuild_soon()
        thread("import", self._import_arrivals, when_over)
        when_over.callback(self._stopping.set)

    @property
    def trouble(self) -> str | None:
        """Problem that keeps the node from importing; None once it is solved or has not recurred for a while."""
        if self._trouble is None or self._trouble[1] < time.monotonic():
            return None
        return self._trouble[0]

    @property
    def idle(self) -> bool:
        """Whether nothing is being fetched, and no reachable peer seems to have any module still wanted."""
        sought = [a for a in self.wants.wanted if self._tries.get(a.digest, 0) < ENOUGH]
        return not sought and not self.under_way and self._arrivals.empty()

    def fetch_wanted(self, view: LedgerView) -> None:
        """Start fetching the modules that are wanted and not being fetched yet."""
        self.wants = self._chooser.choose(view)
        now, wanted = time.monotonic(), {a.digest for a in self.wants.wanted}
        self._retry_at = {digest: at for digest, at in list(self._retry_at.items()) if digest in wanted}
        teachers = {a.teacher_key for a in self.wants.wanted}
        self._shares = {teacher: share for teacher, share in list(self._shares.items()) if teacher in teachers}
        self._tries = {digest: tries for digest, tries in list(self._tries.items()) if digest in wanted}
        due = [a for a in self.wants.wanted if a.digest not in self.under_way]
        due = [a for a in due if self._retry_at.get(a.digest, 0.0) <= now]
        for announcement in self._in_turn(due)[: MOST_UNDER_WAY - len(self.under_way)]:
            self.under_way.add(announcement.digest)
            self._chooser.fetching(announcement)
            self.fetcher.fetch(announcement, partial(self._fetched, announcement))

    def _in_turn(self, due: list[Announcement]) -> list[Announcement]:
        """Return the modules to fetch next, sorted so that every teacher gets its share.

        A teacher starts with one module at a time, and its limit doubles with each that arrives: a teacher that
        announces many modules which no peer has takes no more capacity than others.
        """
        random.shuffle(due)  # so that agents do not all fetch in the same order
        due.sort(key=lambda a: self._tries.get(a.digest, 0))
        now = time.monotonic()
        under_way = Counter(a.teacher_key for a in self.wants.wanted if a.digest in self.under_way)
        chosen = []
        for announcement in due:
            teacher = announcement.teacher_key
            most, not_before = self._shares.get(teacher, (1, 0.0))
            if under_way[teacher] < most and not_before <= now:
                chosen.append((under_way[teacher], announcement))
                under_way[teacher] += 1
        return [announcement for _, announcement in sorted(chosen, key=itemgetter(0))]

    def _share(self, teacher: str, arrived: bool) -> None:
        """Raise a teacher's limit if its module arrived, lower it if no peer had it."""
        most, _ = self._shares.get(teacher, (1, 0.0))
        if arrived:
            self._shares[teacher] = min(2 * most, MOST_UNDER_WAY), 0.0
        else:
            self._shares[teacher] = max(most // 2, 1), time.monotonic() + (IN_VAIN if most == 1 else 0.0)

    def rebuild_soon(self) -> None:
        """Have the mapper rebuilt: another command has changed the bank."""
        self._arrivals.put(None)

    def try_again(self) -> None:
        """Request everything again without waiting: a new peer has appeared."""
        self._retry_at, self._tries = {}, {}

    def in_trouble(self, error: Exception) -> None:
        reason = str(error) if isinstance(error, SkillmeshError) else f"{type(error).__name__}: {error}"
        if reason != self.trouble:
            log.error("%s", reason)
        self._trouble = reason, time.monotonic() + TROUBLE

    def _fetched(self, announcement: Announcement, outcome: Partial | Exception) -> None:
        self._share(announcement.teacher_key, isinstance(outcome, Partial))
        if isinstance(outcome, Partial):
            self._arrivals.put(Arrival(announcement, outcome))
            self._done()
            return
        wait = RETRY_DISK
        if isinstance(outcome, NobodyError):
            tries = self._tries[announcement.digest] = self._tries.get(announcement.digest, 0) + 1
            wait = min(RETRY * 2 ** min(tries - 1, 10), LONGEST)
        elif isinstance(outcome, OSError | AgentError):
            self.in_trouble(outcome)
        else:
            log.error("%r could not be fetched", announcement.task, exc_info=outcome)
        self._later(announcement, wait)

    def _import_arrivals(self) -> None:
        while not self._stopping.is_set():
            try:
                self._import(self._next_arrivals())
            except queue.Empty:
                pass
            except Exception as error:  # without this thread nothing would be imported any more
                self.in_trouble(error)

    def _next_arrivals(self) -> list[Arrival]:
        """Wait for one file, then for others still being fetched: vetting them together costs one mapper."""
        batch = [self._arrivals.get(timeout=LOOK)]
        deadline = time.monotonic() + LINGER
        with contextlib.suppress(queue.Empty):
            while len(batch) < BATCH:
                more = len(self.under_way) > sum(arrival is not None for arrival in batch)
                left = deadline - time.monotonic() if more else 0
                batch.append(self._arrivals.get(timeout=left) if left > 0 else self._arrivals.get_nowait())
        return [arrival for arrival in batch if arrival is not None]

    def _import(self, arrivals: list[Arrival]) -> None:
        try:
            for module in self.importer.import_all(arrivals):
                log.info("imported %r by %s", module.card.task, self._agent.teachers.name(module.card))
            if arrivals:
                self._trouble = None
            for arrival in arrivals:
                self.under_way.discard(arrival.announcement.digest)
        except (AgentError, OSError, MemoryError) as error:
            self._put_off(arrivals, error)
        except Exception as error:
            log.exception("modules could not be imported")
            self._import_alone(arrivals, error)
        self._done()

    def _import_alone(self, arrivals: list[Arrival], error: Exception) -> None:
        """Import arrivals one by one to find the one on which vetting failed, and refuse only that one."""
        if len(arrivals) > 1:
            for arrival in arrivals:
                self._import([arrival])
            return
        try:
            for arrival in arrivals:
                self._agent.ledger.choose(arrival.announcement.digest, "refused", f"vetting failed with {error!r}")
                arrival.partial.remove()
                self.under_way.discard(arrival.announcement.digest)
        except (AgentError, OSError) as trouble:
            self._put_off(arrivals, trouble)

    def _put_off(self, arrivals: list[Arrival], error: Exception) -> None:
        self.in_trouble(error)
        for arrival in arrivals:
            self._later(arrival.announcement, RETRY_DISK)

    def _later(self, announcement: Announcement, seconds: float) -> None:
        self._retry_at[announcement.digest] = time.monotonic() + seconds
        self.under_way.discard(announcement.digest)
