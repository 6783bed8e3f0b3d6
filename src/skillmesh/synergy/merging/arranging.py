"""Arranging: the tasks that an agent's bank and links make, found once for each change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from skillmesh.backbone.calibration import Prior
from skillmesh.module import Module
from skillmesh.module.joint import MergedTask
from skillmesh.module.notice import Link
from skillmesh.module.teachers import Signed, claimed
from skillmesh.numerics.threads import one_thread
from skillmesh.store import validation

log = logging.getLogger(__name__)


class Arranging:
    """What an agent's links make of its modules. Several threads may ask at once."""

    def __init__(
        self,
        home: Path,
        own_key: str,
        prior: Callable[[], Prior],
        name_of: Callable[[Signed], str] = claimed,
    ) -> None:
        self._folder = home / validation.FOLDER
        self._own_key, self._prior, self._name_of = own_key, prior, name_of
        self._last: tuple[object, list[Module]] = (None, [])
        self._own: list[str] = []
        self._remembered: dict[tuple[str, ...], MergedTask | str] = {}

    def tasks(self, modules: Sequence[Module], links: Sequence[Link]) -> list[Module]:
        """The bank's tasks in their order."""
        state = [module.id for module in modules], [link.digest for link in links]
        last = self._last
        if last[0] == state:
            return last[1]
        with one_thread():
            if self._last[0] != state:
                self._last = state, self._arranged(modules, links)
            return self._last[1]

    def if_linked(self, modules: Sequence[Module], links: Sequence[Link]) -> list[Module]:
        """What they would be with other links; `why_not` then speaks of these, until the bank or links change."""
        with one_thread():
            tasks = self._arranged(modules, links)
            self._last = (None, [])
            return tasks

    def why_not(self, link: Link) -> str | None:
        """Why a link that was looked at joins nothing here."""
        reasons = [made for key, made in self._remembered.items() if key[0] == link.digest]
        return next((reason for reason in reasons if isinstance(reason, str)), None)

    def _arranged(self, modules: Sequence[Module], links: Sequence[Link]) -> list[Module]:
        from skillmesh.synergy.merging.joining import arranged

        own = [module for module in modules if module.card.teacher_key == self._own_key]
        if self._own != [module.id for module in own]:  # there are other images to try joints on
            self._own, self._remembered = [module.id for module in own], {}
        return arranged(modules, links, self._prior(), lambda joint: self._harm(joint, own), self._remembered)

    def _harm(self, joint: MergedTask, own: Sequence[Module]) -> str | None:
        """Why a joint with a part of the agent's own does not act here, if it does not."""
        if all(part.card.teacher_key != self._own_key for part in joint.parts):
            return None
        from skillmesh.synergy.merging.trying import harm_of

        reason = harm_of(joint, validation.load(self._folder, own), self._prior())
        if reason is not None:
            log.warning(
                "the link %r by %s does not act here: %s", joint.link.task, self._name_of(joint.link), reason
            )
        return reason
