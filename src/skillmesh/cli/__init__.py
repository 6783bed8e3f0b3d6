"""The command `skillmesh`. Heavy imports happen inside the commands, so that `--help` appears at once."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from skillmesh.cli import options, outlet

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from skillmesh.core import Core

ADDED = "skillmesh.commands"
"""Entry point group for commands of other packages; each entry point is a function returning a `typer.Typer`."""


class Commands(typer.core.TyperGroup):
    """The commands of this package and those that other packages add; the latter are imported only when used.

    Commands and contexts are typed `Any`: they are click's, which newer releases of typer give another name.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        ours = super().list_commands(ctx)
        in_order = [name for name in ("init", *chain(*COMMANDS.values())) if name in ours]
        in_order.sort(key=lambda name: isinstance(self.commands[name], typer.core.TyperGroup))
        return [*in_order, *dict.fromkeys(point.name for point in _others())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (ours := super().get_command(ctx, cmd_name)) is not None:
            return ours
        return next((_added(point) for point in _others() if point.name == cmd_name), None)


def _others() -> Iterable[EntryPoint]:
    """Return the commands of other packages; most commands do not search all installed packages for them."""
    from importlib.metadata import entry_points

    return entry_points(group=ADDED)


def _added(point: EntryPoint) -> Any:
    """Return another package's commands; if they cannot be imported, a command that says what to install."""
    try:
        added = point.load()()
    except (ImportError, AttributeError) as error:
        added = _lacking(point, str(error))
    commands = typer.main.get_command(added)
    commands.name = point.name
    return commands


def _lacking(point: EntryPoint, reason: str) -> typer.Typer:
    from importlib.metadata import distribution

    from skillmesh.errors import SkillmeshError

    # The packages themselves, not an extra of ours: a package index may know another project by our name.
    needed = (point.dist or distribution("skillmesh")).requires or ()
    of_extra = re.compile(rf"([\w.-]+).*; extra == ['\"]{re.escape(point.name)}['\"]")
    packages = [match[1] for name in needed if (match := of_extra.match(name))]
    install = f"pip install {' '.join(packages)}"

    def fail() -> None:
        raise SkillmeshError(
            f"the {point.name} commands cannot be used: {reason}; install what they need with `{install}`"
        )

    any_arguments = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    lacking = typer.Typer(add_completion=False)
    lacking.command(help=f"Not installed: {install}", context_settings=any_arguments)(fail)
    return lacking


app = typer.Typer(
    cls=Commands,
    help="Teach one agent, and every agent knows: learn tasks from folders of images, share them with other "
    "agents, and classify images without a task label.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from skillmesh import __version__

        outlet.line(f"skillmesh {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    home: options.Home = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    context.obj = home
    warnings.filterwarnings("ignore", module="PIL")  # PIL warns of odd metadata, which is common in photos


@app.command()
def init(
    context: typer.Context,
    home: options.Home = None,
    name: Annotated[
        str | None,
        typer.Option("--name", show_default=False, help="The agent's name. Default: the home folder's, or yours."),
    ] = None,
    backbone: options.BackboneName = "lite0",
    weights: options.Weights = None,
    calibration: options.CalibrationFile = None,
    representation: options.Representation = "descriptor",
    anchor: options.AnchorKind = "sketch",
    compact: options.Compact = False,
    clusters: options.Clusters = 25,
    variance_floor: options.VarianceFloor = 1e-6,
    images_per_class: options.ImagesPerClass = 5,
    support: options.Support = "plain",
    unanswered: Annotated[
        float,
        typer.Option(
            "--unanswered", min=0.001, max=0.5, help="Share of images of known tasks that may stay unanswered."
        ),
    ] = 0.05,
) -> None:
    """Create an agent: a key, settings and an empty bank."""
    from skillmesh.cli import show
    from skillmesh.core import Core
    from skillmesh.store.home import KEY_FILE, create_home, default_name, home_folder, is_used

    folder = home_folder(home or context.obj)
    key_is_lost = is_used(folder) and not (folder / KEY_FILE).exists()
    create_home(
        folder,
        name=name or default_name(folder),
        backbone=backbone,
        weights=None if weights is None else weights.resolve(),
        calibration=calibration,
        representation=representation,
        anchor=anchor,
        compact=compact,
        clusters=clusters,
        variance_floor=variance_floor,
        images_per_class=images_per_class,
        support=support,
        unanswered=unanswered,
    )
    agent = Core(folder)
    outlet.line(f"agent {agent.name!r} at {folder}")
    outlet.line(f"  public key  {agent.identity.public_key}")
    outlet.line(f"  backbone    {agent.config.backbone} {agent.bank.backbone[:16]}…")
    if key_is_lost:
        show.warn(
            f"{folder} holds a ledger or modules, but had no {KEY_FILE}: with the new key this is another agent, "
            "and tasks that it learned before count as another teacher's; if you have a copy of the old "
            f"{KEY_FILE}, put it in place of the new one before you learn or share anything"
        )


def open_agent(home: Path | None, make: bool = True, **options_: Any) -> Core:
    """Open the agent at a home; if there is none, create one with default settings and report it.

    Commands that refer to a task or a teacher pass `make=False`: a new agent would know neither.
    """
    from skillmesh.cli import show
    from skillmesh.common.config import FILE
    from skillmesh.core import Core
    from skillmesh.store.home import home_folder

    folder = home_folder(home)
    new = not (folder / FILE).exists()
    agent = Core.open(folder, **options_) if make else Core(folder, **options_)
    if new:
        show.warn(f"made a new agent {agent.name!r} at {folder}")
    return agent


COMMANDS = {
    "learn": ("learn",),
    "samples": ("samples",),
    "ask": ("ask",),
    "tasks": ("tasks", "show", "export", "import", "forget"),
    "classes": ("classes",),
    "compose": ("compose",),
    "measure": ("eval", "calibrate", "backbone", "demo"),
    "merging": ("merge",),
    "page": ("page",),
    "mcp": ("mcp",),
    "mesh": ("serve", "sync", "status", "peers", "gateway", "withdraw", "sharing", "remember", "config"),
    "trust": ("trust", "quarantine", "certs"),
    "repair": ("repair",),
    "renew": ("renew",),
}
"""The modules that hold commands, in the order in which `--help` lists them, and the commands that each adds."""


def load_commands(words: Sequence[str] = ()) -> None:
    """Import the module of the command that these words call; all modules if they call none that is known."""
    called = _command_in(words)
    for module, names in COMMANDS.items():
        if called is None or called in names:
            import_module(f"skillmesh.cli.{module}")


def _command_in(words: Sequence[str]) -> str | None:
    """Return the first word that is no option and no value of the option `--home`, if it names a command."""
    rest = iter(words)
    for word in rest:
        if word == "--home":
            next(rest, None)
        elif not word.startswith("-"):
            return word if any(word in names for names in COMMANDS.values()) else None
    return None


def program() -> None:
    """Run the command as its own process.

    The process exits without the interpreter's usual shutdown: threads of zenoh and torch wait inside native code,
    and an orderly shutdown would abort in the middle of them.
    """
    import os
    import sys

    from skillmesh.cli import outlet
    from skillmesh.numerics.process import process_is_ours

    outlet.guard()
    process_is_ours()
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        outlet.line(code, err=True)
    with contextlib.suppress(OSError, ValueError):  # the reader has closed the pipe
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> None:
    """Run the command; an error that the user can fix is printed as one line, with exit status 1."""
    import errno
    import sys

    from skillmesh.cli import outlet
    from skillmesh.errors import SkillmeshError, messages_for_commands

    try:
        load_commands(sys.argv[1:])
        with messages_for_commands():
            app()
    except SkillmeshError as error:
        from skillmesh.cli import show

        if "--json" in sys.argv:
            show.print_json({"error": show.with_home(str(error))})
        first, *more = error.lines or (str(error),)
        show.complain(f"skillmesh: {first}", *more)
        sys.exit(1)
    except BrokenPipeError:  # the reader has closed the pipe
        sys.exit(1)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
        advice = "make room or choose another place" if full else "check that it exists and that you have access"
        outlet.line(f"skillmesh: {error}; {advice}", err=True)
        sys.exit(1)
