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

from skillmesh.answering.mapper import Mapped, Mapper
from skillmesh.common.progress import begin
from skillmesh.evaluation.evaluate import Marks, is_right
from skillmesh.evaluation.shown import Shown
from skillmesh.module import in_order
from skillmesh.numerics.costs import counted
from skillmesh_challenge.answers import answers_of, confusions_of, final_answers
from skillmesh_challenge.entries import Step, TaskAtStep

if TYPE_CHECKING:
    from skillmesh.core import Core
    from skillmesh.module import Module
    from skillmesh_challenge.stage import Stage


def measure_steps(stage: Stage, agent: Core, modules: Sequence[Module], shown: Sequence[Shown]) -> None:
    """Write every step that the record lacks, and the last one's answers and confusions."""
    done = {step.known for step in stage.read().steps}
    own = [
        agent.head(module).logits(agent.seen_by(module, images.x, images.images)).argmax(axis=1)
        for module, images in zip(modules, shown, strict=True)
    ]
    right = [is_right(*each) for each in zip(own, modules, stage.tasks, shown, strict=True)]
    missing = [known for known in range(1, len(modules) + 1) if known not in done or known == len(modules)]
    advance = begin(stage.progress, "testing (steps)", len(missing))
    with stage.timed("testing_seconds"):
        for known in missing:
            step, live, mapped = _step(agent, modules[:known], shown, right)
            if known == len(modules):
                answers = final_answers(agent, modules, live, shown, own, mapped)
                stage.keep_confusions(confusions_of(stage, modules, shown, answers))
                stage.keep_answers(answers_of(stage, modules, shown, answers))
            stage.keep_step(step)
            if advance is not None:
                advance(1)
    stage.log(f"tested after 1 to {len(modules)} tasks")


def _step(
    agent: Core, modules: Sequence[Module], shown: Sequence[Shown], right: Sequence[NDArray[np.bool_]]
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
