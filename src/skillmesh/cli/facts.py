"""What commands say of modules, merged tasks and lessons, as JSON would have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from skillmesh.common.lookalikes import Lookalikes

if TYPE_CHECKING:
    from skillmesh.core import Core
    from skillmesh.learning.lesson import Lesson
    from skillmesh.module import Module
    from skillmesh.module.joint import MergedTask

MOST_LINES = 6
"""Number of lines about a task's images that a command prints."""


def called(agent: Core, key: str) -> str:
    """Return how an agent calls a key; where no name was given, what it was heard to call itself counts."""
    claims = {notice.teacher_key: notice.teacher for notice in agent.ledger.view().heard}
    claims |= {module.card.teacher_key: module.card.teacher for module in agent.bank}
    return agent.teachers.called(key, claims.get(key))


def facts_of(module: Module, agent: Core, names: Lookalikes | None = None) -> dict[str, Any]:
    """Return what a module's card says, under the teacher's name as this agent has it."""
    named = {"teacher": agent.teachers.name(module.card), "claimed_name": module.card.teacher}
    odd = {
        "task": (names or task_names(agent)).letters(module.card.task),
        "teacher": agent.teachers.odd_letters(module.card.teacher_key, module.card.teacher),
    }
    return module.card.model_dump() | named | {"id": module.id, "bytes": module.size, "odd_letters": odd}


def task_names(agent: Core, others: Iterable[str] = ()) -> Lookalikes:
    """Return what tells which tasks look like others by their names, those here and `others`."""
    here = (module.card.task for module in (*agent.bank, *agent.merged()))
    return Lookalikes((*here, *others))


def merged_facts(joint: MergedTask, agent: Core) -> dict[str, Any]:
    """Return what there is to say of a merged task."""
    card, teachers = joint.card, agent.teachers
    return {
        "task": card.task,
        "classes": list(card.classes),
        "counts": list(card.counts),
        "teachers": sorted({teachers.name(part.card) for part in joint.parts}),
        "parts": {f"{p.card.task}@{teachers.name(p.card)}": p.id for p in joint.parts},
        "linked_by": teachers.name(joint.link),
        "link_version": joint.link.version,
        "bytes": joint.size,
        "odd_letters": {"task": task_names(agent).letters(card.task)},
    }


def lesson_facts(lesson: Lesson, seconds: float) -> dict[str, Any]:
    """What there is to say of learning, beside what the card says."""
    confusions = [] if lesson.outcome is None else lesson.outcome.confusions()
    return {
        "seconds": round(seconds, 3),
        "macs": lesson.costs.spent,
        "notes": list(lesson.notes),
        "unreadable": [{"file": bad.name, "reason": bad.reason} for bad in lesson.unreadable],
        "checks": [finding.as_dict() for finding in lesson.all_findings],
        "training_accuracy": lesson.training_accuracy,
        "confusions": [{"class": c.label, "given": c.given, "images": c.images, "of": c.of} for c in confusions],
        "advice": lesson.advice,
    }


def warn_of(lesson: Lesson) -> None:
    """Say in a few lines what was noticed about the images."""
    lines = [f"check: {finding.text}" for finding in lesson.all_findings]
    warn_of_findings([*lines, *(f"note: {text}" for text in lesson.notes)])


def warn_of_findings(lines: Sequence[str]) -> None:
    """Print the first few lines and say how many more there are."""
    from skillmesh.cli import show

    for line in lines[:MOST_LINES]:
        show.warn(line)
    if len(lines) > MOST_LINES:
        show.warn(f"and {len(lines) - MOST_LINES:,} more such lines; --json has all")
