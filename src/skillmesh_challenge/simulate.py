"""Simulation of scale: the real mapper on a bank grown from real tasks to more tasks than there is data for.

Only the modules of the grown tasks are simulated: their class means are generated (`growth.py`); their scatters,
heads and probes are copies from real tasks. The mapper, its times and memory, the bytes of a module and the images
whose accuracy is reported are real: test images of the real tasks, in a bank where most tasks are grown.

Accuracy is reported only if a check passes: half of the real tasks, grown to the number of all of them, must come
within `TOLERANCE` of the accuracy that all real tasks have, in every half that is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.common.choices import WarmStart
from skillmesh.core import Core
from skillmesh.data.folder import TaskImages, open_task
from skillmesh.errors import DataError, SkillmeshError
from skillmesh.numerics.arrays import Floats
from skillmesh.numerics.process import Progress, begin
from skillmesh_challenge.growth import fit_reach, grow, recognised, related
from skillmesh_challenge.scale import ScalePlan, measure

TOLERANCE = 0.02
HALVES = 5
DRAWS = 3
"""Number of times that a half is grown; the mean is used, since twenty grown tasks are few."""
FEWEST_TASKS = 8
"""Smallest number of tasks to check with: half of fewer shows nothing about distances between tasks."""
MOST_TASKS = 10_000
SIMULATED = (
    "simulated: class means of all tasks but the real ones; their scatters, heads and probes are real tasks'. "
    "Real: the mapper, times, memory, module bytes, and the test images that accuracy is measured on."
)


@dataclass(frozen=True)
class RealTask:
    """Anchor of a learned task, with images that it was not learned from."""

    anchor: SketchAnchor
    validation: Floats
    test: Floats


@dataclass(frozen=True)
class Half:
    """Results of a half of the real tasks, grown to the number of all; accuracies are of task recognition."""

    alone: float
    """Accuracy of the half's tasks with no others in the bank."""
    among_real: float
    """Accuracy of the same tasks among all real ones."""
    all_real: float
    """Accuracy of all real tasks, which `grown` must come close to."""
    grown: float
    """Accuracy of the half's tasks among grown ones."""
    reach: float

    @property
    def gap(self) -> float:
        return self.grown - self.all_real


@dataclass(frozen=True)
class GrowthCheck:
    """Result of checking the method of growing tasks on real tasks."""

    real_tasks: int
    reach: float
    halves: tuple[Half, ...]

    @property
    def holds(self) -> bool:
        return bool(self.halves) and max(abs(half.gap) for half in self.halves) <= TOLERANCE


def simulate(
    agent: Core, paths: Sequence[Path], plan: ScalePlan, halves: int = HALVES, progress: Progress | None = None
) -> dict[str, Any]:
    """Learn the tasks into a new agent, check growing on halves of them, then grow them, measure and report."""
    _refuse_plan(paths, plan)
    return scaled(agent, paths, plan, learn_and_check(agent, paths, halves, plan.seed, progress))


def learn_and_check(
    agent: Core, paths: Sequence[Path], halves: int = HALVES, seed: int = 0, progress: Progress | None = None
) -> GrowthCheck:
    """Learn the tasks, and compare halves of them, grown to all, with all of them."""
    folders = [open_task(path, hold_out=("val", "test"), seed=seed, one_task=True) for path in paths]
    real = [_learned(agent, folder, progress) for folder in folders]
    rng = np.random.default_rng(seed)
    with threadpool_limits(1, "blas"):  # many small products: a second thread would cost more than it saves
        checked = check_growth(agent, real, halves, rng, progress)
        return GrowthCheck(len(paths), _fitted(agent, real, rng), tuple(checked))


