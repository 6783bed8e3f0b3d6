"""The command line's root, `init`, and how the commands open an agent."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import options, outlet

if TYPE_CHECKING:
    from skillmesh.core import Core

app = typer.Typer(
    help="Teach one agent, and every agent knows: learn folders of images, answer with no task label.",
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    context.obj = home
    warnings.filterwarnings("ignore", module="PIL")  # odd metadata in a user's photos is no news


@app.command()
def init(
    context: typer.Context,
    home: options.Home = None,
    name: Annotated[
        str | None, typer.Option("--name", show_default=False, help="Default: the home folder's, or yours.")
    ] = None,
    backbone: options.BackboneName = "lite0",
    weights: options.Weights = None,
    calibration: options.CalibrationFile = None,
    representation: options.Representation = "descriptor",
    mapper: options.MapperKind = "sketch",
    compact: options.Compact = False,
    clusters: options.Clusters = 25,
    variance_floor: options.VarianceFloor = 1e-6,
    images_per_class: options.ImagesPerClass = 5,
    support: options.Support = "plain",
) -> None:
    """Set up an agent: a key of its own, settings, an empty bank."""
    from skillmesh.core import Core
    from skillmesh.store.home import create_home, default_name, home_folder

    folder = home_folder(home or context.obj)
    create_home(
        folder,
        name=name or default_name(folder),
        backbone=backbone,
        weights=None if weights is None else weights.resolve(),
        calibration=calibration,
        representation=representation,
        mapper=mapper,
        compact=compact,
        clusters=clusters,
        variance_floor=variance_floor,
        images_per_class=images_per_class,
        support=support,
    )
    agent = Core(folder)
    outlet.line(f"agent {agent.name!r} at {folder}")
    outlet.line(f"  public key  {agent.identity.public_key}")
    outlet.line(f"  backbone    {agent.config.backbone} {agent.bank.backbone[:16]}…")


def open_agent(home: Path | None, make: bool = True, **options_: Any) -> Core:
    """Open the agent at a home; where there is none, make one with default settings and say so.

    Commands that name a task or a teacher of an agent do not `make` one: it would know neither.
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
