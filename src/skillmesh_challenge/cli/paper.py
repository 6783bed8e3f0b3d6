"""`skillmesh challenge paper` and `challenge study`: check the paper's figures and answer its open questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from skillmesh.cli import options, outlet
from skillmesh_challenge.cli import challenge


@challenge.command("paper")
def paper(json: options.Json = False) -> None:
    """Show the paper's own tables, with each printed figure beside the value that its formula gives."""
    from skillmesh.cli import show
    from skillmesh_challenge.paper import report

    tables = report()
    if json:
        from skillmesh.evaluation.provenance import provenance

        show.print_json(tables | {"provenance": provenance(show.command_line(), [], 0)})
        return
    for content in tables["tables"].values():
        _print_cells(content)
    _print_datasets(tables["datasets"])
    outlet.line()
    outlet.line(", ".join(f"{count} {verdict}" for verdict, count in tables["verdicts"].items()))


def _print_cells(content: dict[str, Any]) -> None:
    from skillmesh.cli import show

    rows = show.table(content["title"], "row", "figure", ">paper", ">ours", ">assuming", "verdict", "+why")
    for cell in content["cells"]:
        figures = [cell[key] or "–" for key in ("printed", "ours", "reached")]
        why = f"[{cell['note']}]" if cell["note"] else ""
        rows.add_row(cell["row"], cell["column"], *figures, cell["verdict"], why)
    show.console.print(rows)
    for number, note in enumerate(content["notes"], start=1):
        show.console.print(f"[{number}] {note}")
    outlet.line()


def _print_datasets(account: dict[str, Any]) -> None:
    from skillmesh.cli import show

    sizes = ("tasks", "classes", "train", "val", "test", "images")
    rows = show.table("How 107 datasets become 102 tasks", "", *(f">{size}" for size in sizes))
    for step in account["steps"]:
        rows.add_row(step["what"], *(f"{step[size]:,}" for size in sizes))
    show.console.print(rows)
    for heading in ("known", "unknown"):
        outlet.line(f"{heading}:")
        for line in account[heading]:
            show.console.print(f"- {line}")


@challenge.command("study")
def study(
    name: Annotated[
        str | None, typer.Argument(show_default=False, help="Name of a study; without one, all are listed.")
    ] = None,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[TASKS]...", show_default=False, help="Task folders, for studies that measure."),
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", min=2, help="Number of tasks, where costs are computed.")] = 102,
    agents: Annotated[int, typer.Option("--agents", min=1, help="Number of agents.")] = 51,
    alpha: Annotated[float, typer.Option("--alpha", min=0, help="Cost of sending one byte, in MACs.")] = 1000,
    seed: options.Seed = 0,
    backbone: options.BackboneName = "lite0",
    weights: options.Weights = None,
    calibration: options.CalibrationFile = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Answer a question that the paper's appendices raise."""
    from skillmesh.cli import show
    from skillmesh.data.folder import find_tasks
    from skillmesh.evaluation.provenance import provenance
    from skillmesh_challenge.studies import STUDIES, StudySettings, run_study
    from skillmesh_challenge.studies.study import as_read

    if name is None:
        rows = show.table(None, "study", "+about")
        for known, entry in STUDIES.items():
            rows.add_row(known, entry.about)
        show.console.print(rows)
        return
    paths = tuple(find_tasks(folders)) if folders else ()
    origin = provenance(show.command_line(), paths, seed) if json else {}
    with show.progress_bar() as bar:
        settings = StudySettings(
            paths, tasks, agents, alpha, seed, backbone, weights, calibration, device, progress=bar
        )
        result = run_study(name, settings)
    if json:
        show.print_json({"study": name} | result.summary() | {"provenance": origin})
        return
    rows = show.table(result.title, *(_column(key, value) for key, value in result.rows[0].items()))
    for row in result.rows:
        rows.add_row(*map(as_read, row.values()))
    show.console.print(rows)
    for note in result.notes:
        show.console.print(f"- {note}")


def _column(name: str, value: Any) -> str:
    return name if isinstance(value, str) else f">{name}"
