"""`skillmesh challenge`: run the SKILL challenge, check its data, compare runs."""

from __future__ import annotations

import typer

from skillmesh.cli.app import app

challenge = typer.Typer(
    help="The SKILL challenge: run it on your own tasks, count it, draw it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(challenge, name="challenge")
