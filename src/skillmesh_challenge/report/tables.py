"""Tables of the runs: accuracies, costs, change of accuracy as tasks are added, and where each run comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skillmesh_challenge.metrics import Interval
from skillmesh_challenge.report.bounds import ALL_DATA, bounds_in_words, bounds_of
from skillmesh_challenge.report.collect import Comparison, Group, places
from skillmesh_challenge.report.paper_tables import table_1, table_2
from skillmesh_challenge.report.table import (
    TASK_LABEL,
    Cell,
    ReportTable,
    mean,
    number,
    numbered,
    percent,
    rows,
    task_label,
    text,
)

ACCURACIES = {
    "task given": "task_given_accuracy",
    "task found": "task_found_accuracy",
    "final": "final_accuracy",
    "final, not answered is wrong": "strict_accuracy",
    "known, not answered": "known_unanswered",
}


def all_tables(comparison: Comparison) -> list[ReportTable]:
    """Return the tables that belong to no figure; each figure has a table of its own."""
    tables = [table_1(comparison), table_2(comparison), _accuracy(comparison), _lifelong(comparison)]
    return [*tables, _costs(comparison), _runs(comparison)]


def _accuracy(comparison: Comparison) -> ReportTable:
    notes: list[str] = []
    cells = [
        [
            text(group.label),
            number(len(group.tasks)),
            number(len(group.records)),
            task_label(group.has_task_label),
            *(percent(group.figure(name)) for name in ACCURACIES.values()),
            bounds_of(group)[ALL_DATA].cell(notes),
            mean(group.figure("module_bytes"), "{:,.0f}"),
        ]
        for group in comparison.groups
    ]
    columns = ("run", "tasks", "seeds", TASK_LABEL, *ACCURACIES, ALL_DATA, "bytes per task")
    about = (
        "Macro averages over all tasks at the end; with several seeds the mean and its 95 % confidence interval "
        "(Student's t). A method that is given the task label of every test image has an easier test: compare "
        "its final accuracy with the “task given” accuracy of the others. "
    ) + bounds_in_words(comparison.groups)
    return ReportTable("accuracy", "Averages of the runs", columns, rows(cells), numbered(notes), about)


def _lifelong(comparison: Comparison) -> ReportTable:
    names = ("normalised_at_the_end", "backward_transfer", "forgetting", "forward_transfer")
    cells = [
        [text(group.label), *(percent(group.figure("lifelong", name)) for name in names)]
        for group in comparison.shown
    ]
    columns = ("run", "normalised accuracy", "backward transfer", "forgetting", "forward transfer")
    about = (
        "How the final accuracy of tasks changes as others are added. Normalised: divided by the accuracy just "
        "after the task was learned. Transfers and forgetting are in points of accuracy. Methods that know "
        "nothing of a task before it is learned have no forward transfer."
    ) + undivided(comparison)
    return ReportTable("lifelong", "Change of accuracy as tasks are added", columns, rows(cells), about=about)


def undivided(comparison: Comparison, first: int | None = None) -> str:
    """Return a sentence that counts the tasks (or of the `first` ones) whose accuracy to divide by is zero."""
    counts = {
        group.label: sum(int((record.matrix("final").diagonal()[:first] == 0).sum()) for record in group.records)
        for group in comparison.shown
    }
    tasks = ", ".join(f"{count} of {label}" for label, count in counts.items() if count)
    return f" Left out, since their accuracy just after learning was 0 (all seeds): {tasks}." if tasks else ""


def _costs(comparison: Comparison) -> ReportTable:
    costs = {
        "speedup": "{:.2f}",
        "efficiency": "{:.4f}",
        "efficiency_as_done": "{:.4f}",
        "busiest_speedup": "{:.2f}",
    }
    groups = comparison.groups
    costs = {name: form for name, form in costs.items() if any(g.figure("costs", name) for g in groups)}
    seconds = ("learning_seconds", "sharing_seconds", "testing_seconds", "total_seconds")
    cells = [
        [
            text(group.label),
            number(group.agents),
            *(mean(group.figure("costs", name), form) for name, form in costs.items()),
            *(mean(group.figure("wall_seconds", name), "{:,.1f}") for name in seconds),
            _alike(group),
        ]
        for group in comparison.groups
    ]
    columns = ("run", "agents", *(name.replace("_", " ") for name in costs))
    columns += (*(name.replace("_seconds", ", s") for name in seconds), "agents answer")
    about = (
        "Speedup in MACs, every rebuild of a student's mapper counted; “as done” counts the rebuilds that were "
        "made, “busiest” counts the agent with the most work instead of the average. Wall-clock times are of the "
        "machine that made the run; a warm descriptor cache may shorten them."
    )
    return ReportTable("costs", "Speedup and wall-clock time", columns, rows(cells), about=about)


def _alike(group: Group) -> Cell:
    shared = [(record.results or {}).get("sharing") for record in group.records]
    if None in shared:
        return number(None)
    return text("alike" if all(result and result["same_answers"] for result in shared) else "differently")


def _runs(comparison: Comparison) -> ReportTable:
    cells = []
    for where, record in zip(places(comparison.records), comparison.records, strict=True):
        settings, origin = record.settings, record.circumstances.provenance
        words = (where, settings.method["name"], settings.seed, settings.sharing, settings.assign)
        known = (origin.get("date"), origin.get("version"), origin.get("commit") or "–", origin.get("command"))
        cells.append([*map(text, words), text(settings.data_hash[:12]), *map(text, known)])
    columns = ("folder", "method", "seed", "shared by", "assigned by", "data hash", "date", "version", "commit")
    return ReportTable("runs", "Where it comes from", (*columns, "command"), rows(cells))


def curve_table(name: str, title: str, curves: Mapping[str, Sequence[Interval | None]]) -> ReportTable:
    """Return a table with a column per curve over 1, 2, … tasks; with several seeds, also one per interval."""
    columns, series = ["tasks"], []
    for label, curve in curves.items():
        columns.append(label)
        series.append([percent(None if point is None else point.mean) for point in curve])
        if any(point is not None and point.half_width is not None for point in curve):
            columns.append(f"{label}, ±")
            series.append([percent(None if point is None else point.half_width) for point in curve])
    length = max(map(len, series), default=0)
    cells = [
        [number(t + 1), *(column[t] if t < len(column) else number(None) for column in series)]
        for t in range(length)
    ]
    return ReportTable(name, title, tuple(columns), rows(cells))
