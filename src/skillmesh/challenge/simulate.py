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
from typing import Any

import numpy as np

from skillmesh.agent import Agent
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.challenge.growth import fit_reach, grow, recognised, related
from skillmesh.challenge.scale import Plan, measure
from skillmesh.data.folder import TaskFolder, open_task
from skillmesh.errors import DataError, SkillmeshError
from skillmesh.progress import Progress, begin
from skillmesh.tensors import Floats

TOLERANCE = 0.02
HALVES = 5
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


def simulate(
    agent: Agent, paths: Sequence[Path], plan: Plan, halves: int = HALVES, progress: Progress | None = None
) -> dict[str, Any]:
    """Learn the tasks into a fresh agent, prove the growing on halves of them, then grow and measure."""
    _refuse_plan(paths, plan)
    folders = [open_task(path, hold_out=("val", "test"), seed=plan.seed) for path in paths]
    real = [_learned(agent, folder, progress) for folder in folders]
    rng = np.random.default_rng(plan.seed)
    checked = check_growth(agent, real, halves, rng, progress)
    reach = _fitted(agent, real, rng)
    del real
    scale = measured_apart(agent.home, [str(path) for path in paths], plan, reach)
    proven = bool(checked) and max(abs(half.gap) for half in checked) <= TOLERANCE
    accuracy = {key: scale.pop(key) for key in ("task_accuracy", "final_accuracy", "known_unknown")}
    return {
        "simulated": SIMULATED,
        "real_tasks": len(paths),
        "plan": asdict(plan),
        "reach": reach,
        "check": [asdict(half) | {"gap": half.gap} for half in checked],
        "proven": proven,
        "extrapolated": accuracy if proven else None,
        **scale,
    }


def measured_apart(home: Path, paths: Sequence[str], plan: Plan, reach: float) -> dict[str, Any]:
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
    agent: Agent, real: Sequence[RealTask], halves: int, rng: np.random.Generator, progress: Progress | None = None
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
        more = [g.anchor for g in grow(related(anchors, prior), len(real) - len(half), rng, reach)]
        alone, grown = (float(np.mean(recognised(some, prior, shown))) for some in (anchors, [*anchors, *more]))
        found.append(Half(alone, float(whole[chosen].mean()), float(whole.mean()), grown, reach))
        if advance is not None:
            advance(1)
    return found


def _fitted(agent: Agent, real: Sequence[RealTask], rng: np.random.Generator) -> float:
    """Fitted on validation images: test images only ever check."""
    seen = [task for task in real if len(task.validation)]
    if len(seen) < FEWEST_TASKS // 2:
        return 1.0
    return fit_reach([task.anchor for task in seen], agent.prior, [task.validation for task in seen], rng)


def _learned(agent: Agent, folder: TaskFolder, progress: Progress | None) -> RealTask:
    module, lesson = agent.learn(folder, progress=progress)
    test = folder.splits["test"].files
    described = agent.backbone.describe(test, begin(progress, f"{folder.name} (test)", len(test)))
    if not len(described.raw):
        raise DataError(f"{folder.name!r} has no test image that can be read; add images or a test folder")
    x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
    return RealTask(SketchAnchor.read(module.tensors), lesson.validation, x)


def _refuse_plan(paths: Sequence[Path], plan: Plan) -> None:
    if len(paths) < 3:
        raise DataError(f"growing needs three real tasks or more, found {len(paths)}; name more folders")
    if not len(paths) < plan.tasks <= MOST_TASKS:
        raise DataError(
            f"{len(paths)} real tasks can be grown to more than that and up to {MOST_TASKS:,}, not to "
            f"{plan.tasks:,}; choose --tasks in between"
        )
