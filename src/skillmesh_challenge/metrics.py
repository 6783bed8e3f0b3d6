"""The challenge's metrics, from accuracies and costs alone.

An accuracy matrix has R[t, i], the accuracy of task i after t + 1 tasks; entries above the diagonal (a task that
is still to come) and entries that a method does not have are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skillmesh_challenge.regression import Line, fit_line

Matrix = NDArray[np.float64]

# Accuracy.


def averages(matrix: Matrix) -> list[float | None]:
    """The mean over the tasks known so far, after each task."""
    return [_mean(matrix[t, : t + 1]) for t in range(len(matrix))]


def over_time(matrix: Matrix, tasks: int) -> list[float | None]:
    """The mean over the first so many tasks, as far as they are known, after each task."""
    return [_mean(matrix[t, : min(t + 1, tasks)]) for t in range(len(matrix))]


def after_learning(matrix: Matrix) -> float | None:
    """The mean over tasks of each one's accuracy when it had just been learned."""
    return _mean(np.diagonal(matrix))


def normalised(matrix: Matrix) -> Matrix:
    """Each accuracy divided by that just after its task was learned (the paper's definition)."""
    first = np.diagonal(matrix)
    with np.errstate(divide="ignore", invalid="ignore"):
        divided = np.where(first > 0, matrix / first, np.nan)
    return np.asarray(np.where(np.tri(len(matrix), dtype=bool), divided, np.nan))


def backward_transfer(matrix: Matrix) -> float | None:
    """How accuracies of all tasks but the last have changed at the end since each was learned, on average."""
    return _mean(matrix[-1, :-1] - np.diagonal(matrix)[:-1])


def forgetting(matrix: Matrix) -> float | None:
    """How far all tasks but the last are at the end below the best they ever had before, on average."""
    best = np.array([_largest(matrix[i:-1, i]) for i in range(len(matrix) - 1)])
    return _mean(best - matrix[-1, :-1])


def forward_transfer(matrix: Matrix, chance: Sequence[float]) -> float | None:
    """Accuracy of each task but the first just before it is learned, over chance, on average.

    None for methods that know nothing of a task before it is learned: they have no entries above the diagonal.
    """
    before = np.array([matrix[i - 1, i] - chance[i] for i in range(1, len(matrix))])
    return _mean(before)


def line_through(values: Sequence[float | None]) -> Line | None:
    """The line of least squares through values after 1, 2, … tasks; none through fewer than two."""
    points = [(t, value) for t, value in enumerate(values, 1) if value is not None]
    return fit_line(*zip(*points, strict=True)) if len(points) > 1 else None


# Costs.


@dataclass(frozen=True)
class RunCosts:
    """What it takes until every agent knows everything, in MACs, and how much faster many agents are than one.

    The paper's terms: teachers share the work evenly (all of it divided by the agents), the receiver is where
    communication queues up, and every student does the student's work. One agent alone sends nothing, and builds
    its mapper as often as a student does. Real tasks are not even: `busiest` is the agent that has most to do.
    """

    agents: int
    alpha: float
    teacher_total: float
    teacher: float
    """Of an agent: all of it divided by the number of agents."""
    received_bytes: float
    """By an agent, on average: what the others learned."""
    communication: float
    student: float
    """Of an agent: all rebuilds of its mapper, one after every task."""
    single: float
    """One agent that learns everything."""
    parallel: float
    busiest: float
    """As `parallel`, of the agent that has most to do."""

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
    """Put together what each agent spent as a teacher and received in bytes, and what a student spends."""
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
    """A mean over seeds, and how far its 95 % confidence interval reaches to either side; None with one seed."""

    mean: float
    half_width: float | None
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """Student's t."""
    from scipy.stats import sem, t

    count = len(values)
    half_width = float(t.ppf(0.975, count - 1) * sem(values)) if count > 1 else None
    return Interval(math.fsum(values) / count, half_width, count)


def pooled(one: Interval, other: Interval) -> Interval:
    """The interval of both's values together, which it takes no single value to know."""
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
