"""What commands say of modules, merged tasks and lessons, as JSON would have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillmesh.lesson import Lesson
    from skillmesh.module import Module
    from skillmesh.module.joint import Joint


def facts_of(module: Module) -> dict[str, Any]:
    return module.card.model_dump() | {"id": module.id, "bytes": module.size}


def merged_facts(joint: Joint) -> dict[str, Any]:
    """What there is to say of a merged task."""
    card = joint.card
    return {
        "task": card.task,
        "classes": list(card.classes),
        "counts": list(card.counts),
        "teachers": sorted({part.card.teacher for part in joint.parts}),
        "parts": {f"{p.card.task}@{p.card.teacher}": p.id for p in joint.parts},
        "linked_by": joint.link.teacher,
        "link_version": joint.link.version,
        "bytes": joint.size,
    }


def lesson_facts(lesson: Lesson, seconds: float) -> dict[str, Any]:
    """What there is to say of learning, beside what the card says."""
    return {
        "seconds": round(seconds, 3),
        "macs": lesson.costs.spent,
        "notes": list(lesson.notes),
        "unreadable": [{"name": bad.name, "reason": bad.reason} for bad in lesson.unreadable],
    }


def warn_of(lesson: Lesson) -> None:
    """Say what was noticed about the images, and which could not be read."""
    from skillmesh.cli import show

    for text in lesson.notes:
        show.warn(f"note: {text}")
    for bad in lesson.unreadable:
        show.warn(f"skipped: {bad.name}: {bad.reason}")
