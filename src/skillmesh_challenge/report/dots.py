"""Accuracy just after learning, forgetting, and accuracy at the end: a row of dots for every method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skillmesh_challenge.metrics import Interval, after_learning, forgetting
from skillmesh_challenge.report.collect import Comparison, Group
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.style import GREY, PALETTE, canvas, limits
from skillmesh_challenge.report.table import TASK_LABEL, ReportTable, percent, rows, task_label, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

LOOKS: dict[bool, dict[str, Any]] = {
    True: {"color": GREY, "marker": "o", "markerfacecolor": "white", "label": "task label given"},
    False: {"color": PALETTE[0], "marker": "o", "label": "no task label"},
}


@dataclass(frozen=True)
class DotRow:
    """A method with its accuracies and forgetting, as shares."""

    label: str
    has_task_label: bool
    """Whether the method is given the task label of every test image."""
    learned: Interval
    forgotten: Interval
    final: Interval


def learned_and_forgotten(comparison: Comparison) -> Figure | None:
    """Return the figure; None if no method has learned two tasks."""
    methods = best_first([row for group in comparison.shown if (row := _row(group))])
    if not methods:
        return None
    title = "Accuracy after learning, forgetting, and accuracy at the end"
    caption = (
        "Left: average accuracy of the tasks just after learning, with the task given. Middle: drop of the final "
        "accuracy from its best value to the end. Right: final accuracy at the end. Hollow dots: the method is "
        "given the task label of every test image. A method that learns nothing forgets nothing: read both "
        "together."
        + (" Whiskers are 95 % confidence intervals over seeds." if any(map(_has_whiskers, methods)) else "")
    )
    alt = "Dots. " + "; ".join(
        f"{row.label}: {100 * row.learned.mean:.1f} % just after learning, {100 * row.forgotten.mean:.1f} points "
        f"forgotten, {100 * row.final.mean:.1f} % at the end"
        for row in methods
    )
    columns = ("run", TASK_LABEL, "just after learning", "forgotten", "at the end")
    cells = [
        [text(row.label), task_label(row.has_task_label), *map(percent, (row.learned, row.forgotten, row.final))]
        for row in methods
    ]
    table = ReportTable("learned-and-forgotten", title, columns, rows(cells))
    return Figure("learned-and-forgotten", title, caption, alt, lambda: draw(methods), table)


def best_first(methods: Sequence[DotRow]) -> list[DotRow]:
    return sorted(methods, key=lambda row: -row.final.mean)


def _row(group: Group) -> DotRow | None:
    learned = group.over_seeds(lambda record: after_learning(record.matrix("given")))
    forgotten = group.over_seeds(lambda record: forgetting(record.matrix("final")))
    final = group.figure("final_accuracy")
    if learned is None or forgotten is None or final is None:
        return None
    return DotRow(group.label, group.has_task_label, learned, forgotten, final)


def _has_whiskers(row: DotRow) -> bool:
    return any(figure.half_width for figure in (row.learned, row.forgotten, row.final))


def draw(methods: Sequence[DotRow]) -> Canvas:
    figure = canvas(8.5, 0.24 * len(methods) + 1.2)
    left, middle, right = figure.subplots(1, 3, sharey=True)
    for axes, figures in ((left, [row.learned for row in methods]), (right, [row.final for row in methods])):
        axes.set_xlim(limits([100 * (figure.mean - (figure.half_width or 0.0)) for figure in figures]))
    _dots(left, methods, [row.learned for row in methods], "just after learning, %")
    _dots(middle, methods, [row.forgotten for row in methods], "forgotten, points")
    _dots(right, methods, [row.final for row in methods], "at the end, %")
    middle.axvline(0, color=GREY, linewidth=0.8)
    left.set_yticks(range(len(methods)), labels=[row.label for row in methods])
    left.set_ylim(len(methods) - 0.4, -0.6)
    low, high = middle.get_xlim()
    middle.set_xlim(min(low, -0.5), max(high, 2.0))  # fractions of a point must not fill the axis
    handles, labels = right.get_legend_handles_labels()
    each = dict(zip(labels, handles, strict=True))
    figure.legend(each.values(), each, loc="outside upper right", ncols=2)
    return figure


def _dots(axes: Axes, methods: Sequence[DotRow], figures: Sequence[Interval], label: str) -> None:
    for at, (row, figure) in enumerate(zip(methods, figures, strict=True)):
        wide = None if figure.half_width is None else 100 * figure.half_width
        drawn = axes.errorbar(
            100 * figure.mean, at, xerr=wide, linestyle="", linewidth=1, **LOOKS[row.has_task_label]
        )
        drawn.lines[0].set_clip_on(False)  # else a dot at 100 % is cut off
    axes.set_xlabel(label)
    axes.grid(axis="both")
