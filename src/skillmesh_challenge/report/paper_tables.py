"""The paper's tables 1 and 2, with our runs of the same kind below each of its rows.

Figures that the paper's own formula does not give are marked. A note below the table states the value that the
formula gives, and the assumption that leads to the printed one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from skillmesh_challenge.metrics import Interval
from skillmesh_challenge.paper import inputs
from skillmesh_challenge.paper.cells import PaperCell as PaperCell
from skillmesh_challenge.paper.figures import EXACT, Range
from skillmesh_challenge.paper.parallel import REFERENCE, parallel_cells
from skillmesh_challenge.paper.single import single_cells
from skillmesh_challenge.report.bounds import ALL_DATA, TASK_GIVEN, bounds_in_words, bounds_of
from skillmesh_challenge.report.collect import Comparison, Group
from skillmesh_challenge.report.table import (
    TASK_LABEL,
    Cell,
    ReportTable,
    mean,
    number,
    numbered,
    percent,
    task_label,
    text,
)

CONTRADICTED = ("explained", "no explanation")
"""Verdicts on cells whose formula, where the paper states one, gives another figure."""
NOT_COMPARABLE = (
    "The paper's figures are for 102 tasks with Xception at 299 pixels, ours for the tasks, images and backbone "
    "of these runs: compare kinds of methods, not single figures. Our average accuracies force an answer "
    "(“unknown” is not allowed). Where the task label was given, the test was easier: only one task's "
    "classes are possible. The paper gives it to all its baselines, but not to its LLL. Marked figures of the "
    "paper are contradicted by its own text; the value that its formula gives is in brackets."
)
Ours = Callable[[Group, Group | None], Sequence[Cell]]


def table_1(comparison: Comparison) -> ReportTable:
    columns = ("training MACs", "CPU usage", "average accuracy")
    groups = comparison.shown  # one agent that learns everything: the same for all numbers of agents
    return _table("table-1", "Table 1: one agent learns everything", columns, single_cells(), groups, _single)


def table_2(comparison: Comparison) -> ReportTable:
    columns = (
        "teacher MACs",
        "bytes",
        "student MACs",
        "total MACs",
        "efficiency",
        "CPU usage",
        "average accuracy",
    )
    title = "Table 2: many agents learn in parallel and share"
    groups = [group for group in comparison.groups if group.agents > 1]
    return _table("table-2", title, columns, parallel_cells(), groups, _parallel)


def _single(group: Group, reference: Group | None) -> list[Cell]:
    cost = group.figure("costs", "single")
    return [mean(cost, "{:.2E}"), _usage(group, reference, "single"), percent(group.figure("final_accuracy"))]


def _parallel(group: Group, reference: Group | None) -> list[Cell]:
    names = ("teacher", "received_bytes", "student", "parallel")
    return [
        *(mean(group.figure("costs", name), "{:.2E}") for name in names),
        mean(group.figure("costs", "efficiency"), "{:.4f}"),
        _usage(group, reference, "parallel"),
        percent(group.figure("final_accuracy")),
    ]


def _usage(group: Group, reference: Group | None, cost: str) -> Cell:
    """Return the cost relative to our own run of the paper's reference with the same number of agents, if any."""
    if reference is None:
        return number(None)
    ours, theirs = group.figure("costs", cost), reference.figure("costs", cost)
    assert isinstance(ours, Interval)
    assert isinstance(theirs, Interval)
    exact = f"1x ({EXACT})" if group is reference else f"{ours.mean / theirs.mean:.3g}x"
    return Cell(exact, ours.mean / theirs.mean)


def papers_name(method: dict[str, Any]) -> str | None:
    """Return the name of the paper's row that is of the same kind as a method of ours."""
    if method.get("mapper") in ("gmmc", "maha"):
        biases = "no BB" if method.get("biases") == "never" else "BB"
        return f"LLL, {biases}, {method['mapper'].upper()}"
    return None if method.get("mapper") else str(method["name"])


def row_of(method: dict[str, Any], printed: Iterable[str]) -> str | None:
    """Return the paper's row for a method, None if it has none; baselines are matched by name or kind."""
    names = {(papers_name(method) or "").lower()}
    if not method.get("mapper"):
        names.add(str(method.get("kind", "")).lower().removesuffix("-parallel"))
    return next((row for row in printed if row.lower().removeprefix("parallel ") in names), None)


def _table(
    name: str, title: str, columns: Sequence[str], cells: list[PaperCell], groups: Sequence[Group], ours: Ours
) -> ReportTable:
    printed = _by_row(cells)
    agents = inputs.AGENTS if name == "table-2" else 1
    notes: list[str] = []

    def rows_like(row: str | None) -> list[tuple[Cell, ...]]:
        return [
            (
                *(text("ours"), text(group.label), number(len(group.tasks))),
                number(1 if agents == 1 else group.agents),
                task_label(group.has_task_label),
                *ours(group, _reference(group, groups, agents > 1)),
                *(bound.cell(notes) for bound in bounds_of(group).values()),
            )
            for group in groups
            if row_of(group.method, printed) == row
        ]

    table_rows = rows_like(None)
    for row, by_column in printed.items():
        figures = [_printed(by_column[column], notes) for column in columns]
        label = task_label(not row.startswith("LLL"))
        head = (text("paper"), text(row), number(inputs.TASKS), number(agents), label)
        table_rows += [(*head, *figures, number(None), number(None)), *rows_like(row)]
    heads = ("of", "method", "tasks", "agents", TASK_LABEL, *columns, TASK_GIVEN, ALL_DATA)
    set_off = frozenset(index for index, row in enumerate(table_rows) if row[0].text == "ours")
    about = f"{NOT_COMPARABLE} {bounds_in_words(groups)}"
    return ReportTable(name, title, heads, tuple(table_rows), numbered(notes), about, set_off)


def _by_row(cells: Sequence[PaperCell]) -> dict[str, dict[str, PaperCell]]:
    """Return the cells that are printed in the table itself, by row and column."""
    printed: dict[str, dict[str, PaperCell]] = {}
    for cell in cells:
        if cell.printed.place.startswith("table"):
            printed.setdefault(cell.printed.row, {})[cell.printed.column] = cell
    return printed


def _reference(group: Group, groups: Sequence[Group], parallel: bool) -> Group | None:
    """Return our run of the paper's reference on the same tasks; if `parallel`, with the same number of agents."""
    for other in groups:
        same = other.first.settings.data_hash == group.first.settings.data_hash
        if papers_name(other.method) == REFERENCE and same and (not parallel or other.agents == group.agents):
            return other
    return None


def _printed(cell: PaperCell, notes: list[str]) -> Cell:
    """Return a figure as the paper prints it, with a note if its formula gives another value."""
    figure = cell.printed.figure
    value = figure.range.middle
    if cell.verdict not in CONTRADICTED or cell.ours.value is None:
        return Cell(figure.text, value)
    gives = figure.like(Range.of(cell.ours.value.middle))
    reason = cell.ours.assumption or cell.ours.remark or "No assumption that we tried leads to the printed figure."
    note = f"The formula ({cell.ours.formula}) gives another value. " + (
        f"The printed one follows with: {reason}." if cell.verdict == "explained" else f"Not explained. {reason}."
    )
    if note not in notes:
        notes.append(note)
    return Cell(figure.text, value, str(notes.index(note) + 1), below=gives)
