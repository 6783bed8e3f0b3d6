"""What an agent wants to have of all that it knows of, and why not the rest."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from skillmesh.core import Core
from skillmesh.mesh.shelf import Shelf
from skillmesh.module.notice import Announcement
from skillmesh.module.teachers import odd_notice
from skillmesh.store.ledger import LedgerView
from skillmesh.store.mesh_settings import MeshSettings

HOUR = 3600.0


class Wants(NamedTuple):
    """Announced modules that the agent does not hold."""

    wanted: list[Announcement]
    declined: Mapping[str, str]
    """By the announcement's digest, why it is not fetched."""


class Chooser:
    """Decides what to fetch, by the user's settings and by what has been decided before."""

    def __init__(self, agent: Core, settings: MeshSettings, shelf: Shelf) -> None:
        self._agent, self._settings, self._shelf = agent, settings, shelf
        self._begun: dict[str, dict[str, float]] = {}
        """For each teacher, the modules that were begun in the last hour, and when."""
        self._guard = threading.Lock()

    def choose(self, view: LedgerView) -> Wants:
        wanted: list[Announcement] = []
        declined: dict[str, str] = {}
        held = {(m.card.teacher_key, m.card.task): (m.card.version, m.id) for m in self._agent.bank}
        room = self._settings.quota_bytes - self._agent.bank.size - self._shelf.size
        come = self._shelf.come()
        begun = self._begun_this_hour()
        for announcement in view.known.values():
            if not isinstance(announcement, Announcement):
                continue
            if held.get(announcement.slot, (0, "")) >= (announcement.version, announcement.id):
                continue
            ours = begun.setdefault(announcement.teacher_key, set())
            to_come = announcement.size - come.get(announcement.digest, 0)
            reason = (
                self._decided(announcement, view)
                or self._unfit(announcement)
                or self._limited(announcement, to_come, room, ours)
            )
            if reason is None:
                room -= to_come
                ours.add(announcement.digest)
                wanted.append(announcement)
            else:
                declined[announcement.digest] = reason
        return Wants(wanted, declined)

    def fetching(self, announcement: Announcement) -> None:
        """Count a module whose fetch begins, for the limit per teacher and hour; trying again costs nothing."""
        with self._guard:
            self._begun.setdefault(announcement.teacher_key, {}).setdefault(announcement.digest, time.monotonic())

    def _begun_this_hour(self) -> dict[str, set[str]]:
        since = time.monotonic() - HOUR
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
            return f"its teacher is banned: {banned}; `skillmesh peers --unban {key}` forgives"
        if announcement.slot in view.forgotten:
            return f"forgotten here; `skillmesh remember {shlex.quote(announcement.task)}` takes it again"
        for name in (announcement.digest, announcement.id):  # what it says of itself, and what it says it is
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
        theirs = (announcement.representation, announcement.compact, config.mapper in announcement.anchors)
        if theirs != (config.representation, config.compact, True):
            return "made with other settings (representation, compact or mapper) than this agent's"
        if not self.interesting(announcement):
            return "not among this agent's interests"
        return None

    def _limited(self, announcement: Announcement, to_come: int, room: int, begun: set[str]) -> str | None:
        most = self._settings.max_module_bytes
        if announcement.size > most:
            return f"{announcement.size:,} bytes, more than max_module_bytes = {most:,}"
        if announcement.digest not in begun and len(begun) >= self._settings.modules_per_hour:
            teacher = self._agent.teachers.name(announcement)
            return f"{teacher} has had its {self._settings.modules_per_hour} modules of this hour; later"
        if to_come > room:
            return f"the quota of {self._settings.quota_bytes:,} bytes is used up; raise quota_bytes"
        return None

    def interesting(self, announcement: Announcement) -> bool:
        tags = {f"tag:{tag}" for tag in announcement.tags or ()}
        patterns = self._settings.interests
        return not patterns or any(p in tags or fnmatchcase(announcement.task, p) for p in patterns)
