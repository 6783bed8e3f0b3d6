"""From a file that has arrived to a module that answers: verify, try in quarantine, store, and build the mapper.

All of it happens in one background thread, many modules at a time, while answers go on from the mapper that is in
use; the new one takes its place in one step.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from skillmesh.answering.mapper import Mapper
from skillmesh.core import Core
from skillmesh.errors import FormatVersionError, ModuleError, OddNameError, TaskExistsError
from skillmesh.mesh.partial import Partial
from skillmesh.mesh.shelf import Shelf
from skillmesh.module import Module
from skillmesh.module.notice import Announcement
from skillmesh.numerics.costs import Costs, counted
from skillmesh.numerics.threads import one_thread
from skillmesh.store import validation
from skillmesh.vetting.quarantine import Quarantine, background_of

log = logging.getLogger(__name__)


class Arrival(NamedTuple):
    """A file that is complete, leaf by leaf as its teacher announced it."""

    announcement: Announcement
    partial: Partial


class Adopter:
    """Takes arrivals into one agent's bank, or into its quarantine."""

    def __init__(self, agent: Core, shelf: Shelf, blame: Callable[[str, str], None]) -> None:
        self._agent, self._shelf, self._blame = agent, shelf, blame
        self._quarantine: tuple[list[str], Quarantine] | None = None
        self._tried: tuple[list[Module], Mapper | None] = ([], None)
        self.slowest = 0.0
        """Seconds from verifying a module to answering with it, at most so far."""
        self.costs = Costs()
        """What trying modules and building mappers has cost so far."""

    def adopt(self, arrivals: Sequence[Arrival]) -> list[Module]:
        """Take in what is sound and passes; what is refused or held is in the ledger with its reason.

        An `OSError` or `AgentError` means that the disk did not take it: the files stay where they are.
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
        """Build the mapper of the bank as it is and answer from it from now on.

        A node that was never asked anything only carries modules: it keeps no mapper until the first question.
        """
        if not len(self._agent.bank) or not self._agent.was_asked:
            self._agent.use_nothing()
        elif self._agent.in_use() != (modules := self._agent.arranged()):
            self._agent.use(modules, self._tried_mapper(modules))
        self._tried = [], None

    def _read(self, arrival: Arrival) -> bytes | None:
        """The file; None where the user or the teacher has changed their mind while it was on its way."""
        if not self._wanted(arrival.announcement):
            return None
        try:
            return arrival.partial.read()
        except FileNotFoundError:  # tidied away a moment ago, for the same reason
            return None

    def _wanted(self, announced: Announcement) -> bool:
        """Whether it still stands (not replaced, not withdrawn, its teacher trusted) and was not put away here."""
        view = self._agent.ledger.view()
        standing, chosen = view.known.get(announced.slot), view.choices.get(announced.id)
        return (
            standing is not None
            and standing.digest == announced.digest
            and announced.slot not in view.forgotten
            and (chosen is None or chosen.choice == "released")
        )

    def _verified(self, arrival: Arrival, data: bytes) -> Module | None:
        """The module, or None where its teacher announced something else than it made, and signed that."""
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
            if not isinstance(error, FormatVersionError | OddNameError):  # another release is no lie
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
            if module not in verdict.accepted:  # held, or here already by other hands
                files[module.id][0].partial.remove()
        return list(verdict.accepted)

    def _stored(self, accepted: list[Module], files: dict[str, tuple[Arrival, bytes]]) -> list[Module]:
        stored = []
        for module in accepted:
            arrival, data = files[module.id]
            try:
                if self._wanted(arrival.announcement):
                    self._agent.bank.add(data)
                    stored.append(module)
                if not self._wanted(arrival.announcement):  # forgotten or withdrawn in this very moment
                    self._agent.bank.remove(module)
            except TaskExistsError:  # a newer version was imported meanwhile
                pass
            arrival.partial.remove()
        return stored

    def _tried_mapper(self, modules: list[Module]) -> Mapper:
        """The mapper that the trial has built, where it is of just these modules."""
        tried, mapper = self._tried
        if mapper is not None and tried == modules:
            return mapper
        return Mapper(modules, self._agent.config.mapper, self._agent.prior)

    def _trial(self, live: list[Module]) -> Quarantine:
        """The tests that newcomers must pass; made anew when the agent has learned something itself."""
        agent = self._agent
        own = [module for module in live if module.card.teacher_key == agent.identity.public_key]
        ids = [module.id for module in own]
        if self._quarantine is None or self._quarantine[0] != ids:
            background = background_of(agent.calibration, agent.config.representation, agent.config.compact)
            images = validation.load(agent.home / validation.FOLDER, own)
            self._quarantine = ids, Quarantine(agent.prior, agent.config.mapper, background, images)
        return self._quarantine[1]
