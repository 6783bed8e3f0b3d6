"""The commands for the tasks in an agent's bank: tasks, show, export, import, forget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillmesh.cli import app, open_agent, options, outlet
from skillmesh.cli.outlet import facts_of, merged_facts, task_names
from skillmesh.errors import AgentError, SkillmeshError

NOTE = "  | "
"""Prefix of each line of a note that has several lines."""


@app.command()
def tasks(context: typer.Context, home: options.Home = None, json: options.Json = False) -> None:
    """List the tasks that the agent knows."""
    from skillmesh.cli import show

    agent = open_agent(home or context.obj)
    modules, merged = agent.tasks(), agent.merged()
    if json:
        damaged = [{"file": str(d.path), "reason": str(d.error)} for d in agent.bank.damaged]
        names = task_names(agent)
        facts = {
            "tasks": [facts_of(m, agent, names) for m in modules],
            "merged": [merged_facts(m, agent) for m in merged],
        }
        show.print_json(facts | {"damaged": damaged})
        return
    others = any(m.card.teacher_key != agent.identity.public_key for m in modules)
    teacher = ["taught by"] if others else []
    rows = show.table(None, "task", ">classes", ">images", ">validation", ">size", *teacher, "learned")
    parts = {part.id for m in merged for part in m.parts}
    name_of = task_names(agent).marked
    listed = [(name_of(m.card.task), m) for m in modules if m.id not in parts]
    for whole in merged:
        listed += [(f"{name_of(whole.card.task)} (merged)", whole)]
        listed += [(f"  of {name_of(p.card.task)}", p) for p in whole.parts]
    for name, m in listed:
        c = m.card
        figures = (str(len(c.classes)), str(sum(c.counts)), show.percent(c.validation_accuracy))
        day, _, _ = c.created.partition("T")
        rows.add_row(name, *figures, show.kilobytes(m.size), *[agent.teachers.of(m)] * others, day)
    if modules:
        show.console.print(rows)
    else:
        show.say("no tasks yet; teach one with `skillmesh learn FOLDER`")
    for d in agent.bank.damaged:
        show.warn(f"unusable module: {d.path}: {d.error}")


@app.command()
def show(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task's name, or name@teacher.")],
    home: options.Home = None,
    json: options.Json = False,
) -> None:
    """Show all details of a task. These are classes, teacher, settings, accuracy, sizes and more."""
    from skillmesh.cli import show as shown
    from skillmesh.module.notice import MergedTask

    agent = open_agent(home or context.obj, make=False)
    module = agent.find(task)
    facts = (merged_facts(module, agent) if isinstance(module, MergedTask) else facts_of(module, agent)) | {
        "classes": dict(zip(module.card.classes, module.card.counts, strict=True))
    }
    if not isinstance(module, MergedTask):
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
    del facts["counts"]  # shown beside the classes
    for key, value in facts.items():
        if isinstance(value, str) and "\n" in value:  # a note, whose lines must not pass for fields
            outlet.line(f"{key}:")
            for each in value.split("\n"):
                outlet.line(f"{NOTE}{each}")
        elif isinstance(value, dict):
            outlet.line(f"{key}:")
            for inner, detail in value.items():
                outlet.line(f"  {inner}: {detail}")
        elif isinstance(value, tuple | list):
            outlet.line(f"{key}: {', '.join(map(str, value))}")
        elif value is not None:
            outlet.line(f"{key}: {value}")


@app.command()
def export(
    context: typer.Context,
    task: Annotated[str | None, typer.Argument(show_default=False, help="A task's name, or name@teacher.")] = None,
    file: Annotated[
        Path | None, typer.Argument(show_default=False, help="Where to write the .skill file.")
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(
            "--onnx",
            metavar="FILE",
            show_default=False,
            help="Instead, write the whole agent as an ONNX file, with which any ONNX runtime answers.",
        ),
    ] = None,
    home: options.Home = None,
) -> None:
    """Write a task's module to a file, for another agent to import; or with --onnx, the whole agent."""
    from skillmesh.cli.show import kilobytes

    if onnx is not None:
        if task is not None:
            raise AgentError(f"--onnx writes the whole agent, and found the task {task!r}; leave the task out")
        agent = open_agent(home or context.obj, make=False)
        written = agent.export_onnx(onnx)
        tasks = agent.live
        outlet.line(
            f"wrote {written}, {written.stat().st_size / 1e6:.1f} MB: {tasks} task{'' if tasks == 1 else 's'}"
        )
        return
    if task is None or file is None:
        found = "no task" if task is None else f"the task {task!r} and no file"
        raise AgentError(
            f"found {found}, expected `export TASK FILE`, or `export --onnx FILE` for the whole agent"
        )
    written = open_agent(home or context.obj, make=False).export(task, file)
    outlet.line(f"wrote {written}, {kilobytes(written.stat().st_size)}")


@app.command("import")
def import_(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="One or more .skill files.")],
    home: options.Home = None,
    json: options.Json = False,
) -> None:
    """Check module files and add them to the bank. A bad file is refused and changes nothing."""
    from skillmesh.cli.show import print_json

    agent = open_agent(home or context.obj)
    received, refused = [], []
    for file in files:
        try:
            received.append(agent.import_file(file))
        except SkillmeshError as error:
            refused.append({"file": str(file), "reason": str(error), "kind": type(error).__name__})
    if json:
        print_json({"imported": [facts_of(m, agent) for m in received], "refused": refused})
    else:
        for module in received:
            teacher = agent.teachers.name(module.card)
            task = task_names(agent).marked(module.card.task)
            outlet.line(f"imported {task!r} ({len(module.card.classes)} classes) by {teacher}")
        for bad in refused:
            outlet.line(f"skillmesh: {bad['file']}: {bad['kind']}: {bad['reason']}", err=True)
    if refused:
        raise typer.Exit(1)


@app.command()
def forget(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A task's name, or name@teacher.")],
    home: options.Home = None,
) -> None:
    """Remove a task, as if this agent had never had it. It is not fetched again unless you `remember` it."""
    agent = open_agent(home or context.obj, make=False)
    module = agent.forget(task)
    outlet.line(f"forgot {module.card.task!r} by {agent.teachers.name(module.card)}")
