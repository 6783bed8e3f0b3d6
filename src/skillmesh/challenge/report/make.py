"""Make a report: what it holds and in which order, and the folder that it is written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillmesh.challenge.report import bars, curves, dots, heat, lines, speedup, task_map
from skillmesh.challenge.report.collect import Comparison, collect
from skillmesh.challenge.report.figure import Figure
from skillmesh.challenge.report.page import Section, page
from skillmesh.challenge.report.samples import confused_tasks
from skillmesh.challenge.report.tables import all_tables
from skillmesh.challenge.results import LEVELS

PAGE = "report.html"
NO_LINE = "No figure of task recognition: it takes a method that recognises tasks, and two of them."
NO_DOTS = (
    "No figure of what was learned and forgotten: it takes a method with two tasks, and answers of told ones."
)
NO_SWEEP = "No figure of speedup over agents: no method was run with several numbers of them."


@dataclass(frozen=True)
class Report:
    """Everything that a report shows; nothing is drawn yet."""

    comparison: Comparison
    sections: tuple[Section, ...]
    notes: tuple[str, ...]

    @property
    def figures(self) -> list[Figure]:
        return [figure for section in self.sections for figure in section.figures]

    def summary(self) -> dict[str, Any]:
        tables = {table.name: table.summary() for section in self.sections for table in section.all_tables}
        figures = {figure.name: {"title": figure.title, "shows": figure.alt} for figure in self.figures}
        return {"notes": list(self.notes), "tables": tables, "figures": figures}


def make_report(folders: Sequence[str | Path], levels: Sequence[float] = LEVELS) -> Report:
    """Compare the runs in these folders.

    Parameters
    ----------
    levels
        Shares of recognised tasks at which the regression line is read off.
    """
    comparison = collect(folders)
    notes = list(comparison.notes)
    tables = {table.name: table for table in all_tables(comparison)}
    maps, unmapped = task_map.task_maps(comparison)
    recognition, sweep = lines.mapper(comparison, levels), speedup.speedup(comparison)
    forgotten = dots.learned_and_forgotten(comparison)
    notes += unmapped
    notes += [NO_DOTS] * (forgotten is None)
    notes += [NO_LINE] * (recognition is None) + [NO_SWEEP] * (sweep is None)
    some = tuple(figure for figure in (recognition,) if figure is not None)
    over_time = (curves.task_1(comparison), curves.first_ten(comparison), *some)
    over_time += (bars.per_task(comparison), curves.average(comparison))
    costs = (*([sweep] if sweep else []), bars.module_bytes(comparison))
    sections = (
        Section("At a glance", (forgotten,) if forgotten else (), (tables["accuracy"], tables["lifelong"])),
        Section("The paper's tables", tables=(tables["table-1"], tables["table-2"])),
        Section("The paper's figures", over_time),
        Section("Costs and bytes", costs, (tables["costs"],)),
        Section(
            "Confused tasks",
            (*heat.confusions(comparison), *maps),
            confused=tuple(confused_tasks(comparison)),
        ),
        Section("Accuracy matrices", tuple(heat.accuracy_matrices(comparison))),
        Section("Where it comes from", tables=(tables["runs"],)),
    )
    return Report(comparison, sections, tuple(notes))


def write_report(report: Report, out: Path) -> Path:
    """Write figures, tables and the page that holds them all; returns the page's path."""
    figures, tables = out / "figures", out / "tables"
    for folder in (figures, tables):
        folder.mkdir(parents=True, exist_ok=True)
    for figure in report.figures:
        figure.write(figures)
    for section in report.sections:
        for table in section.all_tables:
            table.write(tables)
    path = out / PAGE
    path.write_text(page(report.comparison, report.sections, report.notes, figures), encoding="utf-8")
    return path
