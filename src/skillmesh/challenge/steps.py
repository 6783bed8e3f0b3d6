"""Tests with no task label after 1, 2, …, T tasks.

A module's head answers the same whatever else the bank holds, so whether it names the right class is found once
per image. What changes from step to step is the mapper: it is built anew, and run, after every task.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh.challenge.evaluate import Marks, said_right
from skillmesh.challenge.record import Confused, Confusions, Step, TaskAtStep
from skillmesh.challenge.shown import Shown
from skillmesh.costs import counted
from skillmesh.mapper import Mapped, Mapper
from skillmesh.module import in_order
from skillmesh.progress import begin

if TYPE_CHECKING:
    from skillmesh.agent import Agent
    from skillmesh.challenge.stage import Stage
    from skillmesh.module import Module

SAMPLES = 3
"""Images kept of each pair of confused tasks."""


def measure_steps(stage: Stage, agent: Agent, modules: Sequence[Module], shown: Sequence[Shown]) -> None:
    """Write every step that the record lacks, and the last one's confusions."""
    done = {step.known for step in stage.read().steps}
    right = [
        said_right(agent, module, folder, images, agent.seen_by(module, images.x, images.images))
        for module, folder, images in zip(modules, stage.tasks, shown, strict=True)
    ]
    missing = [known for known in range(1, len(modules) + 1) if known not in done or known == len(modules)]
    advance = begin(stage.progress, "testing (steps)", len(missing))
    with stage.timed("testing_seconds"):
        for known in missing:
            step, live, mapped = _step(agent, modules[:known], shown, right)
            if known == len(modules):
                stage.keep_confusions(_confusions(agent, stage, modules, live, shown, mapped))
            stage.keep_step(step)
            if advance is not None:
                advance(1)
    stage.log(f"tested after 1 to {len(modules)} tasks")


def _step(
    agent: Agent, modules: Sequence[Module], shown: Sequence[Shown], right: Sequence[NDArray[np.bool_]]
) -> tuple[Step, list[Module], list[Mapped]]:
    """Build the mapper of these modules as an agent would, and map all their test images."""
    live = in_order(modules)
    start = time.perf_counter()
    with counted() as costs:
        mapper = Mapper(live, agent.config.mapper, agent.prior)
    built = time.perf_counter()
    mapped = [mapper.map(images.x) for images in shown[: len(modules)]]
    tasks = [
        TaskAtStep(module.card.task, len(images), **asdict(Marks.of(right_class, on_task, live.index(module))))
        for module, images, right_class, on_task in zip(modules, shown, right, mapped, strict=False)
    ]
    seconds = (round(built - start, 4), round(time.perf_counter() - built, 4))
    return Step(len(modules), tuple(tasks), dict(costs.spent), *seconds), live, mapped


def _confusions(
    agent: Agent,
    stage: Stage,
    modules: Sequence[Module],
    live: list[Module],
    shown: Sequence[Shown],
    mapped: Sequence[Mapped],
) -> Confusions:
    """Count which task's images were taken for which task's, and keep some of them by name."""
    column = {module.id: index for index, module in enumerate(modules)}
    order = np.array([column[module.id] for module in live])
    taken = [order[on_task.task] for on_task in mapped]
    counts = tuple(tuple(int(n) for n in np.bincount(row, minlength=len(modules))) for row in taken)
    samples: list[Confused] = []
    for index, (images, row) in enumerate(zip(shown, taken, strict=True)):
        for other in np.unique(row[row != index]):
            rows = np.flatnonzero(row == other)[:SAMPLES]
            samples += _samples(agent, stage, index, modules[other], images, rows)
    return Confusions(tuple(stage.settings.names), counts, tuple(samples))


def _samples(
    agent: Agent, stage: Stage, index: int, other: Module, images: Shown, rows: NDArray[np.int64]
) -> list[Confused]:
    """What the other task's head says of these images."""
    chosen = [images.images[int(row)] for row in rows]
    said = agent.head(other).logits(agent.seen_by(other, images.x[rows], chosen)).argmax(axis=1)
    folder = stage.tasks[index]
    return [
        Confused(folder.name, folder.classes[label], image.name, other.card.task, other.card.classes[int(answer)])
        for label, image, answer in zip(images.labels[rows], chosen, said, strict=True)
    ]
