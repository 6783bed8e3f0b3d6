"""`skillmesh challenge report`: compare runs on one HTML page."""

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
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, or of sweeps over agents or seeds.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for the report.")] = Path("report"),
    levels: Annotated[
        str,
        typer.Option("--levels", metavar="P[,P…]", help="Levels (%) at which to read the regression line."),
    ] = "90,80,50,0",
    json: options.Json = False,
) -> None:
    """Compare runs with each other and with the paper: one HTML page, figures as SVG and PNG, tables as CSV."""
    from skillmesh.cli import show
    from skillmesh_challenge.record import refuse_file
    from skillmesh_challenge.report import make_report, write_report

    refuse_file(out)
    result = make_report(folders, _levels(levels))
    page = write_report(result, out)
    if json:
        origins = [record.circumstances.provenance for record in result.comparison.records]
        show.print_json({"page": str(page)} | result.summary() | {"provenance": origins})
        return
    for note in result.notes:
        show.warn(note)
    outlet.line(f"{len(result.figures)} figures, {len(result.summary()['tables'])} tables: {page}")


def _levels(text: str) -> list[float]:
    try:
        shares = [float(word) / 100 for word in text.split(",")]
    except ValueError:
        shares = [-1.0]
    if not all(0 <= level <= 1 for level in shares):
        raise RunError(
            f"--levels is {text!r}; expected percentages from 0 to 100 separated by commas, such as 90,50"
        )
    return shares
