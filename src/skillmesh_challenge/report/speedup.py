"""Speedup and parallel efficiency over the number of agents, against the paper's requirement of 0.5 N."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillmesh_challenge.report.collect import Comparison, RunFamily
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.style import GREY, End, canvas, label_ends, signs
from skillmesh_challenge.report.table import ReportTable, mean, number, percent, rows, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def speedup(comparison: Comparison) -> Figure | None:
    """Return the figure; None if no method was run with different numbers of agents."""
    families = [sweep for family in comparison.families for sweep in family.sweeps]
    if not families:
        return None
    title = "Speedup and parallel efficiency over the number of agents"
    caption = (
        "Left: one agent's MACs divided by those of N agents that learn in parallel and share (teaching, bytes at "
        "α MACs each, every rebuild of the student's mapper). Dashed: N, a perfect speedup; dotted: 0.5 N, which "
        "the paper requires. Right: the same divided by N. Thin lines count the agent with the most work instead "
        "of the average."
    )
    alt = "Lines over the number of agents. " + "; ".join(map(_summary, families))
    cells = [
        [
            text(family.label),
            number(group.agents),
            number(group.agents / 2, "{:g}"),
            mean(group.figure("costs", "speedup"), "{:.3f}"),
            mean(group.figure("costs", "efficiency"), "{:.4f}"),
            mean(group.figure("costs", "busiest_speedup"), "{:.3f}"),
            percent(group.figure("final_accuracy")),
        ]
        for family in families
        for group in family.groups
    ]
    columns = ("method", "agents N", "0.5 N", "speedup", "efficiency", "speedup, busiest agent", "final accuracy")
    table = ReportTable("speedup", title, columns, rows(cells))
    return Figure("speedup", title, caption, alt, lambda: _draw(families), table)


def _summary(family: RunFamily) -> str:
    last = family.groups[-1]
    speedup = last.figure("costs", "speedup")
    return f"{family.label}: {speedup.mean if speedup else 0:.1f} with {last.agents} agents"


def _draw(families: list[RunFamily]) -> Canvas:
    figure = canvas(9.5, 3.7)
    left, right = figure.subplots(1, 2)
    most = max(group.agents for family in families for group in family.groups)
    ends: list[End] = []
    efficient: list[End] = []
    for index, family in enumerate(families):
        look = signs(index)
        n = [group.agents for group in family.groups]
        for axes, divide in ((left, False), (right, True)):
            for name, thin in (("speedup", {}), ("busiest_speedup", {"linewidth": 0.8, "marker": ""})):
                values = [group.figure("costs", name) for group in family.groups]
                y = [(f.mean if f else 0.0) / (k if divide else 1) for f, k in zip(values, n, strict=True)]
                wide = [
                    (f.half_width or 0.0 if f else 0.0) / (k if divide else 1)
                    for f, k in zip(values, n, strict=True)
                ]
                drawn = axes.errorbar(n, y, wide if any(wide) else None, capsize=2, **(look | thin))
                drawn.lines[0].set_clip_on(False)  # else a marker at an efficiency of 1 is cut off
                label = family.label if name == "speedup" else f"{family.label}, busiest agent"
                (efficient if divide else ends).append((n[-1], y[-1], label, look["color"]))
    for axes, ideal, half in ((left, [1, most], [0.5, most / 2]), (right, [1, 1], [0.5, 0.5])):
        axes.plot([1, most], ideal, linestyle=(0, (4, 2)), color=GREY, linewidth=1)
        axes.plot([1, most], half, linestyle=(0, (1, 1)), color=GREY, linewidth=1.4)
        axes.set(xlabel="agents N", xlim=(0, most * 1.02))
        axes.grid(axis="y")
    ends += [(most, float(most), "N", GREY), (most, most / 2, "0.5 N", GREY)]
    left.set(ylabel="speedup in MACs", ylim=(0, most * 1.04))
    right.set(ylabel="parallel efficiency (speedup / N)", ylim=(0, max([1.0, *(end[1] for end in efficient)])))
    label_ends(left, ends)
    label_ends(right, [*efficient, (most, 0.5, "0.5", GREY)])
    return figure
