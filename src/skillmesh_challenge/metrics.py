"""Metrics of the challenge, computed from accuracies and costs, and a run's results in these metrics.

An accuracy matrix holds R[t, i], the accuracy of task i after t + 1 tasks. Entries above the diagonal (tasks that
are not learned yet) and entries that a method does not have are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.errors import SkillmeshError
from skillmesh.evaluation.evaluate import macro_average
from skillmesh_challenge.entries import Learned, TaskAtStep
from skillmesh_challenge.record import Record

FEWEST_TASKS = 20
"""Smallest number of tasks whose regression line may be extrapolated.

One easy or hard task moves an average over n tasks by up to 100/n points. Below 20 tasks that is more than 5,
three times what `sketch` loses over 40 tasks: the line would show which tasks came first, not a trend.
"""


@dataclass(frozen=True)
class Line:
    """Regression line: accuracy = intercept + slope · tasks."""

    slope: float
    intercept: float

    def at(self, tasks: float) -> float:
        return self.intercept + self.slope * tasks

    def meets(self, level: float) -> float | None:
        """Return the number of tasks at which accuracy falls to `level`; None for a line that does not fall."""
        if self.slope >= 0:
            return None
        return max((level - self.intercept) / self.slope, 0.0)


def fit_line(tasks: Sequence[float], accuracy: Sequence[float]) -> Line:
    """Return the least-squares line, in the unit of the accuracies (shares or per cent)."""
    if len(tasks) != len(accuracy) or len(set(tasks)) < 2:
        raise SkillmeshError(
            f"found {len(accuracy)} accuracies at {sorted(set(tasks))} tasks, but a line needs accuracies at two "
            "numbers of tasks or more; run the challenge with more tasks"
        )
    from scipy.stats import linregress

    fit = linregress(tasks, accuracy)
    return Line(float(fit.slope), float(fit.intercept))


Matrix = NDArray[np.float64]

# Accuracy.


def averages(matrix: Matrix) -> list[float | None]:
    """Return the mean over the tasks known so far, after each task."""
    return [_mean(matrix[t, : t + 1]) for t in range(len(matrix))]


def over_time(matrix: Matrix, tasks: int) -> list[float | None]:
    """Return the mean over the first `tasks` tasks that are known, after each task."""
    return [_mean(matrix[t, : min(t + 1, tasks)]) for t in range(len(matrix))]


def after_learning(matrix: Matrix) -> float | None:
    """Return the mean over tasks of the accuracy just after each was learned."""
    return _mean(np.diagonal(matrix))


def normalised(matrix: Matrix) -> Matrix:
    """Return each accuracy divided by that just after its task was learned (the paper's definition)."""
    first = np.diagonal(matrix)
    with np.errstate(divide="ignore", invalid="ignore"):
        divided = np.where(first > 0, matrix / first, np.nan)
    return np.asarray(np.where(np.tri(len(matrix), dtype=bool), divided, np.nan))


def backward_transfer(matrix: Matrix) -> float | None:
    """Return the mean change of accuracy from just after learning to the end, over all tasks but the last."""
    return _mean(matrix[-1, :-1] - np.diagonal(matrix)[:-1])


def forgetting(matrix: Matrix) -> float | None:
    """Return the mean drop of accuracy from its earlier best to the end, over all tasks but the last."""
    best = np.array([_largest(matrix[i:-1, i]) for i in range(len(matrix) - 1)])
    return _mean(best - matrix[-1, :-1])


def forward_transfer(matrix: Matrix, chance: Sequence[float]) -> float | None:
    """Return the mean accuracy above chance of each task just before it is learned, over all but the first.

    None for methods that know nothing of a task before it is learned: they have no entries above the diagonal.
    """
    before = np.array([matrix[i - 1, i] - chance[i] for i in range(1, len(matrix))])
    return _mean(before)


def line_through(values: Sequence[float | None]) -> Line | None:
    """Return the least-squares line through values after 1, 2, … tasks; None for fewer than two values."""
    points = [(t, value) for t, value in enumerate(values, 1) if value is not None]
    return fit_line(*zip(*points, strict=True)) if len(points) > 1 else None


# Costs.


@dataclass(frozen=True)
class RunCosts:
    """Cost in MACs until every agent has every task, and the speedup of many agents over one.

    These are the paper's terms: teachers share the work evenly (the total divided by the number of agents), the
    receiver is the bottleneck of communication, and every student does the same work. A single agent sends nothing
    and builds its mapper as often as a student does. Real tasks differ: `busiest` is the agent with the most work.
    """

    agents: int
    alpha: float
    teacher_total: float
    teacher: float
    """Teaching MACs per agent: the total divided by the number of agents."""
    received_bytes: float
    """Mean number of bytes that an agent receives: what the others learned."""
    communication: float
    student: float
    """MACs of an agent for all rebuilds of its mapper, one after every task."""
    single: float
    """MACs of one agent that learns everything."""
    parallel: float
    busiest: float
    """Like `parallel`, for the agent with the most work."""

    @property
    def speedup(self) -> float:
        return self.single / self.parallel

    @property
    def efficiency(self) -> float:
        """The paper's parallelisation efficiency: speedup over the number of agents."""
        return self.speedup / self.agents

    @property
    def busiest_speedup(self) -> float:
        return self.single / self.busiest


def costs_of(
    teachers: Mapping[str, float], received: Mapping[str, float], student: float, alpha: float
) -> RunCosts:
    """Return the costs of a run from the MACs of each teacher, the bytes received and the MACs of a student."""
    agents = len(teachers)
    total = math.fsum(teachers.values())
    received_bytes = math.fsum(received.values()) / agents
    busiest = max(teachers[name] + alpha * received[name] for name in teachers) + student
    return RunCosts(
        agents=agents,
        alpha=alpha,
        teacher_total=total,
        teacher=total / agents,
        received_bytes=received_bytes,
        communication=alpha * received_bytes,
        student=student,
        single=total + student,
        parallel=total / agents + alpha * received_bytes + student,
        busiest=busiest,
    )


# Seeds.


@dataclass(frozen=True)
class Interval:
    """Mean over seeds with the half-width of its 95 % confidence interval (None with one seed)."""

    mean: float
    half_width: float | None
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of the values with its 95 % confidence interval by Student's t."""
    from scipy.stats import sem, t

    count = len(values)
    half_width = float(t.ppf(0.975, count - 1) * sem(values)) if count > 1 else None
    return Interval(math.fsum(values) / count, half_width, count)


def pooled(one: Interval, other: Interval) -> Interval:
    """Return the interval over the values of both, computed without the single values."""
    from scipy.stats import t

    count = one.seeds + other.seeds
    mean = (one.seeds * one.mean + other.seeds * other.mean) / count
    squares = 0.0
    for part in (one, other):
        if part.half_width is not None:
            spread = part.half_width * math.sqrt(part.seeds) / float(t.ppf(0.975, part.seeds - 1))
            squares += (part.seeds - 1) * spread**2
        squares += part.seeds * (part.mean - mean) ** 2
    return Interval(mean, float(t.ppf(0.975, count - 1)) * math.sqrt(squares / (count - 1) / count), count)


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return math.fsum(known) / len(known) if len(known) else None


def _largest(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else math.nan


# From a run's record to its results: macro averages, metrics, costs, wall-clock.

AVERAGED = {"given": "task_given_accuracy", "found": "task_found_accuracy", "final": "final_accuracy"}
AVERAGED |= {"strict": "strict_accuracy", "unknown": "known_unanswered"}
"""Names of a step's figures, and the names of their macro averages in `skillmesh eval`."""
LEVELS = (0.9, 0.8, 0.5, 0.0)
"""Accuracies at which the regression line of the mapper is read off; the paper uses zero."""


def results_of(record: Record) -> dict[str, Any]:
    """Return the values for tables and figures as a JSON-compatible dict; times are under `wall_seconds`."""
    last = record.steps[-1]
    results: dict[str, Any] = macro_averages(last.tasks[: last.known])
    results |= {
        "module_bytes": macro_average([learned.module_bytes for learned in record.learned]),
        "anchor_bytes": macro_average([learned.parts.get("anchor", 0) for learned in record.learned]),
        "bytes_by_part": _parts(record.learned),
        "bounds": _bounds(record),
        "lifelong": _lifelong(record),
        "costs": _costs(record),
        "sharing": _sharing(record),
        "wall_seconds": _wall(record),
    }
    return results


def macro_averages(tasks: Sequence[TaskAtStep]) -> dict[str, float | None]:
    """Return the macro averages, equal to those of `skillmesh eval` to the last digit."""
    averages: dict[str, float | None] = {}
    for figure, name in AVERAGED.items():
        values = [getattr(task, figure) for task in tasks]
        averages[name] = None if None in values else macro_average(values)
    return averages


def _parts(learned: Sequence[Learned]) -> dict[str, float]:
    """Return the mean number of bytes of a module, by what they hold."""
    names = sorted({part for task in learned for part in task.parts})
    return {name: macro_average([task.parts.get(name, 0) for task in learned]) for name in names}


def _bounds(record: Record) -> dict[str, Any]:
    """Return the expected upper bounds of the final accuracy: the task given, and all data in one place."""
    last = record.steps[-1]
    bounds: dict[str, Any] = {"task_given": macro_averages(last.tasks[: last.known])["task_given_accuracy"]}
    if record.bounds is not None:
        averages = macro_averages(record.bounds.tasks)
        bounds["all_data_together"] = {"how": record.bounds.how} | {
            name: value for name, value in averages.items() if value is not None
        }
    return bounds


def _lifelong(record: Record) -> dict[str, Any]:
    """Return how the accuracies of the final answer and of task recognition change as tasks are added."""
    final, mapper = record.matrix("final"), record.matrix("found")
    chance = [1 / len(task.classes) for task in record.settings.tasks]
    relative = normalised(final)
    enough = len(record.settings.tasks) >= FEWEST_TASKS
    line = line_through(averages(mapper)) if enough else None
    return {
        "final_after_each_task": averages(final),
        "task_found_after_each_task": averages(mapper),
        "given_after_each_task": averages(record.matrix("given")),
        "task_1": over_time(final, 1),
        "first_ten": over_time(final, 10),
        "normalised_first_ten": over_time(relative, 10),
        "normalised_at_the_end": averages(relative)[-1],
        "backward_transfer": backward_transfer(final),
        "forward_transfer": forward_transfer(final, chance),
        "forgetting": forgetting(final),
        "mapper_line": None
        if line is None
        else asdict(line) | {"meets": {str(level): line.meets(level) for level in LEVELS}},
    }


def _costs(record: Record) -> dict[str, Any]:
    """Return the costs in the paper's terms; with a mesh, the bytes are those really sent."""
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
    costs = costs_of(teachers, received, student, alpha)
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
    """Return the efficiency with what students really computed: one build of the mapper, on a mesh also vetting.

    One agent alone vets nothing and builds its mapper once.
    """
    alpha = record.settings.alpha
    parallel = costs_of(teachers, received, build + _trials(record), alpha).parallel
    return costs_of(teachers, received, build, alpha).single / parallel / len(teachers)


def _trials(record: Record) -> float:
    """Return the mean MACs per agent for vetting received modules, with mappers built for it; 0 without a mesh."""
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
    """Return the wall-clock times of the run."""
    return dict(record.times) | {
        "teachers_seconds": round(sum(learned.seconds for learned in record.learned), 3),
        "rebuilds_seconds": round(sum(step.student_seconds for step in record.steps), 3),
        "from_cache": sum(learned.cached_images or 0 for learned in record.learned),
        "images": sum(learned.images for learned in record.learned),
    }
