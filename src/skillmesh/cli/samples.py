"""The command `samples`, which draws images to try the other commands with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillmesh.cli import app, options, outlet

TASKS = ("flowers", "dice", "shapes")
"""The drawn tasks that need no font, so that a plain installation can draw them."""


@app.command()
def samples(
    folder: Annotated[Path, typer.Argument(help="Where to write the task folders; created if missing.")],
    json: options.Json = False,
) -> None:
    """Draw three small tasks to try: flowers, dice and shapes. Needs no download."""
    from skillmesh.cli import show
    from skillmesh.data.demo import write_demo_tasks

    paths = write_demo_tasks(folder, names=TASKS)
    if json:
        show.print_json({"tasks": [str(path) for path in paths]})
        return
    for path in paths:
        count = sum(1 for _ in path.glob("*/*/*"))
        outlet.line(f"drew {path}: {len(list((path / 'train').iterdir()))} classes, {count} images")
    show.say(f"learn one with `skillmesh learn {paths[0]}`")
