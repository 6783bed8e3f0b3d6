"""Links: who may say that modules are parts of one task, and the tasks that an agent's links make."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skillmesh.anchors import KINDS, able_kinds
from skillmesh.backbone.calibration import Prior
from skillmesh.errors import AgentError, SettingsMismatchError, UnknownTaskError, option
from skillmesh.module import Module, in_order
from skillmesh.module.notice import LINK, Link, MergedTask, Slot, link, parts_of
from skillmesh.module.teachers import Signed, claimed, odd_notice, odd_task
from skillmesh.numerics.process import one_thread
from skillmesh.store.home import VALIDATION, OwnValidation, load_validation
from skillmesh.vetting.bank_trial import OWN_IMAGES, TASK_LOSS, BankTrial, Result, worse
from skillmesh.vetting.quarantine import disputed, shared_kinds

if TYPE_CHECKING:
    from skillmesh.synergy.holder import Holder


def acting_links(agent: Holder) -> list[Link]:
    """The links that may act here: of makers that the agent trusts, neither withdrawn nor put away by its user."""
    view = agent.ledger.view()
    return [
        made
        for slot, made in view.links.items()
        if not made.withdrawn and slot not in view.forgotten and odd_notice(made) is None
    ]


def make_link(agent: Holder, tasks: Sequence[str], name: str | None = None) -> Link:
    """Link tasks that the agent holds; a task that is merged already brings all its parts."""
    from skillmesh.synergy.merging import misfit

    parts = {part.id: part for task in tasks for part in parts_of(agent.find(task))}
    if len(parts) < 2:
        raise UnknownTaskError(
            f"{', '.join(map(repr, tasks)) or 'nothing'} is one module, expected two or more of different "
            "teachers; name them as TASK@TEACHER"
        )
    if not KINDS[agent.config.anchor].adds_up:
        able = able_kinds("adds_up")
        raise SettingsMismatchError(
            f"this agent's anchors are {agent.config.anchor}, expected {' or '.join(able)}: only these add "
            f"up; merge with an agent that was made by `skillmesh init --anchor {able[0]}`"
        )
    reason = misfit(in_order(parts.values()), agent.prior, agent.teachers.name)
    if reason is not None:
        raise SettingsMismatchError(f"these modules are no parts of one task: {reason}")
    called = name or agent.find(tasks[0]).card.task
    if (fault := odd_task(called)) is not None:
        raise AgentError(f"the merged task's name is {called!r}, which {fault}; give it another name")
    slot = Slot(agent.identity.public_key, LINK + called)
    standing = agent.ledger.view().links.get(slot)
    if standing is not None and set(standing.parts) == parts.keys():
        made = standing  # said already: nobody needs to hear it as news
    else:
        made = link(called, agent.ledger.latest_version(slot) + 1, parts, agent.identity)
    _refuse_idle(agent, made)
    agent.ledger.remember(slot)
    agent.ledger.merge([made], agent.identity.public_key)
    return made


def _refuse_idle(agent: Holder, made: Link) -> None:
    """Publish no link that would do nothing here."""
    others = [link for link in acting_links(agent) if link.slot != made.slot]
    tasks = [m for m in agent.merger.if_linked(list(agent.bank), [*others, made]) if isinstance(m, MergedTask)]
    if any(merged.link.digest == made.digest for merged in tasks):
        return
    if (reason := agent.merger.why_not(made)) is not None:
        raise SettingsMismatchError(f"merged they would answer worse than apart: {reason}")
    stands = next((merged.link for merged in tasks if {part.id for part in merged.parts} & set(made.parts)), None)
    if stands is None:
        raise SettingsMismatchError(
            "too many links of this agent join nothing; end one with "
            + option("agent.unmerge", "`skillmesh merge --undo TASK`")
        )
    maker = agent.teachers.name(stands)
    raise SettingsMismatchError(
        f"some of these modules are parts of {stands.task!r} already, as a link by {maker} says, which takes "
        f"precedence; use that task, or take it apart first with "
        + option(f"agent.unmerge({stands.task!r})", f"`skillmesh merge --undo {stands.task!r}`")
    )


def unmake_link(agent: Holder, name: str, reason: str | None = None) -> Link:
    """End a link of one's own for everyone; another's is only put away here."""
    merged = [merged for merged in agent.merged() if merged.card.task == name]
    own = agent.ledger.view().links.get(Slot(agent.identity.public_key, LINK + name))
    if own is not None and not own.withdrawn:
        ended = link(name, own.version + 1, (), agent.identity, reason)
        agent.ledger.merge([ended], agent.identity.public_key)
        return ended
    if not merged:
        known = ", ".join(merged.card.task for merged in agent.merged()) or "none"
        raise UnknownTaskError(f"there is no merged task {name!r} here; merged tasks: {known}")
    agent.ledger.forget(merged[0].link.slot)
    return merged[0].link


# Trying: a merged task must not harm what the agent knows for certain, its own validation images.
#
# Parts passed quarantine each by itself; what a link makes of them is one more thing to answer from. Where a part
# is the agent's own, its images are answered by its own tasks alone, and with the merged task in its place. The
# bounds are those of quarantine (`vetting/bank_trial.py`), for each task and for each class. Two names that were
# exchanged would drown among many that were not, and classes have few images: so of classes of which anchors say
# that other parts have another idea, less is allowed.

DISPUTED_IMAGES, DISPUTED_SHARE = 2, 0.5
"""Of classes of which parts have different ideas so many right answers may be lost, or such a share of them."""


def harm_of(merged: MergedTask, own: Sequence[OwnValidation], prior: Prior) -> str | None:
    """Say how an agent that kept these images is worse for a merged task, if it is; `own` has its parts too."""
    nothing = np.empty((0, merged.card.dim), dtype=np.float32)
    parts = {part.id: index for index, part in enumerate(merged.parts)}
    tasks = [kept.module for kept in own]
    trial = BankTrial(prior, shared_kinds([merged, *tasks])[0], nothing, own)
    others = [module for module in tasks if module.id not in parts]
    together = {m.id: disputed(merged.parts, parts[m.id], prior) for m in tasks if m.id in parts}
    before, after = (trial.own_results(bank, together) for bank in (tasks, [*others, merged]))
    complaints = (
        _complaint(module, before[module.id], after[module.id]) for module in tasks if module.id in before
    )
    return next((complaint for complaint in complaints if complaint is not None), None)


def _complaint(module: Module, before: list[Result], after: list[Result]) -> str | None:
    """Compare one task's results: in all and by class, and last those of disputed classes."""
    what = f"{OWN_IMAGES} of {module.card.task!r}"
    *pairs, (old, new) = zip(before, after, strict=True)
    for earlier, later in pairs:
        if (complaint := worse(earlier, later, TASK_LOSS, what)) is not None:
            return complaint
    allowed = int(max(DISPUTED_IMAGES, DISPUTED_SHARE * old.right))
    if old.right - new.right > allowed:
        return (
            f"of {what} whose classes other parts have another idea of, {new.right} instead of {old.right} of "
            f"{old.images} are right with it, expected at most {allowed} fewer"
        )
    return None