def scaled(agent: Core, paths: Sequence[Path], plan: ScalePlan, check: GrowthCheck) -> dict[str, Any]:
    """Grow what the agent has learned and return measurements; accuracy is left out if the check failed."""
    scale = measure_in_new_process(agent.home, [str(path) for path in paths], plan, check.reach)
    accuracy = {key: scale.pop(key) for key in ("task_found_accuracy", "final_accuracy", "known_unanswered")}
    return {
        "simulated": SIMULATED,
        "real_tasks": check.real_tasks,
        "plan": asdict(plan),
        "reach": check.reach,
        "check": [asdict(half) | {"gap": half.gap} for half in check.halves],
        "proven": check.holds,
        "extrapolated": accuracy if check.holds else None,
        **scale,
    }


def measure_in_new_process(home: Path, paths: Sequence[str], plan: ScalePlan, reach: float) -> dict[str, Any]:
    """Measure in a separate process, so that memory left over from learning and checking is not counted."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_and_send, args=(sender, home, paths, plan, reach), daemon=True)
    process.start()
    sender.close()
    try:
        measured: dict[str, Any] = receiver.recv()
    except EOFError:
        process.join()
        raise SkillmeshError(
            f"the process that measures {plan.tasks:,} tasks ended (status {process.exitcode}); its error is "
            "above; if it was killed, memory was too small: try fewer --tasks, or --compact"
        ) from None
    process.join()
    return measured


def _measure_and_send(sender: Connection, *arguments: Any) -> None:
    sender.send(measure(*arguments))


def check_growth(
    agent: Core, real: Sequence[RealTask], halves: int, rng: np.random.Generator, progress: Progress | None = None
) -> list[Half]:
    """Return, for random halves of the tasks, how each half grown to all (from itself alone) compares with all."""
    if len(real) < FEWEST_TASKS:
        return []
    prior, advance = agent.prior, begin(progress, "checking the growth", halves)
    whole = np.array(recognised([task.anchor for task in real], prior, [task.test for task in real]))
    results = []
    for _ in range(halves):
        chosen = np.sort(rng.permutation(len(real))[: len(real) // 2])
        half = [real[index] for index in chosen]
        anchors, shown = [task.anchor for task in half], [task.test for task in half]
        reach = _fitted(agent, half, rng)
        family, alone = related(anchors, prior), float(np.mean(recognised(anchors, prior, shown)))
        grown = []
        for _ in range(DRAWS):
            more = [g.anchor for g in grow(family, len(real) - len(half), rng, reach)]
            grown.append(float(np.mean(recognised([*anchors, *more], prior, shown))))
        results.append(Half(alone, float(whole[chosen].mean()), float(whole.mean()), fmean(grown), reach))
        if advance is not None:
            advance(1)
    return results


def _fitted(agent: Core, real: Sequence[RealTask], rng: np.random.Generator) -> float:
    """Return the reach fitted on validation images; test images are used only for the check."""
    seen = [task for task in real if len(task.validation)]
    if len(seen) < FEWEST_TASKS // 2:
        return 1.0
    return fit_reach([task.anchor for task in seen], agent.prior, [task.validation for task in seen], rng)


def _learned(agent: Core, folder: TaskImages, progress: Progress | None) -> RealTask:
    # No warm start: a task's results must not depend on which tasks were learned before it.
    module, lesson = agent.learn(folder, warm_start=WarmStart("never"), progress=progress)
    test = folder.splits["test"].files
    described = agent.backbone.describe(test, begin(progress, f"{folder.name} (test)", len(test)))
    if not len(described.raw):
        raise DataError(f"{folder.name!r} has no test image that can be read; add images or a test folder")
    x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
    return RealTask(SketchAnchor.read(module.tensors), lesson.validation, x)


def _refuse_plan(paths: Sequence[Path], plan: ScalePlan) -> None:
    if len(paths) < 3:
        raise DataError(f"found {len(paths)} real tasks, but growing needs three or more; name more folders")
    if not len(paths) < plan.tasks <= MOST_TASKS:
        raise DataError(
            f"{len(paths)} real tasks can be grown to more tasks, up to {MOST_TASKS:,}, not to "
            f"{plan.tasks:,}; choose --tasks in between"
        )
