"""Links: who may say that modules are parts of one task, and how an agent says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skillmesh.anchors import KINDS
from skillmesh.errors import AgentError, SettingsMismatchError, UnknownTaskError
from skillmesh.module import in_order
from skillmesh.module.joint import MergedTask, parts_of
from skillmesh.module.notice import LINK, Link, Slot, link
from skillmesh.module.teachers import odd_notice, odd_task

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
    from skillmesh.synergy.merging.fitting import misfit

    parts = {part.id: part for task in tasks for part in parts_of(agent.find(task))}
    if len(parts) < 2:
        raise UnknownTaskError(
            f"{', '.join(map(repr, tasks)) or 'nothing'} is one module, expected two or more of different "
            "teachers; name them as TASK@TEACHER"
        )
    if not KINDS[agent.config.mapper].adds_up:
        raise SettingsMismatchError(
            f"this agent's mapper is {agent.config.mapper}, expected sketch: only its anchors add up; merge with "
            "an agent that was set up with --mapper sketch"
        )
    reason = misfit(in_order(parts.values()), agent.prior, agent.teachers.name)
    if reason is not None:
        raise SettingsMismatchError(f"these modules are no parts of one task: {reason}")
    called = name or agent.find(tasks[0]).card.task
    if (fault := odd_task(called)) is not None:
        raise AgentError(f"the merged task's name is {called!r}, which {fault}; give it another with --name")
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
    tasks = [m for m in agent.arranging.if_linked(list(agent.bank), [*others, made]) if isinstance(m, MergedTask)]
    if any(joint.link.digest == made.digest for joint in tasks):
        return
    if (reason := agent.arranging.why_not(made)) is not None:
        raise SettingsMismatchError(f"merged they would answer worse than apart: {reason}")
    stands = next((joint.link for joint in tasks if {part.id for part in joint.parts} & set(made.parts)), None)
    if stands is None:
        raise SettingsMismatchError(
            "too many links of this agent join nothing; end one: `skillmesh merge --undo TASK`"
        )
    maker = agent.teachers.name(stands)
    raise SettingsMismatchError(
        f"some of these modules are parts of {stands.task!r} already, as a link by {maker} says, which takes "
        f"precedence; use that task, or take it apart first: `skillmesh merge --undo {stands.task!r}`"
    )


def unmake_link(agent: Holder, name: str, reason: str | None = None) -> Link:
    """End a link of one's own for everyone; another's is only put away here."""
    merged = [joint for joint in agent.merged() if joint.card.task == name]
    own = agent.ledger.view().links.get(Slot(agent.identity.public_key, LINK + name))
    if own is not None and not own.withdrawn:
        ended = link(name, own.version + 1, (), agent.identity, reason)
        agent.ledger.merge([ended], agent.identity.public_key)
        return ended
    if not merged:
        known = ", ".join(joint.card.task for joint in agent.merged()) or "none"
        raise UnknownTaskError(f"there is no merged task {name!r} here; merged tasks: {known}")
    agent.ledger.forget(merged[0].link.slot)
    return merged[0].link
