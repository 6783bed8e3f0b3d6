"""The commands about classes: which of them are one thing under two names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillmesh.cli import options
from skillmesh.cli.app import app, open_agent
from skillmesh.errors import DataError

classes = typer.Typer(help="Classes that recur under other names.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(classes, name="classes")

Classes = dict[str, tuple[str, ...]]
"""Class names by task."""
GIVEN = "A task in the bank, a folder or zip of tasks, or a text file with a class per line."


@classes.command("match")
def match(
    context: typer.Context,
    learned: Annotated[str, typer.Argument(metavar="A", help=GIVEN)],
    target: Annotated[str, typer.Argument(metavar="B", help="As A.")],
    home: options.Home = None,
    threshold: Annotated[
        float | None,
        typer.Option(show_default=False, help="The least similarity, 0 to 1; default: the encoder's own."),
    ] = None,
    encoder: Annotated[str, typer.Option(help="minilm, clip, or letters (spelling alone).")] = "minilm",
    weights: Annotated[
        Path | None,
        typer.Option(show_default=False, help="The encoder's weights: a file for clip, a folder for minilm."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show the classes of A and B that are one thing by their names, the surest first."""
    from skillmesh.cli import show
    from skillmesh.synergy.encoders import load_encoder
    from skillmesh.synergy.matching import match_tasks

    sides = [_classes_of(given, home or context.obj) for given in (learned, target)]
    loaded = load_encoder(encoder, weights)
    least = loaded.threshold if threshold is None else threshold
    matches = match_tasks(sides[0], sides[1], loaded, least)
    if json:
        show.print_json({"encoder": loaded.name, "threshold": least, "matches": [vars(m) for m in matches]})
        return
    several = max(map(len, sides)) > 1
    rows = show.table(
        None, "learned class", *["of task"] * several, "target class", *["of task"] * several, ">score"
    )
    for m in matches:
        tasks = (m.learned_task, m.target_task) if several else ()
        rows.add_row(m.learned, *tasks[:1], m.target, *tasks[1:], f"{m.score:.4f}")
    show.console.print(rows if matches else f"no pair of classes is as similar as {least:g}")


def _classes_of(given: str, home: Path | None) -> Classes:
    path = Path(given)
    if path.is_dir() or path.suffix.lower() == ".zip":
        from skillmesh.data.folder import find_tasks, survey_task, task_name

        return {task_name(task): survey_task(task, hold_out=()).classes for task in find_tasks([path])}
    if path.is_file():
        return {path.stem: _lines(path)}
    module = open_agent(home).bank.find(given)
    return {module.card.task: tuple(module.card.classes)}


def _lines(path: Path) -> tuple[str, ...]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8; expected class names, one per line") from error
    names = tuple(dict.fromkeys(filter(None, lines)))
    if not names:
        raise DataError(f"{path} holds no class names; expected one per line")
    return names
