"""The command `merge`, which links several teachers' modules into one merged task."""

from __future__ import annotations

from typing import Annotated

import typer

from skillmesh.cli import app, open_agent, options, outlet
from skillmesh.cli.outlet import merged_facts


@app.command()
def merge(
    context: typer.Context,
    tasks: Annotated[
        list[str],
        typer.Argument(metavar="TASK@TEACHER …", help="Tasks to merge; with --undo: merged tasks to separate."),
    ],
    home: options.Home = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", show_default=False, help="Name of the merged task. Default: the first task's name."
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Separate merged tasks again.")] = False,
    json: options.Json = False,
) -> None:
    """Merge tasks of several teachers into one task, by a signed link that is shared like a module."""
    from skillmesh.cli import show
    from skillmesh.errors import AgentError

    agent = open_agent(home or context.obj, make=False)
    if undo:
        if name is not None:
            raise AgentError("--name cannot be combined with --undo; leave it out")
        ended = [agent.unmerge(task) for task in tasks]
        if json:
            show.print_json({"undone": [{"task": link.task, "everywhere": link.withdrawn} for link in ended]})
            return
        for link in ended:
            maker = agent.teachers.name(link)
            where = "on any agent" if link.withdrawn else f"on this agent; {maker}'s link still holds on others"
            outlet.line(f"{link.task!r} is no longer merged {where}")
        return
    link = agent.merge(tasks, name)
    merged = next(merged for merged in agent.merged() if merged.link.digest == link.digest)
    if json:
        show.print_json(merged_facts(merged, agent))
        return
    outlet.line(
        f"merged {merged.card.task!r}: {len(merged.parts)} modules by {agent.teachers.of(merged)}, "
        f"{len(merged.card.classes)} classes, {sum(merged.card.counts)} training images"
    )
