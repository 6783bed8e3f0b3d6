"""The commands, in the order in which a user meets them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import options
from skillmesh.errors import AgentError, SkillmeshError

if TYPE_CHECKING:
    from skillmesh.agent import Agent
    from skillmesh.answer import Answer
    from skillmesh.lesson import Lesson
    from skillmesh.module import Module
    from skillmesh.module.joint import Joint

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

        typer.echo(f"skillmesh {__version__}")
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
        str | None, typer.Option("--name", show_default=False, help="Default: this machine's.")
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
    from skillmesh.agent import Agent
    from skillmesh.home import create_home, default_name, home_folder

    folder = home_folder(home or context.obj)
    create_home(
        folder,
        name=name or default_name(),
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
    agent = Agent(folder)
    typer.echo(f"agent {agent.name!r} at {folder}")
    typer.echo(f"  public key  {agent.identity.public_key}")
    typer.echo(f"  backbone    {agent.config.backbone} {agent.bank.backbone[:16]}…")


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

    from skillmesh.agent import Agent
    from skillmesh.cli import show
    from skillmesh.home import home_folder

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
    if json:
        show.print_json(facts_of(module) | lesson_facts(lesson, seconds))
        return
    warn_of(lesson)
    card = module.card
    typer.echo(
        f"learned {card.task!r}: {len(card.classes)} classes, {sum(card.counts)} training images, validation "
        f"{show.percent(card.validation_accuracy)}, {show.kilobytes(module.size)}, {seconds:.1f} s"
    )
    if card.trial is not None:
        typer.echo(card.trial if continued else f"tried {card.trial}")


@app.command()
def ask(
    context: typer.Context,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    home: options.Home = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Say what images show, with nobody telling which task they are of."""
    from skillmesh.cli import show

    answers, unreadable = _ask(home or context.obj, images, device)
    if json:
        show.print_json({"answers": [a.as_dict() for a in answers], "unreadable": unreadable})
    else:
        several = any(a.supported_by for a in answers)
        rows = show.table(None, "image", "answer", "task", "taught by", ">confidence", "else", *["with"] * several)
        for a in answers:
            other = ", ".join(f"{g.label} {show.percent(g.confidence)}" for g in a.alternatives[:2])
            if a.unknown:
                rows.add_row(
                    a.image, show.bold("unknown"), "–", "–", "–", f"nearest: {a.best.label} ({a.best.task})"
                )
            else:
                support = ", ".join(f"{g.task} ({g.teacher})" for g in a.supported_by)
                rows.add_row(
                    a.image, a.label, a.task, a.teacher, show.percent(a.confidence), other, *[support] * several
                )
        show.console.print(rows)
        for bad in unreadable:
            show.warn(f"skipped: {bad['image']}: {bad['error']}")
    if unreadable:
        raise typer.Exit(1)


def _ask(home: Path | None, paths: list[Path], device: str | None) -> tuple[list[Answer], list[dict[str, str]]]:
    """Have a node that runs on this home answer, since its backbone is loaded already; else do it here."""
    from skillmesh.answer import Answer
    from skillmesh.cli import show
    from skillmesh.config import AgentConfig
    from skillmesh.home import home_folder
    from skillmesh.mesh.control import NotRunningError, call

    AgentConfig.load(home_folder(home))  # where there is no agent, that comes first
    images = _image_files(paths)
    if device is None:
        with contextlib.suppress(NotRunningError):
            named = {str(image.resolve()): str(image) for image in images}
            found = call(home_folder(home), "ask", timeout=None, images=list(named))
            for item in (*found["answers"], *found["unreadable"]):
                item["image"] = named[item["image"]]
            return [Answer.from_dict(answer) for answer in found["answers"]], found["unreadable"]
    agent = open_agent(home, device=device)
    with show.progress_bar(quiet=len(images) < 2) as bar:
        answers, unreadable = agent.ask(images, progress=bar)
    return answers, [{"image": bad.name, "error": bad.reason} for bad in unreadable]


@app.command()
def tasks(context: typer.Context, home: options.Home = None, json: options.Json = False) -> None:
    """List what the agent knows."""
    from skillmesh.cli import show

    agent = open_agent(home or context.obj)
    modules, merged = agent.tasks(), agent.merged()
    if json:
        damaged = [{"file": str(d.path), "error": str(d.error)} for d in agent.bank.damaged]
        facts = {"tasks": [facts_of(m) for m in modules], "merged": [merged_facts(m) for m in merged]}
        show.print_json(facts | {"damaged": damaged})
        return
    rows = show.table(None, "task", ">classes", ">images", ">validation", ">size", "taught by", "learned")
    parts = {part.id for m in merged for part in m.parts}
    listed = [(m.card.task, m) for m in modules if m.id not in parts]
    for joint in merged:
        listed += [(f"{joint.card.task} (merged)", joint), *((f"  of {p.card.task}", p) for p in joint.parts)]
    for name, m in listed:
        c = m.card
        accuracy = show.percent(c.validation_accuracy)
        size = show.kilobytes(m.size)
        day, _, _ = c.created.partition("T")
        rows.add_row(name, str(len(c.classes)), str(sum(c.counts)), accuracy, size, c.teacher, day)
    show.console.print(rows if modules else "no tasks yet; teach one with `skillmesh learn FOLDER`")
    for d in agent.bank.damaged:
        show.warn(f"cannot be used: {d.path}: {d.error}")


