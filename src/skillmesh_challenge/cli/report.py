"""`skillmesh challenge report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillmesh.cli import options, outlet
from skillmesh_challenge.cli import challenge
from skillmesh_challenge.errors import RunError


@challenge.command("report")
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Runs, or folders of runs: sweeps and seeds.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the report goes.")] = Path("report"),
    levels: Annotated[
        str,
        typer.Option("--levels", metavar="P[,P…]", help="Per cents of tasks recognised to read the line off at."),
    ] = "90,80,50,0",
    json: options.Json = False,
) -> None:
    """Compare runs, beside the paper: one page, its figures as SVG and PNG, its tables as CSV."""
    from skillmesh.cli import show
    from skillmesh_challenge.record import refuse_file
    from skillmesh_challenge.report import make_report, write_report

    refuse_file(out)
    made = make_report(folders, _levels(levels))
    page = write_report(made, out)
    if json:
        origins = [record.circumstances.provenance for record in made.comparison.records]
        show.print_json({"page": str(page)} | made.summary() | {"provenance": origins})
        return
    for note in made.notes:
        show.warn(note)
    outlet.line(f"{len(made.figures)} figures, {len(made.summary()['tables'])} tables: {page}")


def _levels(text: str) -> list[float]:
    try:
        found = [float(word) / 100 for word in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= level <= 1 for level in found):
        raise RunError(
            f"--levels is {text!r}; expected per cents from 0 to 100 with commas between, such as 90,50"
        )
    return found
