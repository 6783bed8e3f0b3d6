"""`skillmesh challenge`: run the SKILL challenge, check its data, compare runs."""

from __future__ import annotations

from importlib import import_module

import typer

COMMANDS = ("data", "paper", "report", "run", "simulate", "tune")
"""Modules that define commands, in the order in which `--help` lists them."""

challenge = typer.Typer(
    help="Run the SKILL challenge on your own tasks, measure its costs, and compare runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


def commands() -> typer.Typer:
    """Return the commands for `skillmesh`, which finds this function by its entry point.

    Each command reports its own missing packages: only `report` needs the extra `challenge`.
    """
    for name in COMMANDS:
        import_module(f"skillmesh_challenge.cli.{name}")
    return challenge
