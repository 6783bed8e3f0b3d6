"""Links, which declare modules to be parts of one task: making and ending them, and the tasks they merge."""

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
    """Return the links in force: by trusted makers, neither withdrawn nor put away by the agent's user."""
    view = agent.ledger.view()
    return [
        link
        for slot, link in view.links.items()
        if not link.withdrawn and slot not in view.forgotten and odd_notice(link) is None
    ]


def make_link(agent: Holder, tasks: Sequence[str], name: str | None = None) -> Link:
    """Link tasks in the agent's bank and return the link; a task that is merged already brings all its parts."""
    from skillmesh.synergy.merging import misfit

    parts = {part.id: part for task in tasks for part in parts_of(agent.find(task))}
    if len(parts) < 2:
        raise UnknownTaskError(
            f"{', '.join(map(repr, tasks)) or 'nothing'} names fewer than two modules, expected two or more of "
            "different teachers; name them as TASK@TEACHER"
        )
    if not KINDS[agent.config.anchor].adds_up:
        able = able_kinds("adds_up")
        raise SettingsMismatchError(
            f"this agent's anchors are {agent.config.anchor}, expected {' or '.join(able)}: only these can be "
            f"merged; merge with an agent that was made by `skillmesh init --anchor {able[0]}`"
        )
    reason = misfit(in_order(parts.values()), agent.prior, agent.teachers.name)
    if reason is not None:
        raise SettingsMismatchError(f"these modules cannot be merged: {reason}")
    task = name or agent.find(tasks[0]).card.task
    if (fault := odd_task(task)) is not None:
        raise AgentError(f"the merged task's name is {task!r}, which {fault}; give it another name")
    slot = Slot(agent.identity.public_key, LINK + task)
    current = agent.ledger.view().links.get(slot)
    if current is not None and set(current.parts) == parts.keys():
        new_link = current  # published already: a new version would say the same
    else:
        new_link = link(task, agent.ledger.latest_version(slot) + 1, parts, agent.identity)
    _refuse_ineffective(agent, new_link)
    agent.ledger.remember(slot)
    agent.ledger.merge([new_link], agent.identity.public_key)
    return new_link


def _refuse_ineffective(agent: Holder, new_link: Link) -> None:
    """Raise `SettingsMismatchError` if the link would merge nothing in this agent's bank."""
    links = [link for link in acting_links(agent) if link.slot != new_link.slot]
    tasks = agent.merger.if_linked(list(agent.bank), [*links, new_link])
    merged_tasks = [task for task in tasks if isinstance(task, MergedTask)]
    if any(merged.link.digest == new_link.digest for merged in merged_tasks):
        return
    if (reason := agent.merger.why_not(new_link)) is not None:
        raise SettingsMismatchError(f"the merged task would answer worse than its parts: {reason}")
    ids = set(new_link.parts)
    other = next((merged.link for merged in merged_tasks if ids & {part.id for part in merged.parts}), None)
    if other is None:
        raise SettingsMismatchError(
            "this agent has too many links that merge nothing; end one with "
            + option("agent.unmerge", "`skillmesh merge --undo TASK`")
        )
    maker = agent.teachers.name(other)
    raise SettingsMismatchError(
        f"some of these modules are already parts of {other.task!r}, by a link of {maker}, which takes "
        f"precedence; use that task, or separate it first with "
        + option(f"agent.unmerge({other.task!r})", f"`skillmesh merge --undo {other.task!r}`")
    )


def unmake_link(agent: Holder, name: str, reason: str | None = None) -> Link:
    """End the agent's own link for all agents; a link by another maker is put away for this agent only."""
    merged = [merged for merged in agent.merged() if merged.card.task == name]
    own = agent.ledger.view().links.get(Slot(agent.identity.public_key, LINK + name))
    if own is not None and not own.withdrawn:
        return end_link(agent, own, reason)
    if not merged:
        known = ", ".join(merged.card.task for merged in agent.merged()) or "none"
        raise UnknownTaskError(f"there is no merged task {name!r} here; merged tasks: {known}")
    return end_link(agent, merged[0].link)


def end_link(agent: Holder, made: Link, reason: str | None = None) -> Link:
    """End a link for all agents if it is the agent's own, or else for this agent only."""
    if made.teacher_key != agent.identity.public_key:
        agent.ledger.forget(made.slot)
        return made
    ended = link(made.task, made.version + 1, (), agent.identity, reason)
    agent.ledger.merge([ended], agent.identity.public_key)
    return ended


