"""The commands about classes: which of them are one thing under two names."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh import names
from skillmesh.cli import options
from skillmesh.cli.app import app, open_agent
from skillmesh.errors import DataError

if TYPE_CHECKING:
    from skillmesh.agent import Agent
    from skillmesh.module import Module
    from skillmesh.synergy.matching.by_sight import Sighting
    from skillmesh.synergy.matching.encoders import Encoder

classes = typer.Typer(help="Classes that recur under other names.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(classes, name="classes")

Classes = dict[str, tuple[str, ...]]
"""Class names by task."""
GIVEN = "A task in the bank, a folder or zip of tasks, or a text file with a class per line."


@classes.command("match")
def match(
    context: typer.Context,
    learned: Annotated[str, typer.Argument(metavar="A", help=GIVEN)],
    target: Annotated[
        str | None, typer.Argument(metavar="[B]", show_default=False, help="As A; default: all tasks in the bank.")
    ] = None,
    home: options.Home = None,
    by: Annotated[
        names.MatchBy | None,
        typer.Option(
            "--by", show_default=False, help="Names, sight, or names that sight confirms; default: what there is."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(show_default=False, help="The least similarity, 0 to 1; default: the encoder's own."),
    ] = None,
    share: Annotated[
        float,
        typer.Option(min=0, max=1, help="Sight: more than this share of a class's images must land on one class."),
    ] = 0.5,
    images: Annotated[int, typer.Option(min=1, help="Sight: so many images of a class are looked at.")] = 10,
    encoder: options.NameEncoder = "minilm",
    weights: Annotated[
        Path | None,
        typer.Option(show_default=False, help="The encoder's weights: a file for clip, a folder for minilm."),
    ] = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Show the classes of A and B that are one thing, the surest first: by their names, by sight, or by both."""
    from skillmesh.cli import show
    from skillmesh.synergy.matching.remembered import remembering

    where = home or context.obj
    how = by or _what_there_is(learned, target)
    named = remembering(encoder, weights) if how != "sight" else None
    if how == "name":
        assert named is not None
        found, least = _by_name(learned, target, where, named, threshold)
        facts: dict[str, Any] = {"encoder": named.name, "threshold": least}
    else:
        agent = open_agent(where, device=device)
        found = _by_sight(agent, learned, target, named, threshold, share, images)
        facts = {"encoder": named.name, "threshold": threshold or named.threshold} if named else {"share": share}
    if json:
        show.print_json({"by": how} | facts | {"matches": found})
    else:
        _print(how, found, facts)


def _what_there_is(learned: str, target: str | None) -> names.MatchBy:
    """Names and sight where images stand on one side and a bank on the other; else names."""
    sides = [_has_images(given) for given in (learned, target) if given is not None]
    others = [given for given in (learned, target) if given is not None and not _has_images(given)]
    if sides.count(True) != 1 or any(Path(given).is_file() for given in others):
        return "name"
    return "both"


def _has_images(given: str) -> bool:
    path = Path(given)
    return path.is_dir() or path.suffix.lower() == ".zip"


def _by_name(
    learned: str, target: str | None, home: Path | None, encoder: Encoder, threshold: float | None
) -> tuple[list[dict[str, Any]], float]:
    from skillmesh.synergy.matching.by_name import match_tasks

    sides = [_classes_of(given, home) for given in (learned, target)]
    least = encoder.threshold if threshold is None else threshold
    if target is None:  # a task does not match itself
        sides[1] = {task: names for task, names in sides[1].items() if task not in sides[0]}
    return [dict(vars(m)) for m in match_tasks(sides[0], sides[1], encoder, least)], least


def _by_sight(
    agent: Agent,
    learned: str,
    target: str | None,
    encoder: Encoder | None,
    threshold: float | None,
    share: float,
    images: int,
) -> list[dict[str, Any]]:
    """What the bank makes of the images on one side; A stands first in the result, whichever side that is."""
    from skillmesh.data.folder import find_tasks, survey_task
    from skillmesh.synergy.matching.by_sight import View, by_both, by_sight

    new, known = (target, learned) if target is not None and not _has_images(learned) else (learned, target)
    if new is None or not _has_images(new) or (known is not None and Path(known).exists()):
        raise DataError(
            f"matching by sight needs images on one side and the bank on the other, found {learned!r} and "
            f"{target or 'the bank'!r}; name a folder or zip of images and a task in the bank, or use --by name"
        )
    module = None if known is None else agent.bank.find(known)
    found: list[Sighting] = []
    for path in find_tasks([new]):
        view = View.of(agent, survey_task(path, hold_out=()), images)
        found += by_sight(view, share) if encoder is None else by_both(view, encoder, threshold)
    kept = [s for s in found if module is None or _is_of(s, module)]
    return [_as_row(sighting, new_first=new == learned) for sighting in kept]


def _is_of(sighting: Sighting, module: Module) -> bool:
    return (sighting.learned_task, sighting.teacher) == (module.card.task, module.card.teacher)


def _as_row(sighting: Sighting, new_first: bool) -> dict[str, Any]:
    row = asdict(sighting)
    score = row["share"] if row["name"] is None else row["name"]
    if new_first:
        row |= {
            "learned": row["target"],
            "target": row["learned"],
            "learned_task": row["target_task"],
            "target_task": row["learned_task"],
        }
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()} | {
        "score": round(score, 4)
    }


def _print(how: str, found: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    from skillmesh.cli import show

    several = how != "name" or len({(m["learned_task"], m["target_task"]) for m in found}) > 1
    seen = [] if how == "name" else [">images", ">landed", ">agreement"]
    rows = show.table(
        None, "learned class", *["of task"] * several, "target class", *["of task"] * several, ">score", *seen
    )
    for m in found:
        tasks = (m["learned_task"], m["target_task"]) if several else ()
        looks = (str(m["images"]), f"{m['share']:.2f}", f"{m['agreement']:.2f}") if seen else ()
        rows.add_row(m["learned"], *tasks[:1], m["target"], *tasks[1:], f"{m['score']:.4f}", *looks)
    least = facts.get("threshold", facts.get("share"))
    nothing = (
        "most images of no class land on one known class"
        if how == "sight"
        else (f"no pair of classes is as similar as {least:g}")
    )
    show.console.print(rows if found else nothing)


def _classes_of(given: str | None, home: Path | None) -> Classes:
    if given is None:
        return {module.card.task: tuple(module.card.classes) for module in open_agent(home).bank}
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
