"""The command `learn` and the output about what was learned."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import app, open_agent, options, outlet
from skillmesh.cli.outlet import facts_of, lesson_facts, warn_of
from skillmesh.common.extras import TORCH
from skillmesh.errors import AgentError, BackboneError, FolderOfTasksError, SkillmeshError

if TYPE_CHECKING:
    from skillmesh.core import Core
    from skillmesh.learning.lesson import Lesson
    from skillmesh.module import Module

NOT_CONTINUED = (
    *("name", "replace", "adapt", "adaptation", "layers", "epochs", "mirrored", "from_plain_head"),
    *("warm_start", "warm_form", "views", "sharing"),
)
"""Options that cannot be combined with `--continue`."""
MOST_CONFUSIONS = 3
"""Number of confused pairs of classes that are printed."""


def _given(context: typer.Context, names: Sequence[str]) -> list[str]:
    """Return the options among `names` that the user has typed, even with their default values."""
    spelled = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        spelled[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"
    ]


@app.command()
def learn(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder or zip of images: class/… or train|val|test/class/…")],
    home: options.Home = None,
    name: Annotated[
        str | None, typer.Option("--name", show_default=False, help="The task's name. Default: the folder's name.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a task of this name.")] = False,
    continued: options.Continue = None,
    one_task: options.OneTask = False,
    each_folder: options.EachFolder = False,
    licence: Annotated[
        str | None, typer.Option(show_default=False, help="Licence of the images, for the module's card.")
    ] = None,
    note: options.Note = None,
    tag: options.Tag = None,
    adapt: options.Adapt = "none",
    adaptation: options.AdaptationKind = "biases",
    layers: options.Layers = "all",
    epochs: options.Epochs = None,
    mirrored: options.Mirrored = False,
    from_plain_head: options.FromPlainHead = False,
    warm_start: options.WarmMode = "auto",
    warm_form: options.WarmForm = "prior",
    views: options.Views = None,
    sharing: options.Sharing = None,
    device: options.Device = None,
    report: options.Report = None,
    json: options.Json = False,
) -> None:
    """Learn a task from a folder of images. It is stored as a small signed module."""
    from skillmesh.cli.outlet import refuse_bad_target
    from skillmesh.common.choices import Adaptation, WarmStart

    refuse_bad_target(report)
    if continued is not None and (unfit := _given(context, NOT_CONTINUED)):
        raise AgentError(
            f"--continue keeps a task's name and extends its plain head; leave out {', '.join(unfit)}"
        )
    if each_folder and (unfit := _given(context, ("name", "continued", "one_task", "report"))):
        raise AgentError(f"--each-folder learns several tasks, named after their folders; leave out {unfit[0]}")
    how: dict[str, Any] = {"licence": licence, "note": note, "tags": tag or ()}
    if continued is None:
        how |= {"name": name, "replace": replace, "warm_start": WarmStart(warm_start, warm_form), "views": views}
        how["sharing"] = sharing
        how["adaptation"] = Adaptation(adapt, adaptation, layers, epochs, mirrored, from_plain_head)
    if adapt != "none":  # before a new agent is made
        TORCH.require("training an adaptation", BackboneError)
    agent = open_agent(home or context.obj, device=device)
    agent.require_packages()
    if each_folder:
        _learn_each(agent, folder, json, how)
        return
    try:
        _learn_one(agent, folder, continued, report, json, how | {"one_task": one_task})
    except FolderOfTasksError as error:
        commands = commands_for(folder, home or context.obj, continued, name)
        if _choose_each(error, folder, commands, may_ask=not (json or continued or name or report)):
            _learn_each(agent, folder, json, how)
        else:
            _learn_one(agent, folder, continued, report, json, how | {"one_task": True})


def _learn_one(
    agent: Core, folder: Path, continued: str | None, report: Path | None, json: bool, how: dict[str, Any]
) -> None:
    """Learn or extend one task and show the result."""
    from skillmesh.cli import show

    started = time.perf_counter()
    module, lesson = _taught(agent, folder, continued, how)
    seconds = time.perf_counter() - started
    if report is not None:
        _write_report(report, module, lesson)
    if json:
        show.print_json(facts_of(module, agent) | lesson_facts(lesson, seconds))
    else:
        _show(module, lesson, seconds)


def _learn_each(agent: Core, folder: Path, json: bool, how: dict[str, Any]) -> None:
    """Learn every task in a folder; if one fails, the others are still learned."""
    from skillmesh.cli import show
    from skillmesh.data.folder import folders_to_learn

    learned, failed = [], []
    for task in folders_to_learn(folder):
        started = time.perf_counter()
        try:
            module, lesson = _taught(agent, task, None, how)
        except SkillmeshError as error:
            failed.append({"file": str(task), "reason": str(error)})
            show.warn(f"failed: {task}: {error}")
            continue
        seconds = time.perf_counter() - started
        learned.append(facts_of(module, agent) | lesson_facts(lesson, seconds))
        if not json:
            _show(module, lesson, seconds)
    if json:
        show.print_json({"learned": learned, "failed": failed})
    elif failed:
        outlet.line(f"{len(learned)} tasks learned, {len(failed)} failed")
    if failed:
        raise typer.Exit(1)


def _taught(agent: Core, folder: Path, continued: str | None, how: dict[str, Any]) -> tuple[Module, Lesson]:
    from skillmesh.cli import show

    with show.progress_bar() as bar:
        if continued is not None:
            return agent.continue_task(continued, folder, **how, progress=bar)
        return agent.learn(folder, **how, progress=bar)


def _show(module: Module, lesson: Lesson, seconds: float) -> None:
    """Print what was learned, how accurate it is, and advice on how to improve it."""
    from skillmesh.cli import show

    warn_of(lesson)
    card = module.card
    images = sum(card.counts) + card.validation_images
    outlet.line(
        f"learned {card.task!r}: {len(card.classes)} classes, {images:,} images ({sum(card.counts):,} training, "
        f"{card.validation_images:,} validation)"
    )
    outlet.line(
        f"  validation accuracy {show.percent(card.validation_accuracy)}, {show.kilobytes(module.size)}, "
        f"{seconds:.1f} s"
    )
    confusions = [] if lesson.outcome is None else lesson.outcome.confusions()
    if confusions:
        more = f" and {len(confusions) - MOST_CONFUSIONS} more pairs" if len(confusions) > MOST_CONFUSIONS else ""
        show.beside("confuses", ", ".join(map(str, confusions[:MOST_CONFUSIONS])) + more)
    if card.trial is not None:
        show.beside("tried", card.trial)
    if lesson.advice is not None:
        show.beside("advice", lesson.advice)


def _write_report(path: Path, module: Module, lesson: Lesson) -> None:
    from skillmesh.cli import show
    from skillmesh.cli.task_report import TaskSection, write_report
    from skillmesh.learning.lesson import Outcome

    card = module.card
    figures = (
        ("validation accuracy", show.percent(card.validation_accuracy)),
        ("training accuracy, before validation images are added", show.percent(lesson.training_accuracy)),
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
    write_report(path, f"Learned task: {card.task}", about, [section])


def _choose_each(error: FolderOfTasksError, folder: Path, commands: tuple[str, str], may_ask: bool) -> bool:
    """Ask whether to learn each folder as a task; if the user cannot be asked, refuse and give both commands."""
    from skillmesh.cli import show

    names = ", ".join(error.tasks[:10]) + (f" and {len(error.tasks) - 10} more" if len(error.tasks) > 10 else "")
    looks = (
        f"{folder} looks like a folder of tasks, not like one task: found {names}, with no images directly in them"
    )
    if folder.is_file() or not may_ask or not (sys.stdin.isatty() and sys.stderr.isatty()):
        unpack = "unpack it, then " if folder.is_file() else ""
        refused = FolderOfTasksError.of_lines(
            f"{looks}. To learn each as a separate task, {unpack}run",
            f"    {commands[0]}",
            "To learn one task with these as its classes, run",
            f"    {commands[1]}",
        )
        refused.tasks = error.tasks
        raise refused
    show.warn(f"{looks}.")
    question = "Learn each as a separate task, all as the classes of one task, or nothing? (each, one, no)"
    while (answer := typer.prompt(question, default="each", err=True).strip().lower()) not in ("each", "one"):
        if answer in ("no", "n"):
            raise typer.Exit(1)
    return bool(answer == "each")


def commands_for(folder: Path, home: Path | None, continued: str | None, name: str | None) -> tuple[str, str]:
    """Return the two commands that learn a folder as several tasks and as one task."""
    words = ["skillmesh", "learn"] + (["--home", str(home)] if home is not None else [])
    where = folder.with_suffix("") if folder.is_file() else folder
    one = ["--one-task"] + (["--continue", continued] if continued else []) + (["--name", name] if name else [])
    return shlex.join([*words, "--each-folder", str(where)]), shlex.join([*words, *one, str(folder)])
