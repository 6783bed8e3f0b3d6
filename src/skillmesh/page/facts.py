"""Facts about tasks, answers and the mesh as the HTTP API sends them, and their shapes for its documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from skillmesh.answering.answer import Answer
from skillmesh.common.choices import Sharing
from skillmesh.common.text import Lookalikes
from skillmesh.core import Core
from skillmesh.module import Module
from skillmesh.module.notice import MergedTask
from skillmesh.page.lessons import Report
from skillmesh.page.problems import not_found

if TYPE_CHECKING:
    from skillmesh.mesh.shelf import HeldModule


class Shape(BaseModel):
    """A JSON object that the API sends; later releases may add to it."""

    model_config = ConfigDict(extra="allow")


class GuessShape(Shape):
    label: str
    task: str
    teacher: str
    confidence: float


class AnswerShape(Shape):
    """An answer to one image; `label` and `task` are null if it is unknown, unsure or unreadable."""

    image: str
    label: str | None
    task: str | None
    teacher: str | None
    confidence: float
    unknown: bool
    unsure: bool
    known: float
    novelty: float
    guesses: list[GuessShape]
    error: str | None = None
    task_id: str | None
    own: bool


class Answers(Shape):
    answers: list[AnswerShape]
    milliseconds: float


class Descriptors(Shape):
    width: int
    descriptors: list[list[float]]


class ClassShape(Shape):
    name: str
    images: int


class TaskShape(Shape):
    """A task that the agent knows."""

    id: str
    task: str
    classes: list[ClassShape]
    accuracy: float | None
    validation_images: int
    bytes: int
    teacher: str
    teacher_key: str
    own: bool
    created: str
    version: int
    tags: list[str]
    licence: str | None
    note: str | None
    adapted: bool
    views: float | None
    composed_of: list[str]
    merged: dict[str, Any] | Literal[False]
    sharing: Sharing | None
    odd_letters: list[str]


class TaskWithReport(TaskShape):
    report: Report | None


class Tasks(Shape):
    tasks: list[TaskShape]


class LessonShape(Shape):
    """A task that is being taught."""

    id: str
    task: str
    extends: bool
    state: str
    classes: list[dict[str, Any]]
    images: int
    progress: dict[str, Any] | None
    report: Report | None
    task_id: str | None
    error: str | None
    hints: list[str]
    sharing: Sharing


class LessonList(Shape):
    lessons: list[LessonShape]


class Added(Shape):
    added: list[dict[str, str]]
    refused: list[dict[str, str]]
    lesson: LessonShape


class AgentShape(Shape):
    name: str
    key: str
    role: str
    version: str
    tasks: int
    first_visit: bool
    limits: dict[str, int]
    suffixes: list[str]
    demo: str | Literal[False]


class PeerShape(Shape):
    agent: str
    name: str
    alive: bool
    same: bool
    tasks: int | None
    heard_seconds_ago: float | None
    bytes_received: int
    failures: int
    trusted: bool
    banned: str | None


class Peers(Shape):
    peers: list[PeerShape]


class MeshShape(Peers):
    name: str
    key: str
    network: str
    trust: str
    listening: list[str]
    settled: bool
    trouble: str | None
    bytes_sent: int
    bytes_fetched: int
    wanted: int
    fetching: list[str]
    in_use: int


class TrustShape(Shape):
    mine: dict[str, str]
    trusted: list[dict[str, str]]
    seen: list[dict[str, Any]]


class HeldShape(Shape):
    id: str
    task: str
    teacher: str
    teacher_key: str
    since: str
    reason: str
    next_step: str
    classes: list[str]


class Quarantine(Shape):
    held: list[HeldShape]


def answer_facts(answer: Answer, agent: Core) -> dict[str, Any]:
    """Return an answer, and the module of its best guess: a correction extends it if it is the agent's own."""
    facts = answer.as_dict() | {"task_id": None, "own": False}
    if not answer.guesses:
        return facts
    best, own = answer.best, agent.identity.public_key
    of_teacher = agent.bank.held(best.task, best.teacher_key) if best.teacher_key else None
    if of_teacher is not None:
        facts |= {"task_id": of_teacher.id, "own": best.teacher_key == own}
    return facts


def task_facts(module: Module, agent: Core, names: Lookalikes) -> dict[str, Any]:
    card = module.card
    own = not isinstance(module, MergedTask) and card.teacher_key == agent.identity.public_key
    sources = {known.id: known.card.task for known in agent.bank} if card.composed is not None else {}
    return {
        "id": module.id,
        "task": card.task,
        "classes": [{"name": n, "images": c} for n, c in zip(card.classes, card.counts, strict=True)],
        "accuracy": card.validation_accuracy,
        "validation_images": card.validation_images,
        "bytes": module.size,
        "teacher": agent.teachers.of(module),
        "teacher_key": card.teacher_key,
        "own": own,
        "created": card.created,
        "version": card.version,
        "tags": list(card.tags or ()),
        "licence": card.licence,
        "note": card.note,
        "adapted": card.adapted,
        "views": card.views,
        "composed_of": sorted({sources.get(source, source[:12]) for source, _ in card.origins}),
        "merged": {"parts": [part.id for part in module.parts]} if isinstance(module, MergedTask) else False,
        "sharing": agent.unshared.of(card.task) if own else None,
        "odd_letters": names.letters(card.task),
    }


def all_tasks(agent: Core) -> list[dict[str, Any]]:
    """Return the tasks that answers come from: a merged task in place of its parts."""
    modules = sorted(agent.answering_tasks(), key=lambda module: (module.card.task, module.id))
    names = Lookalikes(module.card.task for module in modules)
    return [task_facts(module, agent, names) for module in modules]


def find_task(agent: Core, module_id: str) -> Module:
    """Return a module of the bank or a merged task by its id."""
    if (module := agent.bank.get(module_id)) is not None:
        return module
    for merged in agent.merged():
        if merged.id == module_id:
            return merged
    raise not_found(f"this agent has no task of the id {module_id[:80]!r}; GET /api/v1/tasks lists them")


def selector_of(module: Module) -> str:
    """Return how the agent's functions name exactly this module."""
    card = module.card
    return card.task if isinstance(module, MergedTask) else f"{card.task}@{card.teacher_key}"


def held_facts(held: HeldModule, agent: Core) -> dict[str, Any]:
    plain = held.as_dict(agent.teachers)
    plain["next_step"] = plain.pop("next")
    return plain | {"since": held.since, "classes": list(held.module.card.classes)}