@app.command()
def show(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task's name, or name@teacher.")],
    home: options.Home = None,
    json: options.Json = False,
) -> None:
    """Show everything that a module says about itself."""
    from skillmesh.cli import show as shown
    from skillmesh.module.joint import Joint

    module = open_agent(home or context.obj).find(task)
    facts = (merged_facts(module) if isinstance(module, Joint) else facts_of(module)) | {
        "classes": dict(zip(module.card.classes, module.card.counts, strict=True))
    }
    if not isinstance(module, Joint):
        facts["tensors"] = {
            name: f"{tensor.dtype} {list(tensor.shape)} {tensor.nbytes:,} bytes"
            for name, tensor in module.tensors.items()
        }
    if json:
        shown.print_json(facts)
        return
    if module.card.warm_start is not None:
        facts["warm_start"] = {"form": module.card.warm_start.form}
        facts["warm_start"] |= module.card.warm_start.lines(module.card.classes)
    del facts["counts"]  # they stand beside the classes
    for key, value in facts.items():
        if isinstance(value, dict):
            typer.echo(f"{key}:")
            for inner, detail in value.items():
                typer.echo(f"  {inner}: {detail}")
        elif isinstance(value, tuple | list):
            typer.echo(f"{key}: {', '.join(map(str, value))}")
        elif value is not None:
            typer.echo(f"{key}: {value}")


@app.command()
def export(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task's name, or name@teacher.")],
    file: Annotated[Path, typer.Argument(help="Where to write the .skill file.")],
    home: options.Home = None,
) -> None:
    """Write a task's module to a file, for another agent to import."""
    from skillmesh.cli.show import kilobytes

    module = open_agent(home or context.obj).export(task, file)
    typer.echo(f"wrote {module.card.task!r} to {file}, {kilobytes(module.size)}")


@app.command("import")
def import_(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="One or more .skill files.")],
    home: options.Home = None,
    json: options.Json = False,
) -> None:
    """Check module files and take them into the bank; a bad one changes nothing."""
    from skillmesh.agent import Agent
    from skillmesh.cli.show import print_json
    from skillmesh.home import home_folder

    agent = Agent.open(home_folder(home or context.obj))
    received, refused = [], []
    for file in files:
        try:
            received.append(agent.receive(file))
        except SkillmeshError as error:
            refused.append({"file": str(file), "error": type(error).__name__, "reason": str(error)})
    if json:
        print_json({"imported": [facts_of(m) for m in received], "refused": refused})
    else:
        for module in received:
            typer.echo(
                f"imported {module.card.task!r} ({len(module.card.classes)} classes) by {module.card.teacher}"
            )
        for bad in refused:
            typer.echo(f"skillmesh: {bad['file']}: {bad['error']}: {bad['reason']}", err=True)
    if refused:
        raise typer.Exit(1)


@app.command()
def forget(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task's name, or name@teacher.")],
    home: options.Home = None,
) -> None:
    """Remove a task; the agent is then as if it had never had it."""
    module = open_agent(home or context.obj).forget(task)
    typer.echo(f"forgot {module.card.task!r} by {module.card.teacher}")


def open_agent(home: Path | None, **options_: Any) -> Agent:
    """Open an agent that must be there already."""
    from skillmesh.agent import Agent
    from skillmesh.home import home_folder

    return Agent(home_folder(home), **options_)


def _image_files(paths: list[Path]) -> list[Path]:
    """Expand folders into the image files below them."""
    from skillmesh.data.folder import IMAGE_SUFFIXES

    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            if not found:
                raise AgentError(f"there are no images in {path}; expected {', '.join(sorted(IMAGE_SUFFIXES))}")
            files += found
        elif path.exists():
            files.append(path)
        else:
            raise AgentError(f"there is no image at {path}; expected image files or folders of them")
    return files


def facts_of(module: Module) -> dict[str, Any]:
    return module.card.model_dump() | {"id": module.id, "bytes": module.size}


def lesson_facts(lesson: Lesson, seconds: float) -> dict[str, Any]:
    """What there is to say of learning, beside what the card says."""
    return {
        "seconds": round(seconds, 3),
        "macs": lesson.costs.spent,
        "notes": list(lesson.notes),
        "unreadable": [{"name": bad.name, "reason": bad.reason} for bad in lesson.unreadable],
    }


def warn_of(lesson: Lesson) -> None:
    """Say what was noticed about the images, and which could not be read."""
    from skillmesh.cli import show

    for text in lesson.notes:
        show.warn(f"note: {text}")
    for bad in lesson.unreadable:
        show.warn(f"skipped: {bad.name}: {bad.reason}")


def merged_facts(joint: Joint) -> dict[str, Any]:
    """What there is to say of a merged task."""
    card = joint.card
    return {
        "task": card.task,
        "classes": list(card.classes),
        "counts": list(card.counts),
        "teachers": sorted({part.card.teacher for part in joint.parts}),
        "parts": {f"{p.card.task}@{p.card.teacher}": p.id for p in joint.parts},
        "linked_by": joint.link.teacher,
        "link_version": joint.link.version,
        "bytes": joint.size,
    }
