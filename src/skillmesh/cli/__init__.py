"""The command `skillmesh`. Heavy imports happen inside the commands, so that `--help` is there at once."""

from __future__ import annotations

import contextlib
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

COMMANDS = (
    "learn",
    "samples",
    "ask",
    "tasks",
    "classes",
    "compose",
    "measure",
    "merging",
    "mesh",
    "trust",
    "repair",
)
"""The modules that hold commands, in the order in which `--help` lists them."""
ADDED = "skillmesh.commands"
"""The group of entry points by which other packages add commands: functions that return a `typer.Typer`."""


def program() -> None:
    """The command as a process of its own.

    It ends at once when all is done: threads of zenoh and torch wait inside native code, and an interpreter that
    ends in order would abort in the midst of them.
    """
    import os
    import sys

    from skillmesh.backbone.allocator import process_is_ours
    from skillmesh.cli import outlet

    outlet.guard()
    process_is_ours()
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        outlet.line(code, err=True)
    with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> None:
    """Run the command; what the user can mend ends in one line and exit status 1."""
    import errno
    import sys

    from skillmesh.cli import outlet
    from skillmesh.errors import SkillmeshError

    try:
        from skillmesh.cli.app import app

        for commands in COMMANDS:
            import_module(f"skillmesh.cli.{commands}")
        _add_commands_of_others()
        app()
    except SkillmeshError as error:
        from skillmesh.cli import show

        if "--json" in sys.argv:
            show.print_json({"error": show.with_home(str(error))})
        first, *more = error.lines or (str(error),)
        show.complain(f"skillmesh: {first}", *more)
        sys.exit(1)
    except BrokenPipeError:  # whoever read it has gone
        sys.exit(1)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
        advice = "make room, or name another place" if full else "check that it is there and that you may use it"
        outlet.line(f"skillmesh: {error}; {advice}", err=True)
        sys.exit(1)


@cache
def _add_commands_of_others() -> None:
    """Let other packages add commands; where one lacks something, its command says what to install."""
    from skillmesh.cli.app import app

    for point in entry_points(group=ADDED):
        try:
            app.add_typer(point.load()(), name=point.name)
        except (ImportError, AttributeError) as error:
            _say_what_is_missing(app, point, str(error))


def _say_what_is_missing(app: typer.Typer, point: EntryPoint, reason: str) -> None:
    from skillmesh.errors import SkillmeshError

    package = point.dist.name if point.dist is not None else "skillmesh"
    install = f"pip install '{package}[{point.name}]'"

    def say() -> None:
        raise SkillmeshError(
            f"the {point.name} commands cannot be used: {reason}; install what they need with `{install}`"
        )

    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(point.name, help=f"Not installed: {install}", context_settings=anything)(say)
