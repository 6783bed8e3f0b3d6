"""Upper bounds of a method's final accuracy, and the wording for a supposed bound that lies below the result.

With the task given, the same heads can only do better. One classifier trained on all data together usually does
better too, but need not: single heads, each with its own regularisation strength, can beat it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skillmesh_challenge.metrics import Interval
from skillmesh_challenge.report.collect import Group
from skillmesh_challenge.report.table import Cell, percent

TASK_GIVEN = "task given"
ALL_DATA = "all data together"
WORDS = {TASK_GIVEN: "the task given", ALL_DATA: "one classifier trained on all data together"}
NOT_A_BOUND = "not a bound here: the result is higher"
ROUNDING = 1e-6
"""Shares that differ by less count as equal: macro averages are rounded to six digits."""


@dataclass(frozen=True)
class Bound:
    """An accuracy that is expected to lie above the final accuracy of a method."""

    name: str
    value: Interval | None
    result: Interval | None

    @property
    def known(self) -> bool:
        return self.value is not None and self.result is not None

    @property
    def holds(self) -> bool:
        """Whether the bound is equal to the result or above it."""
        return (
            self.value is not None and self.result is not None and self.value.mean >= self.result.mean - ROUNDING
        )

    def cell(self, notes: list[str]) -> Cell:
        """Return the bound as a cell; if it is below the result, mark it and add its note to `notes`."""
        cell = percent(self.value)
        if self.holds or not self.known:
            return cell
        note = f"{WORDS[self.name][0].upper()}{WORDS[self.name][1:]}: {NOT_A_BOUND}."
        if note not in notes:
            notes.append(note)
        return replace(cell, mark=str(notes.index(note) + 1))


def bounds_of(group: Group) -> dict[str, Bound]:
    """Return both bounds by name."""
    final = group.figure("final_accuracy")
    together = group.figure("bounds", "all_data_together", "final_accuracy")
    values = {TASK_GIVEN: group.figure("bounds", "task_given"), ALL_DATA: together}
    return {name: Bound(name, value, final) for name, value in values.items()}


def bounds_in_words(groups: Sequence[Group]) -> str:
    """Return sentences that name the upper bounds, and the methods for which one does not hold."""
    upper, lower = [], []
    for name, words in WORDS.items():
        bounds = {g.label: bounds_of(g)[name] for g in groups if not (g.has_task_label and name == TASK_GIVEN)}
        above = [label for label, bound in bounds.items() if bound.holds]
        below = [label for label, bound in bounds.items() if bound.known and not bound.holds]
        if above:
            upper.append(words if not below else f"{words} (for {', '.join(above)})")
        if below:
            lower.append(f"For {', '.join(below)}, {words} is {NOT_A_BOUND}.")
    sentences = (
        [f"Upper bounds: {', and '.join(upper)}."] if len(upper) > 1 else [f"Upper bound: {u}." for u in upper]
    )
    return " ".join([*sentences, *lower])
