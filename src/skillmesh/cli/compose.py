"""The command that makes a task of classes which are known already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillmesh.cli import app, open_agent, options, outlet
from skillmesh.cli.outlet import facts_of, lesson_facts, warn_of
from skillmesh.common import choices as names


@app.command()
def compose(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The new task's name.")],
    classes: Annotated[
        list[str],
        typer.Argument(
            metavar="TASK:CLASS…",
            help="Classes of tasks in the bank: task:class, task:* for all, task:class=new name; a backslash "
            "before a ':', '=' or '*' that belongs to a name.",
        ),
    ],
    home: options.Home = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images",
            metavar="FOLDER",
            show_default=False,
            help="Go on with images of these classes; never with those that a class was taught from.",
        ),
    ] = None,
    form: Annotated[
        names.Refining,
        typer.Option("--form", help="--images: our prior, or the paper's rows of one 2- or infinity norm."),
    ] = "prior",
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, show_default=False, help="--images: how long; default as far as it pays."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Make a task of this name again.")] = False,
    licence: Annotated[
        str | None, typer.Option(show_default=False, help="For the card; default: those of the sources.")
    ] = None,
    note: options.Note = None,
    tag: options.Tag = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Make a new task of known classes, own or received, without any image."""
    import time

    from skillmesh.cli import show

    started = time.perf_counter()
    agent = open_agent(home or context.obj, make=False, device=device)
    with show.progress_bar() as bar:
        module, lesson = agent.compose(
            name,
            classes,
            images=images,
            form=form,
            epochs=epochs,
            replace=replace,
            licence=licence,
            note=note,
            tags=tag or (),
            progress=bar,
        )
    seconds = time.perf_counter() - started
    if json:
        show.print_json(facts_of(module, agent) | lesson_facts(lesson, seconds))
        return
    warn_of(lesson)
    sources = len({source for source, _ in module.card.origins})
    outlet.line(
        f"composed {module.card.task!r}: {len(module.card.classes)} classes of {sources} task(s), "
        f"{show.kilobytes(module.size)}, {seconds:.1f} s"
    )
    if module.card.trial is not None:
        outlet.line(f"tried {module.card.trial}")
