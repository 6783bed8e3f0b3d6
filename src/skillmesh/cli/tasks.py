"""The commands about the tasks that an agent knows: tasks, show, export, import, forget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillmesh.cli import options
from skillmesh.cli.app import app, open_agent
from skillmesh.cli.facts import facts_of, merged_facts
from skillmesh.errors import SkillmeshError


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
