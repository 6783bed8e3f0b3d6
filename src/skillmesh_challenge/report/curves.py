"""The paper's figures of accuracy over the number of tasks: task 1, the first ten, all known so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from skillmesh_challenge.metrics import Interval, interval, normalised, over_time
from skillmesh_challenge.report.bounds import ALL_DATA, Bound, bounds_in_words, bounds_of
from skillmesh_challenge.report.collect import Comparison, Group
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.style import (
    PALETTE,
    End,
    canvas,
    draw_curve,
    label_ends,
    limits,
    signs,
    whole_numbers,
)
from skillmesh_challenge.report.tables import curve_table, undivided

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Curve = Sequence[Interval | None]
SEEDS = " Bands are 95 % confidence intervals over seeds."
ORDERS = (
    " Where seeds drew the order of tasks, a step adds a different task with each seed: lines are means. A band "
    "would show how tasks differ, not how certain a mean is; the table has the intervals."
)
FIRST = 10
AXIS = " The vertical axis need not begin at zero."


def task_1(comparison: Comparison) -> Figure:
    curves = {
        group.label: group.curve(lambda record: over_time(record.matrix("final"), 1)) for group in comparison.shown
    }
    names = sorted({record.settings.names[0] for group in comparison.shown for record in group.records})
    title = "Accuracy of task 1 over time"
    caption = (
        f"Final accuracy on the first task ({', '.join(names)}) as more and more tasks are learned. Losses of a "
        "method without a task label are images taken for other tasks; losses of one that is given it are "
        "forgetting." + _seeds(comparison) + AXIS
    )
    alt = "Lines over the number of tasks. " + _ends(curves)
    table = curve_table("task-1", title, curves)

    def draw() -> Canvas:
        figure = canvas(7.5, max(3.6, 0.3 * len(curves)))
        _draw(figure.add_subplot(), curves, "accuracy of task 1, %", _banded(comparison))
        return figure

    return Figure("task-1", title, caption, alt, draw, table)


def average(comparison: Comparison) -> Figure:
    final = {group.label: group.average_curve("final") for group in comparison.shown}
    # With a task label, both curves are equal.
    unlabelled = [group for group in comparison.shown if not group.has_task_label]
    given = {f"{group.label}, task given": group.average_curve("given") for group in unlabelled}
    together = {group.label: bounds_of(group)[ALL_DATA] for group in comparison.shown}
    title = "Average accuracy over time"
    bounds = {
        f"{label}, {_all_data(bound)}": _at_the_end(final[label], bound.value)
        for label, bound in together.items()
        if bound.value is not None
    }
    table = curve_table("average-accuracy", title, final | given | bounds)
    alt = "Lines over the number of tasks. " + _ends(final | given)

    def draw() -> Canvas:
        figure = canvas(7.5, max(3.9, 0.45 * len(final)))
        axes = figure.add_subplot()
        order = list(final)
        named = _same_ends(given, "task given", order)
        for words in {_all_data(bound): None for bound in together.values()}:
            alike = {label: curve for label, curve in bounds.items() if label.endswith(f", {words}")}
            named += _same_ends(alike, words, order)
        for group, curve in zip(unlabelled, given.values(), strict=True):
            index = order.index(group.label)
            draw_curve(axes, curve, index, band=False, linestyle=(0, (1, 1.2)), linewidth=1.1, marker="")
        also = [*given.values(), *bounds.values()]
        _draw(axes, final, "average accuracy, %", _banded(comparison), also, named)
        for index, (label, bound) in enumerate(together.items()):
            if bound.value is not None:
                at, colour = (len(final[label]), 100 * bound.value.mean), PALETTE[index % len(PALETTE)]
                axes.plot(*at, color=colour, marker="*", markersize=11, clip_on=False, zorder=5)
        return figure

    return Figure("average-accuracy", title, _average_caption(comparison, list(bounds)), alt, draw, table)


def _all_data(bound: Bound) -> str:
    """Return the label of the classifier trained on all data together, which says if it is no bound."""
    return "all data" if bound.holds else "all data (not a bound here)"


def _average_caption(comparison: Comparison, known: Sequence[str]) -> str:
    together = "Stars at the right edge: one classifier trained on all data together."
    if not known:
        together = "None of these runs has the classifier trained on all data together (made with --no-bound)."
    return (
        "Mean over all tasks learned so far: the final answer (full lines with markers) and the same heads with "
        f"the task given (thin dotted lines of the same colour). {together} {bounds_in_words(comparison.shown)} "
        f"Sudden changes are easy or hard tasks being added.{_seeds(comparison)}{AXIS}"
    )


def first_ten(comparison: Comparison) -> Figure:
    curves = {group.label: _normalised(group) for group in comparison.shown}
    flat = {f"{label}: {task}": curve for label, tasks in curves.items() for task, curve in tasks.items()}
    ends = {label: [curve[-1].mean for curve in tasks.values() if curve[-1]] for label, tasks in curves.items()}
    title = "The first ten tasks, normalised"
    caption = (
        "Final accuracy on each of the first ten tasks divided by its accuracy just "
        "after it was learned, one line per task, one panel per method. 100 % is no "
        "interference. With several seeds, lines are means; the table has the intervals."
        + undivided(comparison, FIRST)
        + AXIS
    )
    alt = "One panel per method with up to ten lines. At the end " + "; ".join(
        f"{label}: lowest {100 * min(values):.1f} %, mean {100 * sum(values) / len(values):.1f} %"
        for label, values in ends.items()
        if values
    )
    table = curve_table("first-ten", title, flat)
    return Figure("first-ten", title, caption, alt, lambda: _ten_panels(curves), table)


def _normalised(group: Group) -> dict[str, Curve]:
    """Return the normalised curve of each of the first ten tasks, by its name (if seeds drew the order: place)."""
    count = min(FIRST, len(group.tasks))
    names = group.tasks if group.same_order else [f"task {index + 1}" for index in range(count)]
    matrices = [normalised(record.matrix("final")) for record in group.records]
    return {
        names[index]: [_over(matrix[t, index] for matrix in matrices) for t in range(len(group.tasks))]
        for index in range(count)
    }


def _over(values: object) -> Interval | None:
    shares = [float(value) for value in values]  # type: ignore[attr-defined]
    return None if np.isnan(shares).any() else interval(shares)


def _ten_panels(curves: dict[str, dict[str, Curve]]) -> Canvas:
    columns = min(3, len(curves))
    lines = -(-len(curves) // columns)
    figure = canvas(max(7.5, 3.1 * columns + 1.2), 2.7 * lines + 0.5)
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    values = [100 * p.mean for tasks in curves.values() for curve in tasks.values() for p in curve if p]
    low, high = limits(values)
    # A ratio may exceed 100 %, if a task is answered better than just after it was learned.
    ends = low, max(high, 5.0 * math.ceil(max(values, default=0.0) / 5.0 - 1e-9))
    for axes, (label, tasks) in zip(panels.flat, curves.items(), strict=False):
        for index, (task, curve) in enumerate(tasks.items()):
            draw_curve(axes, curve, index, band=False, linewidth=1.2, markersize=3.5, label=task)
        axes.set(title=fill(label, 26), ylim=ends, xlim=(0.5, None))
        axes.tick_params(labelbottom=True)
        axes.grid(axis="y")
        whole_numbers(axes)
    for axes in panels.flat[len(curves) :]:
        axes.set_visible(False)
    figure.supxlabel("tasks learned", fontsize=9)
    panels[0, 0].set_ylabel("normalised accuracy, %")
    shared = len({tuple(tasks) for tasks in curves.values()}) == 1
    for axes in [panels[0, columns - 1]] if shared else panels.flat[: len(curves)]:
        place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02)} if shared else {"loc": "lower left"}
        axes.legend(fontsize=7.5 if shared else 6, handlelength=2.6, **place)
    return figure


def _draw(
    axes: Axes,
    curves: Mapping[str, Curve],
    what: str,
    banded: frozenset[str],
    also: Sequence[Curve] = (),
    more: Sequence[End] = (),
) -> None:
    """Draw curves with their names at their ends; those in `banded` also get their confidence band."""
    values = [100 * point.mean for curve in (*curves.values(), *also) for point in curve if point]
    wide = [point for label in banded for point in curves[label] if point]
    values += [100 * (point.mean - (point.half_width or 0.0)) for point in wide]
    for index, (label, curve) in enumerate(curves.items()):
        draw_curve(axes, curve, index, band=label in banded)
    longest = max(len(curve) for curve in curves.values())
    axes.set(
        xlabel="tasks learned", ylabel=what, xlim=(1 - 0.0125 * longest, 1.0125 * longest), ylim=limits(values)
    )
    axes.grid(axis="y")
    whole_numbers(axes)
    ends = [
        (len(curve), 100 * curve[-1].mean, f"{label}, {100 * curve[-1].mean:.1f} %", signs(index)["color"])
        for index, (label, curve) in enumerate(curves.items())
        if curve[-1] is not None
    ]
    label_ends(axes, [*ends, *more])


def _same_ends(curves: Mapping[str, Curve], bound: str, order: Sequence[str]) -> list[End]:
    """Return the names of bounds at their ends; curves that end in the same place (the same heads) share a name.

    `order` lists the labels of all curves, which sets their colours.
    """
    by_end: dict[float, list[int]] = {}
    for index, curve in enumerate(curves.values()):
        if curve[-1] is not None:
            by_end.setdefault(round(100 * curve[-1].mean, 1), []).append(index)
    names = [label.removesuffix(f", {bound}") for label in curves]
    length = max(map(len, curves.values()), default=0)
    return [
        (
            length,
            end,
            f"{_together([names[i] for i in indices])}, {bound}, {end:.1f} %",
            signs(order.index(names[indices[-1]]))["color"],
        )
        for end, indices in by_end.items()
    ]


def _together(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) <= 2 else f"{len(names)} methods"


def _at_the_end(curve: Curve, bound: Interval | None) -> Curve:
    return [*[None] * (len(curve) - 1), bound]


def _ends(curves: Mapping[str, Curve]) -> str:
    changes = [
        f"{label} from {100 * curve[0].mean:.1f} to {100 * curve[-1].mean:.1f} %"
        for label, curve in curves.items()
        if curve[0] and curve[-1]
    ]
    return "; ".join(changes) + "."


def _banded(comparison: Comparison) -> frozenset[str]:
    """Return the labels of the groups whose several seeds learned the tasks in the same order."""
    return frozenset(group.label for group in comparison.shown if len(group.records) > 1 and group.same_order)


def _seeds(comparison: Comparison) -> str:
    drawn = not all(group.same_order for group in comparison.shown)
    return (SEEDS if _banded(comparison) else "") + (ORDERS if drawn else "")
