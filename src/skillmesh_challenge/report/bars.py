"""Bar charts of every task: its accuracies, and its bytes by what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from skillmesh_challenge.report.collect import Comparison, Group
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.style import HATCHES, PALETTE, canvas
from skillmesh_challenge.report.table import ReportTable, number, percent, rows, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

FIGURES = {"given": "task given", "found": "task found", "final": "final"}
LOOKS = {
    "given": {"facecolor": "white", "edgecolor": "black"},
    "found": {"facecolor": PALETTE[5], "edgecolor": "black", "hatch": "//////"},
    "final": {"facecolor": PALETTE[0], "edgecolor": "black"},
}
PARTS = ("head", "anchor", "probes", "biases", "card")
"""Order of the parts; parts with other names come after these."""
FEW, SHORT = 6, 14
"""Up to 6 tasks with names of up to 14 letters have room for horizontal names below their bars."""
COMPARABLE = 10.0
"""Methods whose bytes differ by more than this factor get separate axes, so that small ones are visible."""


def per_task(comparison: Comparison) -> Figure:
    groups = comparison.shown
    title = "Accuracy of every task at the end"
    caption = (
        "One panel per method, one group of bars per task, in the order in which they were learned: right class "
        "with the task given, right task, and final (right task and class; no task label, unless the method is "
        "given it)."
        + (
            " Whiskers are 95 % confidence intervals over seeds."
            if any(len(g.records) > 1 for g in groups)
            else ""
        )
    )
    alt = "Bars. " + "; ".join(_worst(group) for group in groups)
    lines = [
        [text(group.label), text(task), *(percent(group.at_the_end(task, name)) for name in FIGURES)]
        for group in groups
        for task in group.tasks
    ]
    table = ReportTable("per-task", title, ("run", "task", *FIGURES.values()), rows(lines))
    return Figure("per-task", title, caption, alt, lambda: _bars(groups), table)


def _worst(group: Group) -> str:
    finals = {task: group.at_the_end(task, "final") for task in group.tasks}
    known = {task: share.mean for task, share in finals.items() if share is not None}
    task = min(known, key=known.__getitem__)
    return f"{group.label}: lowest final accuracy {100 * known[task]:.1f} % ({task})"


def _bars(groups: list[Group]) -> Canvas:
    longest = max(len(group.tasks) for group in groups)
    figure = canvas(max(7.5, 0.27 * longest + 1.0), 1.9 * len(groups) + 1.5)
    panels = figure.subplots(len(groups), 1, squeeze=False)[:, 0]
    same = len({tuple(group.tasks) for group in groups}) == 1
    for axes, group in zip(panels, groups, strict=True):
        at = np.arange(len(group.tasks))
        for index, (name, label) in enumerate(FIGURES.items()):
            shares = [group.at_the_end(task, name) for task in group.tasks]
            known = [(x, f) for x, f in zip(at, shares, strict=True) if f is not None]
            if not known:
                continue
            x = [place + 0.28 * (index - 1) for place, _ in known]
            wide = [100 * (f.half_width or 0) for _, f in known]
            axes.bar(
                x,
                [100 * f.mean for _, f in known],
                0.28,
                yerr=wide if any(wide) else None,
                error_kw={"linewidth": 0.8},
                linewidth=0.5,
                label=label,
                clip_on=False,  # else the upper edge of a bar at 100 % is cut off
                **LOOKS[name],
            )
        axes.set(title=group.label, ylim=(0, 100), xlim=(-0.6, len(at) - 0.4), ylabel="accuracy, %")
        axes.grid(axis="y")
        axes.tick_params(axis="x", length=0)
        last = not same or axes is panels[-1]
        few = longest <= FEW and max(map(len, group.tasks)) <= SHORT
        axes.set_xticks(at, group.tasks if last else [], rotation=0 if few else 90, fontsize=9 if few else 7.5)
    # A method that is given the task has no bar for "task found"; the panel with the most bars names them all.
    handles, names = max((axes.get_legend_handles_labels() for axes in panels), key=lambda legend: len(legend[1]))
    panels[0].legend(handles, names, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, handlelength=1.2)
    return figure


def module_bytes(comparison: Comparison) -> Figure:
    groups = comparison.shown
    means = {group.label: float(np.mean([m.module_bytes for m in group.first.learned])) for group in groups}
    one_axis = max(means.values()) <= COMPARABLE * min(means.values())
    title = "Bytes per task, by what they hold"
    caption = (
        "What a student receives for each task, or what a method must keep for it. Our modules hold the head that "
        "separates the classes, the anchor that recognises the task, probes for vetting and thresholds, biases "
        "if there are any, and the signed card. "
        + ("All panels have the same axis; " if one_axis else "Every panel has an axis of its own; ")
        + "KB are 1,000 bytes. The paper states 813 KB (GMMC) and 1.74 MB (MAHA) for "
        "a task of 49.34 classes."
    )
    alt = "Stacked bars. " + "; ".join(
        f"{label}: {size / 1000:.1f} KB on average" for label, size in means.items()
    )
    parts = _parts(groups)
    lines = [
        [text(group.label), text(task), *(number(size[part]) for part in parts), number(sum(size.values()))]
        for group in groups
        for task in group.tasks
        for size in [_sizes(group, task, parts)]
    ]
    table = ReportTable("bytes", title, ("run", "task", *parts, "all"), rows(lines))
    return Figure("bytes", title, caption, alt, lambda: _stacks(groups, parts, one_axis), table)


def _parts(groups: list[Group]) -> list[str]:
    names = {part for group in groups for m in group.first.learned for part in (m.parts or {"undivided": 0})}
    return [part for part in PARTS if part in names] + sorted(names - set(PARTS))


def _sizes(group: Group, task: str, parts: list[str]) -> dict[str, int]:
    learned = group.learned(task)
    sizes = learned.parts or {"undivided": learned.module_bytes}
    return {part: sizes.get(part, 0) for part in parts}


def _stacks(groups: list[Group], parts: list[str], one_axis: bool) -> Canvas:
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    longest = max(len(group.tasks) for group in groups)
    figure = canvas(max(7.5, 3.0 * columns + 1.0), (0.155 * longest + 1.2) * lines)
    panels = figure.subplots(lines, columns, sharex=one_axis, squeeze=False)
    for place, (axes, group) in enumerate(zip(panels.flat, groups, strict=False)):
        left = np.zeros(len(group.tasks))
        at = np.arange(len(group.tasks))
        for index, part in enumerate(parts):
            sizes = np.array([_sizes(group, task, parts)[part] for task in group.tasks]) / 1000
            # Where colours repeat, hatches do not repeat with them.
            hatch = HATCHES[(index + 3 * (index // len(PALETTE))) % len(HATCHES)]
            look = {"color": PALETTE[index % len(PALETTE)], "hatch": hatch, "edgecolor": "white"}
            axes.barh(at, sizes, 0.78, left=left, linewidth=0, label=part, **look)
            left += sizes
        same = place % columns and group.tasks == groups[place - 1].tasks
        axes.set_yticks(at, [] if same else group.tasks, fontsize=7)
        axes.set(title=f"{group.label}\n{left.mean():,.0f} KB on average", ylim=(len(at) - 0.4, -0.6))
        axes.tick_params(axis="x", labelbottom=True)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
    for axes in panels.flat[len(groups) :]:
        axes.set_visible(False)
    figure.supxlabel("KB", fontsize=9)
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right", ncols=min(6, len(parts)), handlelength=1.4)
    return figure
