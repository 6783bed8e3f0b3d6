"""`skillmesh challenge`: run the SKILL challenge, check its data, compare runs."""

from __future__ import annotations

from importlib import import_module

import typer

COMMANDS = ("data", "paper", "report", "run", "simulate", "tune")
"""The modules that hold commands, in the order in which `--help` lists them."""

challenge = typer.Typer(
    help="The SKILL challenge: run it on your own tasks, count it, draw it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


def commands() -> typer.Typer:
    """Return the commands for `skillmesh`, which finds this function by its entry point.

    Each says itself what it lacks: only the report is drawn with what the extra `challenge` brings.
    """
    for name in COMMANDS:
        import_module(f"skillmesh_challenge.cli.{name}")
    return challenge
