"""Scale in simulation: the real mapper on a bank grown from real tasks to more than there is data for.

Simulated are the grown tasks' modules, and nothing else: their class means are made up (`growth.py`), their
scatters, heads and probes are those of real tasks. Real are the mapper, its times and memory, the bytes of a
module, and the images whose accuracy is reported: test images of the real tasks, in a bank where most tasks are
grown.

Accuracy is shown only where growing proves itself: half of the real tasks, grown to all, must come within
`TOLERANCE` of what all real tasks measure, in every half that is tried.
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
"""A half is grown so many times, and the mean taken: twenty grown tasks are few."""
FEWEST_TASKS = 8
"""Half of fewer says nothing about how tasks lie to each other."""
MOST_TASKS = 10_000
SIMULATED = (
    "simulated: class means of all tasks but the real ones; their scatters, heads and probes are real tasks'. "
    "Real: the mapper, times, memory, module bytes, and the test images that accuracy is measured on."
)


@dataclass(frozen=True)
class RealTask:
    """A learned task and images that it was not learned from."""

    anchor: SketchAnchor
    validation: Floats
    test: Floats


@dataclass(frozen=True)
class Half:
    """Half of the real tasks, grown to as many as all; accuracies are those of telling the task."""

    alone: float
    """The half's tasks with no others in the bank."""
    among_real: float
    """The same tasks among all real ones."""
    all_real: float
    """All real tasks: what growing must come near to."""
    grown: float
    """The half's tasks among grown ones."""
    reach: float

    @property
    def gap(self) -> float:
        return self.grown - self.all_real


@dataclass(frozen=True)
class Proof:
    """What the real tasks say about growing."""

    real_tasks: int
    reach: float
    halves: tuple[Half, ...]

    @property
    def holds(self) -> bool:
        return bool(self.halves) and max(abs(half.gap) for half in self.halves) <= TOLERANCE


def simulate(
    agent: Core, paths: Sequence[Path], plan: ScalePlan, halves: int = HALVES, progress: Progress | None = None
) -> dict[str, Any]:
    """Learn the tasks into a fresh agent, prove the growing on halves of them, then grow and measure."""
    _refuse_plan(paths, plan)
    return scaled(agent, paths, plan, prove(agent, paths, halves, plan.seed, progress))


def prove(
    agent: Core, paths: Sequence[Path], halves: int = HALVES, seed: int = 0, progress: Progress | None = None
) -> Proof:
    """Learn the tasks, and see how near growing half of them comes to all of them."""
    folders = [open_task(path, hold_out=("val", "test"), seed=seed, one_task=True) for path in paths]
    real = [_learned(agent, folder, progress) for folder in folders]
    rng = np.random.default_rng(seed)
    with threadpool_limits(1, "blas"):  # many small products: a second thread would cost more than it saves
        checked = check_growth(agent, real, halves, rng, progress)
        return Proof(len(paths), _fitted(agent, real, rng), tuple(checked))


def scaled(agent: Core, paths: Sequence[Path], plan: ScalePlan, proof: Proof) -> dict[str, Any]:
    """Grow what the agent has learned and measure; accuracy is left out where growing has not proved itself."""
    scale = measured_apart(agent.home, [str(path) for path in paths], plan, proof.reach)
    accuracy = {key: scale.pop(key) for key in ("task_found_accuracy", "final_accuracy", "known_unknown")}
    return {
        "simulated": SIMULATED,
        "real_tasks": proof.real_tasks,
        "plan": asdict(plan),
        "reach": proof.reach,
        "check": [asdict(half) | {"gap": half.gap} for half in proof.halves],
        "proven": proof.holds,
        "extrapolated": accuracy if proof.holds else None,
        **scale,
    }


def measured_apart(home: Path, paths: Sequence[str], plan: ScalePlan, reach: float) -> dict[str, Any]:
    """Measure in a process of its own: what learning and checking left in memory is not the mapper's."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_and_send, args=(sender, home, paths, plan, reach), daemon=True)
    process.start()
    sender.close()
    try:
        found: dict[str, Any] = receiver.recv()
    except EOFError:
        process.join()
        raise SkillmeshError(
            f"the process that measures {plan.tasks:,} tasks ended (status {process.exitcode}); its own words are "
            "above; where it was killed there was too little memory: try fewer --tasks, or --compact"
        ) from None
    process.join()
    return found


def _measure_and_send(sender: Connection, *arguments: Any) -> None:
    sender.send(measure(*arguments))


def check_growth(
    agent: Core, real: Sequence[RealTask], halves: int, rng: np.random.Generator, progress: Progress | None = None
) -> list[Half]:
    """Grow halves of the real tasks to all of them, with what the half alone can tell, and compare."""
    if len(real) < FEWEST_TASKS:
        return []
    prior, advance = agent.prior, begin(progress, "checking the growth", halves)
    whole = np.array(recognised([task.anchor for task in real], prior, [task.test for task in real]))
    found = []
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
        found.append(Half(alone, float(whole[chosen].mean()), float(whole.mean()), fmean(grown), reach))
        if advance is not None:
            advance(1)
    return found


def _fitted(agent: Core, real: Sequence[RealTask], rng: np.random.Generator) -> float:
    """Fitted on validation images: test images only ever check."""
    seen = [task for task in real if len(task.validation)]
    if len(seen) < FEWEST_TASKS // 2:
        return 1.0
    return fit_reach([task.anchor for task in seen], agent.prior, [task.validation for task in seen], rng)


def _learned(agent: Core, folder: TaskImages, progress: Progress | None) -> RealTask:
    # Cold: what is measured of a task must not depend on which were learned before it.
    module, lesson = agent.learn(folder, warm_start=WarmStart("never"), progress=progress)
    test = folder.splits["test"].files
    described = agent.backbone.describe(test, begin(progress, f"{folder.name} (test)", len(test)))
    if not len(described.raw):
        raise DataError(f"{folder.name!r} has no test image that can be read; add images or a test folder")
    x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
    return RealTask(SketchAnchor.read(module.tensors), lesson.validation, x)


def _refuse_plan(paths: Sequence[Path], plan: ScalePlan) -> None:
    if len(paths) < 3:
        raise DataError(f"growing needs three real tasks or more, found {len(paths)}; name more folders")
    if not len(paths) < plan.tasks <= MOST_TASKS:
        raise DataError(
            f"{len(paths)} real tasks can be grown to more than that and up to {MOST_TASKS:,}, not to "
            f"{plan.tasks:,}; choose --tasks in between"
        )
