"""The command `learn`, and how what was learned is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from skillmesh.cli import options
from skillmesh.cli.app import app, open_agent
from skillmesh.cli.facts import facts_of, lesson_facts, warn_of
from skillmesh.errors import AgentError

NOT_CONTINUED = (
    "name",
    "replace",
    "biases",
    "adaptation",
    "layers",
    "epochs",
    "mirrored",
    "warm",
    "warm_start",
    "warm_form",
)
"""What `learn` cannot heed where it goes on with a task."""


def _given(context: typer.Context, names: Sequence[str]) -> list[str]:
    """Those of the options that the user has typed, whatever they say."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        f"--{name.replace('_', '-')}"
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    ]


@app.command()
def learn(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A folder or zip: class/… or train|val|test/class/…")],
    home: options.Home = None,
    name: Annotated[
        str | None, typer.Option("--name", show_default=False, help="The task's name; default the folder's.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Learn a task of this name again.")] = False,
    continued: options.Continue = None,
    licence: Annotated[
        str | None, typer.Option(show_default=False, help="Licence of the images, for the card.")
    ] = None,
    note: options.Note = None,
    tag: options.Tag = None,
    biases: options.Biases = "never",
    adaptation: options.Adaptation = "biases",
    layers: options.Layers = "all",
    epochs: options.Epochs = None,
    mirrored: options.Mirrored = False,
    warm: options.Warm = False,
    warm_start: options.WarmStart = "auto",
    warm_form: options.WarmForm = "prior",
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Learn a task from a folder of images and keep it as a small signed module."""
    import time

    from skillmesh.cli import show

    started = time.perf_counter()
    agent = open_agent(home or context.obj, device=device)
    said: dict[str, Any] = {"licence": licence, "note": note, "tags": tag or ()}
    if continued is not None and (unfit := _given(context, NOT_CONTINUED)):
        raise AgentError(
            f"--continue keeps a task's name and goes on from its own plain head; leave {', '.join(unfit)} away"
        )
    with show.progress_bar() as bar:
        if continued is not None:
            module, lesson = agent.continue_task(continued, folder, **said, progress=bar)
        else:
            module, lesson = agent.learn(
                folder,
                name=name,
                replace=replace,
                **said,
                biases=biases,
                adaptation=adaptation,
                layers=layers,
                epochs=epochs,
                mirrored=mirrored,
                warm=warm,
                warm_start=warm_start,
                warm_form=warm_form,
                progress=bar,
            )
    seconds = time.perf_counter() - started
    if json:
        show.print_json(facts_of(module, agent) | lesson_facts(lesson, seconds))
        return
    warn_of(lesson)
    card = module.card
    typer.echo(
        f"learned {card.task!r}: {len(card.classes)} classes, {sum(card.counts)} training images, validation "
        f"{show.percent(card.validation_accuracy)}, {show.kilobytes(module.size)}, {seconds:.1f} s"
    )
    if card.trial is not None:
        typer.echo(card.trial if continued else f"tried {card.trial}")
