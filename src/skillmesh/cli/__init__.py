"""The command `skillmesh`. Heavy imports happen inside the commands, so that `--help` is there at once."""

from __future__ import annotations

import contextlib
from importlib import import_module

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
    "challenge.data",
    "challenge.paper",
    "challenge.report",
    "challenge.run",
    "challenge.simulate",
    "challenge.tune",
)
"""The modules that hold commands, in the order in which `--help` lists them."""


def program() -> None:
    """The command as a process of its own.

    It ends at once when all is done: threads of zenoh and torch wait inside native code, and an interpreter that
    ends in order would abort in the midst of them.
    """
    import os
    import sys

    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        print(code, file=sys.stderr)  # noqa: T201
    with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> None:
    """Run the command; what the user can mend ends in one line and exit status 1."""
    import sys

    from skillmesh.errors import SkillmeshError

    try:
        from skillmesh.cli.app import app

        for commands in COMMANDS:
            import_module(f"skillmesh.cli.{commands}")
        app()
    except SkillmeshError as error:
        from skillmesh.cli import show

        if "--json" in sys.argv:
            show.print_json({"error": show.with_home(str(error))})
        show.complain(f"skillmesh: {error}")
        sys.exit(1)
    except BrokenPipeError:  # whoever read it has gone
        sys.exit(1)
    except OSError as error:
        print(f"skillmesh: {error}; make room, or name another place", file=sys.stderr)  # noqa: T201
        sys.exit(1)
