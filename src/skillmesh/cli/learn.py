"""The command `learn`, and how what was learned is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import options
from skillmesh.cli.app import app
from skillmesh.cli.facts import facts_of, lesson_facts, warn_of
from skillmesh.errors import AgentError

if TYPE_CHECKING:
    from skillmesh.lesson import Lesson
    from skillmesh.module import Module

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
MOST_CONFUSIONS = 3
"""Number of confused pairs of classes that are printed."""


def _given(context: typer.Context, names: Sequence[str]) -> list[str]:
    """Those of the options that the user has typed, whatever they say."""
    spelled = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        spelled[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"
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
    report: options.Report = None,
    json: options.Json = False,
) -> None:
    """Learn a task from a folder of images and keep it as a small signed module."""
    import time

    from skillmesh.agent import Agent
    from skillmesh.cli import show
    from skillmesh.cli.targets import refuse_bad_target
    from skillmesh.home import home_folder

    refuse_bad_target(report)
    started = time.perf_counter()
    agent = Agent.open(home_folder(home or context.obj), device=device)
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
    if report is not None:
        _write_report(report, module, lesson)
    if json:
        show.print_json(facts_of(module) | lesson_facts(lesson, seconds))
        return
    warn_of(lesson)
    _print_lesson(module, lesson, seconds)


def _print_lesson(module: Module, lesson: Lesson, seconds: float) -> None:
    """Say what was learned, how well, and what would help."""
    from skillmesh.cli import show

    card = module.card
    images = sum(card.counts) + card.validation_images
    typer.echo(
        f"learned {card.task!r}: {len(card.classes)} classes, {images:,} images ({sum(card.counts):,} training, "
        f"{card.validation_images:,} validation)"
    )
    typer.echo(
        f"  validation accuracy {show.percent(card.validation_accuracy)}, {show.kilobytes(module.size)}, "
        f"{seconds:.1f} s"
    )
    confusions = [] if lesson.outcome is None else lesson.outcome.confusions()
    if confusions:
        more = f" and {len(confusions) - MOST_CONFUSIONS} more pairs" if len(confusions) > MOST_CONFUSIONS else ""
        typer.echo(show.wrapped("confuses", ", ".join(map(str, confusions[:MOST_CONFUSIONS])) + more))
    if card.trial is not None:
        typer.echo(show.wrapped("tried", card.trial))
    if lesson.advice is not None:
        typer.echo(show.wrapped("advice", lesson.advice))


def _write_report(path: Path, module: Module, lesson: Lesson) -> None:
    from skillmesh.cli import show
    from skillmesh.cli.task_report import TaskSection, write_report
    from skillmesh.learning.outcome import Outcome

    card = module.card
    figures = (
        ("validation accuracy", show.percent(card.validation_accuracy)),
        ("training accuracy, before validation images join", show.percent(lesson.training_accuracy)),
        ("training images", f"{sum(card.counts):,}"),
        ("validation images", f"{card.validation_images:,}"),
        ("module", show.kilobytes(module.size)),
    )
    notes = [finding.text for finding in lesson.all_findings]
    if lesson.advice is not None:
        notes.insert(0, f"advice: {lesson.advice}")
    outcome = lesson.outcome or Outcome.nothing(card.classes)
    section = TaskSection(card.task, figures, outcome, "validation", tuple(notes))
    about = f"Learned by {card.teacher} on {card.created[:10]} with the backbone {card.backbone_name}."
    write_report(path, f"What was learned of {card.task}", about, [section])
