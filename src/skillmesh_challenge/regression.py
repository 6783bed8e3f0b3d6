"""The line through accuracy over the number of tasks, and where it meets a level, as the paper looks ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skillmesh.errors import SkillmeshError

FEWEST_TASKS = 20
"""Number of tasks from which on a line may be drawn on beyond them.

One easy or hard task moves an average over n tasks by up to 100/n points. Below 20 tasks that is more than 5,
three times what `sketch` loses over 40 tasks: the line would show which tasks came first, not a trend.
"""


@dataclass(frozen=True)
class Line:
    """accuracy = intercept + slope · tasks"""

    slope: float
    intercept: float

    def at(self, tasks: float) -> float:
        return self.intercept + self.slope * tasks

    def meets(self, level: float) -> float | None:
        """At how many tasks accuracy falls to `level`; nothing for a line that does not fall."""
        if self.slope >= 0:
            return None
        return max((level - self.intercept) / self.slope, 0.0)


def fit_line(tasks: Sequence[float], accuracy: Sequence[float]) -> Line:
    """Least squares. Accuracies as shares or in per cent: the line speaks the same."""
    if len(tasks) != len(accuracy) or len(set(tasks)) < 2:
        raise SkillmeshError(
            f"a line needs accuracies at two numbers of tasks or more, found {len(accuracy)} for the numbers "
            f"{sorted(set(tasks))}; run the challenge with more tasks"
        )
    from scipy.stats import linregress

    found = linregress(tasks, accuracy)
    return Line(float(found.slope), float(found.intercept))
