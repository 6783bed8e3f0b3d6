"""Agents learn: each its own tasks one after the other, all agents side by side, wherever the workers are.

A worker makes the lesson; the agent signs it here, where its key is. A task is learned when its JSON is in the
record: whatever comes after it is done again in a run that was killed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from skillmesh.common.choices import Adaptation
from skillmesh.common.progress import begin
from skillmesh.errors import RunError
from skillmesh.learning.lesson import Lesson, study
from skillmesh.module import Module, now
from skillmesh.numerics.costs import counted
from skillmesh.store.parts import specs_for
from skillmesh_challenge.entries import Learned, RunSettings
from skillmesh_challenge.executors import BackboneRef, Workplace, open_place, worker_backbone
from skillmesh_challenge.record import read_record

if TYPE_CHECKING:
    from skillmesh.common.config import AgentConfig
    from skillmesh.core import Core
    from skillmesh.data.folder import TaskImages
    from skillmesh_challenge.methods import SkillMethod
    from skillmesh_challenge.stage import Stage


@dataclass(frozen=True)
class Job:
    """One task to be learned: all that a worker needs."""

    task: TaskImages
    config: AgentConfig
    backbone: BackboneRef
    adaptation: Adaptation
    checkpoint: Path | None


class TakenTime(NamedTuple):
    """Seconds, of the clock and of the processor."""

    wall: float
    cpu: float


def learn(job: Job) -> tuple[Lesson, TakenTime]:
    """Make the lesson, in whatever process this is; returns it with the time that it took."""
    backbone = worker_backbone(job.backbone)
    wall, cpu = time.perf_counter(), time.process_time()
    with counted() as costs:
        lesson = study(
            job.task,
            backbone,
            job.config,
            adaptation=job.adaptation,
            checkpoint=job.checkpoint,
        )
    taken = TakenTime(time.perf_counter() - wall, time.process_time() - cpu)
    return dataclasses.replace(lesson, costs=costs), taken


def learn_missing(method: SkillMethod, stage: Stage, homes: dict[str, Path]) -> None:
    """Let the agents learn what the record lacks."""
    from skillmesh.core import Core

    done = {learned.task for learned in stage.read().learned}
    done |= _taken_over(stage, homes, done)
    queues = {
        name: deque(task for task in tasks if task not in done)
        for name, tasks in stage.settings.assignment.items()
    }
    if not any(queues.values()):
        return
    agents = {name: Core(homes[name]) for name, queue in queues.items() if queue}
    ref = _ref(method, stage)
    with open_place(ref, stage.workers, stage.threads, stage.cluster) as place:
        stage.keep_times(startup_seconds=place.startup_seconds)
        stage.log(f"{place.workers} worker(s) on {place.words}, ready in {place.startup_seconds:.1f} s")
        with stage.timed("learning_seconds"):
            _learn_all(method, stage, place, agents, queues)


def _ref(method: SkillMethod, stage: Stage) -> BackboneRef:
    from skillmesh_challenge.agents import backbone_ref

    return backbone_ref(method, stage)


def _learn_all(
    method: SkillMethod, stage: Stage, place: Workplace, agents: dict[str, Core], queues: dict[str, deque[str]]
) -> None:
    """Keep every worker busy; an agent that has begun goes on before another one begins."""
    ready = deque(name for name, queue in queues.items() if queue)
    under_way: dict[Future[tuple[Lesson, TakenTime]], tuple[str, str]] = {}
    advance = begin(stage.progress, "learning (tasks)", sum(map(len, queues.values())))
    try:
        while ready or under_way:
            while ready and len(under_way) < place.workers:
                name = ready.popleft()
                task = queues[name].popleft()
                job = _job(method, stage, place, agents[name], task)
                under_way[place.executor.submit(learn, job)] = name, task
            done = wait(under_way, return_when=FIRST_COMPLETED).done
            for future in sorted(done, key=lambda f: f.exception() is not None):  # keep all that can be kept
                name, task = under_way.pop(future)
                _keep(stage, agents[name], task, *_result(future, task))
                if queues[name]:
                    ready.appendleft(name)
                if advance is not None:
                    advance(1)
    finally:
        for future in under_way:
            future.cancel()


def _result(future: Future[tuple[Lesson, TakenTime]], task: str) -> tuple[Lesson, TakenTime]:
    try:
        return future.result()
    except BrokenExecutor as error:
        raise RunError(
            f"a worker that learned {task!r} was killed, expected it to end by itself; is memory short? Give the "
            "same command with --workers 1: it goes on"
        ) from error


def _job(method: SkillMethod, stage: Stage, place: Workplace, agent: Core, task: str) -> Job:
    name = f"training-{hashlib.sha256(task.encode()).hexdigest()[:16]}.pt"
    return Job(
        next(folder for folder in stage.tasks if folder.name == task),
        agent.config,
        _ref(method, stage),
        Adaptation(method.adapt_mode, method.adapts, method.layers, method.epochs),
        agent.home.resolve() / name if place.shares_disk else None,
    )


def _keep(stage: Stage, agent: Core, task: str, lesson: Lesson, taken: TakenTime) -> None:
    module, data = agent.sign(lesson)
    learned = Learned(
        task=task,
        position=stage.settings.names.index(task),
        agent=agent.name,
        macs=dict(lesson.costs.spent),
        seconds=round(taken.wall, 3),
        images=lesson.images,
        cached_images=max(0, lesson.images - lesson.fresh),
        module_bytes=module.size,
        parts=bytes_by_part(module),
        validation_accuracy=module.card.validation_accuracy,
        cpu_seconds=round(taken.cpu, 3),
        module_id=module.id,
        content_id=module.content_id,
        notes=(*lesson.notes, *(f"{u.name}: {u.reason}" for u in lesson.unreadable)),
    )
    stage.keep_learned(learned, data)
    for left in agent.home.glob("training-*.pt"):  # of a training that is over
        left.unlink()
    stage.log(
        f"{agent.name} learned {task} in {taken.wall:.1f} s: {learned.total_macs:.3g} MACs, {module.size} bytes"
    )


def bytes_by_part(module: Module) -> dict[str, int]:
    """A module's bytes by what they hold; `card` is all that is no tensor: header, names, signature."""
    parts: dict[str, int] = {}
    for name, tensor in module.tensors.items():
        first = name.partition(".")[0]
        part = (
            "anchor" if first in module.card.anchors else {"probe": "probes", "bias": "biases"}.get(first, first)
        )
        parts[part] = parts.get(part, 0) + tensor.nbytes
    return parts | {"card": module.size - sum(parts.values())}


