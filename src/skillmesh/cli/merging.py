"""The command that makes one task of what several teachers taught."""

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
        typer.Argument(metavar="TASK@TEACHER …", help="Tasks that are one; or with --undo a merged one."),
    ],
    home: options.Home = None,
    name: Annotated[
        str | None, typer.Option("--name", show_default=False, help="The merged task's name; default the first's.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take merged tasks apart again.")] = False,
    json: options.Json = False,
) -> None:
    """Make one task of what several teachers taught; a signed link says so to every agent."""
    from skillmesh.cli import show
    from skillmesh.errors import AgentError

    agent = open_agent(home or context.obj, make=False)
    if undo:
        if name is not None:
            raise AgentError("--name is for merging, expected none with --undo; leave it out")
        ended = [agent.unmerge(task) for task in tasks]
        if json:
            show.print_json({"undone": [{"task": link.task, "everywhere": link.withdrawn} for link in ended]})
            return
        for link in ended:
            maker = agent.teachers.name(link)
            where = "everywhere" if link.withdrawn else f"here; {maker}'s link stands elsewhere"
            outlet.line(f"{link.task!r} is no longer merged {where}")
        return
    link = agent.merge(tasks, name)
    merged = next(merged for merged in agent.merged() if merged.link.digest == link.digest)
    if json:
        show.print_json(merged_facts(merged, agent))
        return
    outlet.line(
        f"merged {merged.card.task!r}: {len(merged.parts)} parts by {agent.teachers.of(merged)}, "
        f"{len(merged.card.classes)} classes, {sum(merged.card.counts)} training images"
    )
