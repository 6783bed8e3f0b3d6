"""From a run's record to its results: macro averages, metrics, costs, wall-clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from skillmesh.evaluation.evaluate import macro_average
from skillmesh_challenge import metrics
from skillmesh_challenge.entries import Learned, TaskAtStep
from skillmesh_challenge.record import Record
from skillmesh_challenge.regression import FEWEST_TASKS

AVERAGED = {"given": "task_given_accuracy", "found": "task_found_accuracy", "final": "final_accuracy"}
AVERAGED |= {"strict": "strict_accuracy", "unknown": "known_unknown"}
"""A step's figures, and what `skillmesh eval` calls their macro averages."""
LEVELS = (0.9, 0.8, 0.5, 0.0)
"""Accuracies at which the regression line of the mapper is read off; the paper asks for zero."""


def results_of(record: Record) -> dict[str, Any]:
    """Everything that a table or figure needs, as JSON has it. Times are apart, under `wall_seconds`."""
    last = record.steps[-1]
    found: dict[str, Any] = macro_averages(last.tasks[: last.known])
    found |= {
        "module_bytes": macro_average([learned.module_bytes for learned in record.learned]),
        "anchor_bytes": macro_average([learned.parts.get("anchor", 0) for learned in record.learned]),
        "bytes_by_part": _parts(record.learned),
        "bounds": _bounds(record),
        "lifelong": _lifelong(record),
        "costs": _costs(record),
        "sharing": _sharing(record),
        "wall_seconds": _wall(record),
    }
    return found


def macro_averages(tasks: Sequence[TaskAtStep]) -> dict[str, float | None]:
    """As `skillmesh eval` has them, to the last digit."""
    averages: dict[str, float | None] = {}
    for figure, name in AVERAGED.items():
        values = [getattr(task, figure) for task in tasks]
        averages[name] = None if None in values else macro_average(values)
    return averages


def _parts(learned: Sequence[Learned]) -> dict[str, float]:
    """Bytes of a module on average, by what they hold."""
    names = sorted({part for task in learned for part in task.parts})
    return {name: macro_average([task.parts.get(name, 0) for task in learned]) for name in names}


def _bounds(record: Record) -> dict[str, Any]:
    """Return what should bound the final accuracy from above: the task given, and all data in one place."""
    last = record.steps[-1]
    bounds: dict[str, Any] = {"task_given": macro_averages(last.tasks[: last.known])["task_given_accuracy"]}
    if record.bounds is not None:
        averages = macro_averages(record.bounds.tasks)
        bounds["all_data_together"] = {"how": record.bounds.how} | {
            name: value for name, value in averages.items() if value is not None
        }
    return bounds


def _lifelong(record: Record) -> dict[str, Any]:
    """How accuracies hold as tasks are added, of the final answer and of the task alone."""
    final, mapper = record.matrix("final"), record.matrix("found")
    chance = [1 / len(task.classes) for task in record.settings.tasks]
    relative = metrics.normalised(final)
    enough = len(record.settings.tasks) >= FEWEST_TASKS
    line = metrics.line_through(metrics.averages(mapper)) if enough else None
    return {
        "final_after_each_task": metrics.averages(final),
        "task_found_after_each_task": metrics.averages(mapper),
        "given_after_each_task": metrics.averages(record.matrix("given")),
        "task_1": metrics.over_time(final, 1),
        "first_ten": metrics.over_time(final, 10),
        "normalised_first_ten": metrics.over_time(relative, 10),
        "normalised_at_the_end": metrics.averages(relative)[-1],
        "backward_transfer": metrics.backward_transfer(final),
        "forward_transfer": metrics.forward_transfer(final, chance),
        "forgetting": metrics.forgetting(final),
        "mapper_line": None
        if line is None
        else asdict(line) | {"meets": {str(level): line.meets(level) for level in LEVELS}},
    }


def _costs(record: Record) -> dict[str, Any]:
    """MACs in the paper's terms; with a mesh the bytes are those really sent."""
    assignment, alpha = record.settings.assignment, record.settings.alpha
    teachers = {
        name: math.fsum(learned.total_macs for learned in record.learned if learned.agent == name)
        for name in assignment
    }
    modules = {
        name: float(sum(learned.module_bytes for learned in record.learned if learned.agent != name))
        for name in assignment
    }
    received = modules if record.sharing is None else {k: float(v) for k, v in record.sharing.received.items()}
    student = math.fsum(math.fsum(step.student_macs.values()) for step in record.steps)
    once = math.fsum(record.steps[-1].student_macs.values())
    costs = metrics.costs_of(teachers, received, student, alpha)
    kinds = sorted({kind for learned in record.learned for kind in learned.macs})
    return asdict(costs) | {
        "speedup": costs.speedup,
        "efficiency": costs.efficiency,
        "busiest_speedup": costs.busiest_speedup,
        "efficiency_as_done": _efficiency_as_done(record, teachers, received, once),
        "trials": _trials(record),
        "rebuilds": len(record.steps),
        "student_one_rebuild": once,
        "teacher_by_kind": {
            kind: math.fsum(learned.macs.get(kind, 0.0) for learned in record.learned) for kind in kinds
        },
    }


def _efficiency_as_done(
    record: Record, teachers: dict[str, float], received: dict[str, float], build: float
) -> float:
    """With what students really multiplied: one build of the mapper, and on a mesh the trials before it.

    One agent alone tries nothing and builds once.
    """
    alpha = record.settings.alpha
    parallel = metrics.costs_of(teachers, received, build + _trials(record), alpha).parallel
    return metrics.costs_of(teachers, received, build, alpha).single / parallel / len(teachers)


def _trials(record: Record) -> float:
    """On a mesh, agents try every module before they let it in, with mappers built for that: of an agent."""
    if record.sharing is None or not record.sharing.trial_macs:
        return 0.0
    return math.fsum(record.sharing.trial_macs.values()) / len(record.sharing.trial_macs)


def _sharing(record: Record) -> dict[str, Any] | None:
    sharing = record.sharing
    if sharing is None:
        return None
    return {
        "how": sharing.how,
        "agents": len(sharing.answers),
        "asked": sharing.asked,
        "same_answers": sharing.same_answers,
        "answers_sha256": sorted(set(sharing.answers.values())),
        "bytes_received": sum(sharing.received.values()),
        "bytes_sent": sum(sharing.sent.values()) if sharing.sent else None,
        "held": list(sharing.held),
    }


def _wall(record: Record) -> dict[str, Any]:
    """Wall-clock beside all of it."""
    return dict(record.times) | {
        "teachers_seconds": round(sum(learned.seconds for learned in record.learned), 3),
        "rebuilds_seconds": round(sum(step.student_seconds for step in record.steps), 3),
        "from_cache": sum(learned.cached_images or 0 for learned in record.learned),
        "images": sum(learned.images for learned in record.learned),
    }
