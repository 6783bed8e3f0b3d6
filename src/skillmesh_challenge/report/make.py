"""Build a report: choose its sections and their order, and write it to a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillmesh.common.files import write_whole
from skillmesh_challenge.metrics import LEVELS
from skillmesh_challenge.report import bars, curves, dots, heat, lines, speedup, task_map
from skillmesh_challenge.report.classes import class_tables, missing_answers
from skillmesh_challenge.report.collect import Comparison, collect
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.own_tasks import in_short, own_tasks
from skillmesh_challenge.report.page import Section, page
from skillmesh_challenge.report.samples import confused_tasks, sample_images
from skillmesh_challenge.report.table import ReportTable
from skillmesh_challenge.report.tables import all_tables

PAGE = "report.html"
NO_LINE = "No figure of task recognition: it needs a method that recognises tasks, and at least two tasks."
NO_DOTS = "No figure of what was learned and forgotten: it needs two tasks, and accuracies with the task given."
BESIDE_THE_PAPER = (
    "Tables 1 and 2 of the paper on Shared Knowledge Lifelong Learning, with the runs of this page added as "
    "rows; and the paper's figures, drawn from these runs."
)
NO_SWEEP = "No figure of speedup over agents: no method was run with different numbers of agents."


@dataclass(frozen=True)
class Report:
    """The content of a report, before anything is drawn."""

    comparison: Comparison
    sections: tuple[Section, ...]

    @property
    def notes(self) -> list[str]:
        """What was left out and why: notes on runs first, then section by section."""
        return [*self.comparison.notes, *(note for section in self.sections for note in section.notes)]

    @property
    def figures(self) -> list[Figure]:
        return [figure for section in self.sections for figure in section.figures]

    def summary(self) -> dict[str, Any]:
        tables = {table.name: table.summary() for section in self.sections for table in section.all_tables}
        figures = {figure.name: {"title": figure.title, "shows": figure.alt} for figure in self.figures}
        return {"notes": self.notes, "tables": tables, "figures": figures}


def make_report(folders: Sequence[str | Path], levels: Sequence[float] = LEVELS) -> Report:
    """Return a report that compares the runs in these folders.

    Parameters
    ----------
    levels
        Shares of recognised tasks, 0 to 1, at which the regression line is read off.
    """
    comparison = collect(folders)
    tables = {table.name: table for table in all_tables(comparison)}
    sections = (
        Section(
            "Your tasks",
            (bars.per_task(comparison),),
            (own_tasks(comparison), tables["accuracy"]),
            lead=tuple(map(in_short, comparison.shown)),
        ),
        Section(
            "Errors by class",
            tables=tuple(class_tables(comparison)),
            samples=tuple(sample_images(comparison)),
            notes=_without_empty(missing_answers(comparison)),
        ),
        _confused(comparison),
        _over_time(comparison, tables["lifelong"]),
        _costs(comparison, tables["costs"]),
        Section("Where it comes from", tables=(tables["runs"],)),
        _beside_the_paper(comparison, levels, (tables["table-1"], tables["table-2"])),
    )
    return Report(comparison, sections)


def _confused(comparison: Comparison) -> Section:
    maps, unmapped = task_map.task_maps(comparison)
    figures = (*heat.confusions(comparison), *maps)
    return Section("Confused tasks", figures, confused=tuple(confused_tasks(comparison)), notes=tuple(unmapped))


def _over_time(comparison: Comparison, lifelong: ReportTable) -> Section:
    """Return the section on how accuracy changes as tasks are added."""
    forgotten = dots.learned_and_forgotten(comparison)
    figures = [curves.average(comparison), *([forgotten] if forgotten else [])]
    figures += heat.accuracy_matrices(comparison)
    return Section(
        "As tasks are added", tuple(figures), (lifelong,), notes=_without_empty("" if forgotten else NO_DOTS)
    )


def _costs(comparison: Comparison, costs: ReportTable) -> Section:
    sweep = speedup.speedup(comparison)
    figures = (*([sweep] if sweep else []), bars.module_bytes(comparison))
    return Section("Costs and bytes", figures, (costs,), notes=_without_empty("" if sweep else NO_SWEEP))


def _beside_the_paper(comparison: Comparison, levels: Sequence[float], tables: tuple[ReportTable, ...]) -> Section:
    """Return the section with the paper's tables and figures and these runs; it is folded at first."""
    recognition = lines.mapper(comparison, levels)
    figures = [curves.task_1(comparison), curves.first_ten(comparison), *([recognition] if recognition else [])]
    return Section(
        "Beside the paper",
        tuple(figures),
        tables,
        lead=(BESIDE_THE_PAPER,),
        notes=_without_empty("" if recognition else NO_LINE, lines.why_no_line(comparison)),
        folded=True,
    )


def _without_empty(*notes: str) -> tuple[str, ...]:
    return tuple(note for note in notes if note)


def write_report(report: Report, out: Path) -> Path:
    """Write the figures, the tables and the page that shows them all; return the path of the page."""
    figures, tables = out / "figures", out / "tables"
    for folder in (figures, tables):
        folder.mkdir(parents=True, exist_ok=True)
    for figure in report.figures:
        figure.write(figures)
    for section in report.sections:
        for table in section.all_tables:
            table.write(tables)
    path = out / PAGE
    write_whole(path, page(report.comparison, report.sections, figures).encode(), sync=False)
    return path