# TaskMerger: the tasks that an agent's bank and links make, found once for each change.

log = logging.getLogger(__name__)


class TaskMerger:
    """What an agent's links make of its modules. Several threads may ask at once."""

    def __init__(
        self,
        home: Path,
        own_key: str,
        prior: Callable[[], Prior],
        name_of: Callable[[Signed], str] = claimed,
    ) -> None:
        self._folder = home / VALIDATION
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
                self._last = state, self._merged(modules, links)
            return self._last[1]

    def if_linked(self, modules: Sequence[Module], links: Sequence[Link]) -> list[Module]:
        """What they would be with other links; `why_not` then speaks of these, until the bank or links change."""
        with one_thread():
            tasks = self._merged(modules, links)
            self._last = (None, [])
            return tasks

    def why_not(self, link: Link) -> str | None:
        """Why a link that was looked at joins nothing here."""
        reasons = [made for key, made in self._remembered.items() if key[0] == link.digest]
        return next((reason for reason in reasons if isinstance(reason, str)), None)

    def _merged(self, modules: Sequence[Module], links: Sequence[Link]) -> list[Module]:
        from skillmesh.synergy.merging import with_merged_tasks

        own = [module for module in modules if module.card.teacher_key == self._own_key]
        if self._own != [module.id for module in own]:  # there are other images to try merged tasks on
            self._own, self._remembered = [module.id for module in own], {}
        return with_merged_tasks(
            modules, links, self._prior(), lambda merged: self._harm(merged, own), self._remembered
        )

    def _harm(self, merged: MergedTask, own: Sequence[Module]) -> str | None:
        """Why a merged task with a part of the agent's own does not act here, if it does not."""
        if all(part.card.teacher_key != self._own_key for part in merged.parts):
            return None

        reason = harm_of(merged, load_validation(self._folder, own), self._prior())
        if reason is not None:
            log.warning(
                "the link %r by %s does not act here: %s", merged.link.task, self._name_of(merged.link), reason
            )
        return reason
