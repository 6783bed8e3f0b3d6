"""Accuracy of task recognition over the number of tasks, with its regression line and where it meets a level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skillmesh_challenge.metrics import FEWEST_TASKS, Interval, Line, fit_line
from skillmesh_challenge.paper.cells import printed
from skillmesh_challenge.report.collect import Comparison
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.style import GREY, End, canvas, label_ends, limits, signs, whole_numbers
from skillmesh_challenge.report.table import Cell, ReportTable, number, percent, rows, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PAPER_GMMC = Line(-0.0012, 0.952)
"""Regression line of GMMC in section 5 of the paper."""
FAR = 1000
"""Largest number of tasks that the extrapolation is drawn to."""


def mapper(comparison: Comparison, levels: Sequence[float]) -> Figure | None:
    """Return the figure; None if no method recognises tasks or there is only one. Too few tasks get no line."""
    curves = {group.label: group.average_curve("found") for group in comparison.shown}
    points = {label: _points(curve) for label, curve in curves.items()}
    points = {label: curve for label, curve in points.items() if len(curve) > 1}
    if not points:
        return None
    enough = {label: curve for label, curve in points.items() if len(curve) >= FEWEST_TASKS}
    lines = {label: fit_line(*zip(*curve, strict=True)) for label, curve in enough.items()}
    title = "Task recognition over the number of tasks"
    alt = "Points over the number of tasks. " + "; ".join(
        f"{label}: {100 * curve[-1][1]:.1f} % after {curve[-1][0]} tasks"
        + (f", line {_formula(lines[label])}" if label in lines else ", no line")
        for label, curve in points.items()
    )
    order = {label: index for index, label in enumerate(curves)}
    table = _table(title, lines, points, levels)
    caption = _caption(lines, points)
    return Figure("mapper", title, caption, alt, lambda: _draw(points, lines, order), table)


def why_no_line(comparison: Comparison) -> str:
    """Return a sentence that names the methods without a line and the reason; empty if all have enough tasks."""
    counts = {group.label: len(_points(group.average_curve("found"))) for group in comparison.shown}
    few = {label: count for label, count in counts.items() if 1 < count < FEWEST_TASKS}
    if not few:
        return ""
    methods = ", ".join(f"{label} ({count} tasks)" for label, count in few.items())
    return (
        f"No line is fitted and nothing is extrapolated for {methods}: that takes {FEWEST_TASKS} tasks. One easy "
        f"or hard task moves an average over n tasks by up to 100/n points, so with fewer than {FEWEST_TASKS} a "
        "line shows which tasks came first, not how recognition holds up as tasks are added."
    )


def _caption(lines: Mapping[str, Line], points: Mapping[str, list[tuple[int, float]]]) -> str:
    measured = "share of test images whose task is recognised, mean over all tasks known so far"
    absent = "" if len(lines) == len(points) else f" No line is fitted through fewer than {FEWEST_TASKS} tasks."
    if not lines:
        return f"{measured[0].upper()}{measured[1:]}.{absent} The vertical axis need not begin at zero."
    return (
        f"Left: {measured}, with the regression line of each method. Right: the same lines extended beyond the "
        "data, with the paper's own for GMMC (section 5, 102 tasks). A straight line is the paper's way to "
        "extrapolate, not a law: the table gives the number of tasks at which it meets a level. The vertical axis "
        f"on the left need not begin at zero.{absent}"
    )


def _points(curve: Sequence[Interval | None]) -> list[tuple[int, float]]:
    return [(t, point.mean) for t, point in enumerate(curve, 1) if point is not None]


def _formula(line: Line) -> str:
    return f"{line.intercept:.3f} {'−' if line.slope < 0 else '+'} {abs(line.slope):.6f} T"


def _table(
    title: str, lines: dict[str, Line], points: dict[str, list[tuple[int, float]]], levels: Sequence[float]
) -> ReportTable:
    cells: list[list[Cell]] = []
    for label, curve in points.items():
        line = lines.get(label)
        head = [text("ours"), text(label), number(curve[-1][0]), percent(curve[-1][1])]
        read_off = [number(line.meets(level) if line else None) for level in levels]
        cells.append([*head, text(_formula(line)) if line else number(None), *read_off])
    paper = {cell.row: cell.figure for cell in printed("mapper")}
    for name, share, formula in (("GMMC", 0.8494, _formula(PAPER_GMMC)), ("MAHA", 0.871, "–")):
        figure = paper[f"tasks at which {name}'s line meets zero"]
        meets = [Cell(figure.text, figure.range.middle) if level == 0 else number(None) for level in levels]
        cells.append([text("paper"), text(name), number(102), percent(share), text(formula), *meets])
    columns = ("of", "method", "tasks", "task found at the end", "regression line")
    heads = tuple(f"meets {100 * level:g} % at T =" for level in levels)
    note = "The paper's line for GMMC as printed, 0.952 − 0.0012 T, meets zero at 793; the paper says 800."
    return ReportTable(
        "mapper",
        title,
        (*columns, *heads),
        rows(cells),
        (("", note),),
        ours=frozenset(range(len(points))),
    )


def _draw(points: dict[str, list[tuple[int, float]]], lines: dict[str, Line], order: dict[str, int]) -> Canvas:
    figure = canvas(9.5, 3.7) if lines else canvas(7.5, 3.6)
    panels = figure.subplots(1, 2, width_ratios=[1.25, 1]) if lines else [figure.add_subplot()]
    longest = max(t for curve in points.values() for t, _ in curve)
    _measured(panels[0], points, lines, order, longest)
    if lines:
        panels[0].set_title("measured")
        _ahead(panels[1], lines, order, longest)
    return figure


def _measured(
    axes: Axes,
    points: dict[str, list[tuple[int, float]]],
    lines: dict[str, Line],
    order: dict[str, int],
    longest: int,
) -> None:
    """Draw points and the regression lines through them; points without such a line are joined."""
    ends = []
    values = [100 * share for curve in points.values() for _, share in curve]
    for label, curve in points.items():
        look = signs(order[label])
        t, y = zip(*curve, strict=True)
        joined = {} if label not in lines else {"linestyle": ""}
        axes.plot(t, [100 * v for v in y], clip_on=False, **(look | {"markersize": 3.5} | joined))
        end = 100 * (lines[label].at(longest) if label in lines else y[-1])
        if label in lines:
            _line(axes, lines[label], longest, look)
            values.append(end)
        ends.append((longest, end, label, look["color"]))
    axes.set(xlabel="tasks learned", ylabel="task recognised, %", ylim=limits(values), xlim=(0, 1.015 * longest))
    whole_numbers(axes)
    axes.grid(axis="y")
    label_ends(axes, ends)


def _ahead(axes: Axes, lines: dict[str, Line], order: dict[str, int], longest: int) -> None:
    """Draw the lines extended beyond the data; the name of a line that reaches zero is inside the panel."""
    ends: list[End] = []
    named = 0
    every = [(label, line, signs(order[label])["color"], longest) for label, line in lines.items()]
    for label, line, colour, start in [*every, ("paper, GMMC", PAPER_GMMC, GREY, 102)]:
        _line(axes, line, start, {"color": colour, "linestyle": "-"})
        last = min(FAR, line.meets(0) or FAR)
        if last > start:
            heights = [100 * line.at(start), 100 * line.at(last)]
            axes.plot([start, last], heights, linestyle=(0, (4, 2)), color=colour)
        if last < FAR:
            _name_inside(axes, line, f"{label}, 0 at {last:.0f}", colour, named)
            named += 1
        else:
            ends.append((last, 100 * line.at(last), label, colour))
    axes.set(xlabel="tasks", ylabel="task recognised, %", xlim=(0, FAR), ylim=(0, 100))
    axes.set_title("extrapolated (dashed)")
    axes.grid(axis="y")
    label_ends(axes, ends)


def _name_inside(axes: Axes, line: Line, name: str, colour: str, named: int) -> None:
    """Write a name beside its line, each higher than the last, on the right where the left has no room."""
    level = 0.04 + 0.09 * named
    at = line.meets(level) or 0.0
    left = at >= FAR / 3
    look: dict[str, Any] = {"color": colour, "fontsize": 8, "va": "center", "ha": "right" if left else "left"}
    look["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6}
    axes.annotate(name, (at, 100 * level), (-5 if left else 5, 0), textcoords="offset points", **look)


def _line(axes: Axes, line: Line, until: int, look: dict[str, object]) -> None:
    axes.plot(
        [1, until],
        [100 * line.at(1), 100 * line.at(until)],
        color=look["color"],
        linestyle=look["linestyle"],
        linewidth=1.4,
    )
