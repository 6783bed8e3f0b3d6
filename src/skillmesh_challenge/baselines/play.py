"""Run one learner: it learns the tasks in order and is tested on all known tasks after each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from skillmesh.common.files import writing
from skillmesh.numerics.arrays import counted
from skillmesh.numerics.process import begin
from skillmesh_challenge.baselines.data import BaselineTask
from skillmesh_challenge.baselines.learner import Learner
from skillmesh_challenge.entries import DIVERGED, Learned, Step, TaskAtStep
from skillmesh_challenge.errors import RunError

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings import Baseline
    from skillmesh_challenge.stage import Stage


def play(method: Baseline, stage: Stage) -> None:
    """Do all steps of the run that are not done yet."""
    learner = method.learner(stage)
    with stage.timed("decoding_seconds"):
        tasks = [learner.see(folder, stage.progress) for folder in stage.tasks]
    known = _resume(learner, stage, tasks)
    advance = begin(stage.progress, f"{method.name} (tasks)", len(tasks))
    for position, task in enumerate(tasks):
        if position >= known:
            _learn(learner, stage, task, tasks[:position])
        if position >= len(stage.read().steps):
            _test(learner, stage, tasks[: position + 1], method.label == "withheld")
        if advance is not None:
            advance(1)
    _checkpoint(stage, len(tasks)).unlink(missing_ok=True)


def _learn(learner: Learner, stage: Stage, task: BaselineTask, before: Sequence[BaselineTask]) -> None:
    position, bytes_before = len(before), learner.kept_bytes() if before else {}
    wall, cpu = time.perf_counter(), time.process_time()
    with stage.timed("learning_seconds"), counted() as costs:
        learner.learn(task, before)
    parts = {name: size - bytes_before.get(name, 0) for name, size in learner.kept_bytes().items()}
    learned = Learned(
        task=task.name,
        position=position,
        agent=next(name for name, tasks in stage.settings.assignment.items() if task.name in tasks),
        macs=dict(costs.spent),
        seconds=round(time.perf_counter() - wall, 3),
        images=len(task.train),
        module_bytes=sum(parts.values()),
        parts=parts,
        cpu_seconds=round(time.process_time() - cpu, 3),
        notes=() if learner.finite() else (DIVERGED,),
    )
    _save(learner, stage, position + 1)
    stage.keep_learned(learned)
    _checkpoint(stage, position).unlink(missing_ok=True)
    stage.log(f"learned {task.name} in {learned.seconds:.1f} s: {learned.total_macs:.3g} MACs")
    for note in learned.notes:
        stage.log(f"{task.name}: {note}")


def _test(learner: Learner, stage: Stage, tasks: Sequence[BaselineTask], withheld: bool) -> None:
    started = time.perf_counter()
    results = tuple(_at_step(learner, task, position, withheld) for position, task in enumerate(tasks))
    stage.keep_step(Step(len(tasks), results, {}, 0.0, round(time.perf_counter() - started, 3)))
    stage.log(f"{len(tasks)} task(s): {100 * sum(task.final for task in results) / len(results):.1f} %")


def _at_step(learner: Learner, task: BaselineTask, position: int, withheld: bool) -> TaskAtStep:
    labels = task.test.labels
    given = _share(learner.given(task.test.x, position) == labels)
    if not withheld:
        return TaskAtStep(task.name, len(labels), given, None, given)
    answers = learner.withheld(task.test.x)
    right_task = answers.tasks == position
    final = _share(right_task & (answers.classes == labels))
    return TaskAtStep(task.name, len(labels), given, _share(right_task), final)


def _share(right: torch.Tensor) -> float:
    return float(right.double().mean())


# A killed run resumes after the last task that was learned.


def _checkpoint(stage: Stage, known: int) -> Path:
    return stage.folder / f"learner-{known:04d}.pt"


def _save(learner: Learner, stage: Stage, known: int) -> None:
    """Save a checkpoint; the previous one is kept until the task is recorded as learned."""
    with writing(_checkpoint(stage, known), sync=False) as file:
        torch.save(learner.state(), file)


def _resume(learner: Learner, stage: Stage, tasks: Sequence[BaselineTask]) -> int:
    known = len(stage.read().learned)
    if known == 0 or len(stage.read().steps) == len(tasks):
        return known
    path = _checkpoint(stage, known)
    if not path.exists():
        raise RunError(
            f"{stage.folder} has learned {known} tasks but lacks {path.name}; remove the folder to start over"
        )
    learner.restore(torch.load(path, map_location="cpu", weights_only=True), tasks[:known])
    return known
