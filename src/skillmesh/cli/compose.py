"""The command `compose`, which makes a new task from known classes."""

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
            help="Classes of tasks in the bank: task:class, task:* for all classes, task:class=new name. Write a "
            "backslash before a ':', '=' or '*' that is part of a name.",
        ),
    ],
    home: options.Home = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images",
            metavar="FOLDER",
            show_default=False,
            help="Train further on images of these classes; use images that no class was learned from.",
        ),
    ] = None,
    form: Annotated[
        names.Refining,
        typer.Option(
            "--form",
            help="Training with --images: our prior, or the paper's, with a fixed 2- or infinity norm per row.",
        ),
    ] = "prior",
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            min=1,
            show_default=False,
            help="Epochs of training with --images. Default: prior: as many as help; two, infinity: 10.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the task of this name.")] = False,
    licence: Annotated[
        str | None, typer.Option(show_default=False, help="Licence for the card. Default: the sources' licences.")
    ] = None,
    note: options.Note = None,
    tag: options.Tag = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Make a new task from known classes. They may be learned or received; no images are needed."""
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