# The trial of a merged task: it must not harm the answers to the agent's own validation images.
#
# Each part passed quarantine by itself, but the merged task is something new that answers. If a part is the
# agent's own, its images are answered twice: by its own tasks alone, and with the merged task in its place.
# The bounds are those of quarantine (`vetting/bank_trial.py`), for each task and for each class. Two swapped names
# would go unnoticed among many correct ones, and classes have few images. So the bounds are tighter for disputed
# classes: those that, by the anchors, lie elsewhere in other parts.

DISPUTED_IMAGES, DISPUTED_SHARE = 2, 0.5
"""Number, or share if that is more, of right answers that may be lost on disputed classes."""


def harm_of(merged: MergedTask, own: Sequence[OwnValidation], prior: Prior) -> str | None:
    """Return how a merged task worsens answers to an agent's own images, or None; `own` includes own parts."""
    no_background = np.empty((0, merged.card.dim), dtype=np.float32)
    parts = {part.id: index for index, part in enumerate(merged.parts)}
    tasks = [kept.module for kept in own]
    trial = BankTrial(prior, shared_kinds([merged, *tasks])[0], no_background, own)
    others = [module for module in tasks if module.id not in parts]
    disputed_classes = {m.id: disputed(merged.parts, parts[m.id], prior) for m in tasks if m.id in parts}
    before, after = (trial.own_results(bank, disputed_classes) for bank in (tasks, [*others, merged]))
    complaints = (
        _complaint(module, before[module.id], after[module.id]) for module in tasks if module.id in before
    )
    return next((complaint for complaint in complaints if complaint is not None), None)


def _complaint(module: Module, before: list[Result], after: list[Result]) -> str | None:
    """Return a complaint if one task's results got worse: overall, for a class, or for its disputed classes."""
    what = f"{OWN_IMAGES} of {module.card.task!r}"
    *pairs, (old, new) = zip(before, after, strict=True)
    for earlier, later in pairs:
        if (complaint := worse(earlier, later, TASK_LOSS, what)) is not None:
            return complaint
    allowed = int(max(DISPUTED_IMAGES, DISPUTED_SHARE * old.right))
    if old.right - new.right > allowed:
        return (
            f"with it {new.right} instead of {old.right} of {old.images} answers to {what} whose classes look "
            f"different in other parts are right, expected at most {allowed} fewer"
        )
    return None


# TaskMerger: the tasks that result from an agent's bank and links, computed once for each change.

log = logging.getLogger(__name__)


class TaskMerger:
    """Applies an agent's links to its modules. Several threads may use it at once."""

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
        """Return the bank's tasks in the bank's order, with linked modules merged."""
        state = [module.id for module in modules], [link.digest for link in links]
        last = self._last
        if last[0] == state:
            return last[1]
        with one_thread():
            if self._last[0] != state:
                self._last = state, self._merged(modules, links)
            return self._last[1]

    def if_linked(self, modules: Sequence[Module], links: Sequence[Link]) -> list[Module]:
        """Return the tasks with other links; `why_not` then refers to these, until the bank or links change."""
        with one_thread():
            tasks = self._merged(modules, links)
            self._last = (None, [])
            return tasks

    def why_not(self, link: Link) -> str | None:
        """Return why a link that was tried merges nothing in this bank, or None."""
        results = [result for key, result in self._remembered.items() if key[0] == link.digest]
        return next((result for result in results if isinstance(result, str)), None)

    def _merged(self, modules: Sequence[Module], links: Sequence[Link]) -> list[Module]:
        from skillmesh.synergy.merging import with_merged_tasks

        own = [module for module in modules if module.card.teacher_key == self._own_key]
        if self._own != [module.id for module in own]:  # there are other images to try merged tasks on
            self._own, self._remembered = [module.id for module in own], {}
        return with_merged_tasks(
            modules, links, self._prior(), lambda merged: self._harm(merged, own), self._remembered
        )

    def _harm(self, merged: MergedTask, own: Sequence[Module]) -> str | None:
        """Return why a merged task with an own part must not be used, and log it; None if it may be used."""
        if all(part.card.teacher_key != self._own_key for part in merged.parts):
            return None

        reason = harm_of(merged, load_validation(self._folder, own), self._prior())
        if reason is not None:
            log.warning(
                "the link %r by %s has no effect on this agent: %s",
                merged.link.task,
                self._name_of(merged.link),
                reason,
            )
        return reason