# Tasks that another run has learned already.


def _taken_over(stage: Stage, homes: dict[str, Path], done: set[str]) -> set[str]:
    """Take from earlier runs what this one would learn just so, signed by the agent whose task it is here."""
    from skillmesh.core import Core

    teachers = {task: name for name, tasks in stage.settings.assignment.items() for task in tasks}
    found: set[str] = set()
    for folder in stage.reuse:
        earlier = read_record(folder)
        if not _alike(earlier.settings, stage.settings):
            continue
        for learned in earlier.learned:
            if learned.task in done | found:
                continue
            module = Module.load(earlier.module_file(learned.position), specs_for)
            agent = Core(homes[teachers[learned.task]])
            identity = agent.identity
            card = module.card.model_copy(
                update={"teacher": agent.name, "teacher_key": identity.public_key, "created": now()}
            )
            module, data = Module.create(card, module.tensors, identity)
            _keep_taken(stage, learned, agent.name, module, data)
            found.add(learned.task)
    if found:
        stage.log(f"{len(found)} task(s) taken over from an earlier run")
    return found


def _alike(theirs: RunSettings, ours: RunSettings) -> bool:
    """Whether a task is learned alike in two runs: same method and images, whoever learns it."""
    return theirs.method == ours.method and theirs.same_images(ours)


def _keep_taken(stage: Stage, learned: Learned, agent: str, module: Module, data: bytes) -> None:
    taken = dataclasses.replace(
        learned,
        agent=agent,
        module_id=module.id,
        module_bytes=module.size,
        parts=bytes_by_part(module),
    )
    stage.keep_learned(taken, data)
