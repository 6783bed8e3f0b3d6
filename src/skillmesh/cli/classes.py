"""The command `classes match`, which finds classes that mean the same under different names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import app, open_agent, options
from skillmesh.common import choices as names
from skillmesh.errors import DataError

if TYPE_CHECKING:
    from skillmesh.core import Core
    from skillmesh.learning.class_names.encoders import Encoder
    from skillmesh.module import Module
    from skillmesh.synergy.matching import Sighting

classes = typer.Typer(help="Find classes that mean the same.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(classes, name="classes")

SIDE_HELP = "A task in the bank, a folder or zip of tasks, or a text file with one class name per line."


@dataclass(frozen=True)
class Side:
    """One side of a comparison, keyed by task id, since tasks of several teachers may share a name."""

    classes: dict[str, tuple[str, ...]]
    shown: dict[str, str]
    """Displayed name of each task."""
    modules: frozenset[str] = frozenset()
    """Ids of these tasks' modules, including the parts of merged tasks."""


@classes.command("match")
def match(
    context: typer.Context,
    learned: Annotated[str, typer.Argument(metavar="A", help=SIDE_HELP)],
    target: Annotated[
        str | None, typer.Argument(metavar="[B]", show_default=False, help="Like A. Default: the whole bank.")
    ] = None,
    home: options.Home = None,
    by: Annotated[
        names.MatchBy | None,
        typer.Option(
            "--by",
            show_default=False,
            help="Compare names, images (sight), or both. Default: both if there are images, else names.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(show_default=False, help="Least similarity of names, 0 to 1. Default: the encoder's own."),
    ] = None,
    share: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Sight: more than this share of a class's images must get the same answer."
        ),
    ] = 0.5,
    images: Annotated[int, typer.Option(min=1, help="Sight: number of images checked per class.")] = 10,
    encoder: options.NameEncoder = "minilm",
    weights: Annotated[
        Path | None,
        typer.Option(show_default=False, help="The encoder's weights: a file for clip, a folder for minilm."),
    ] = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """List the classes of A and B that mean the same, most certain first: by name, by sight (images), or both."""
    from skillmesh.cli import show
    from skillmesh.learning.class_names.encoders import remembering
    from skillmesh.learning.class_names.pairs import checked

    folder = home or context.obj
    method = by or _default_by(learned, target)
    name_encoder = remembering(encoder, weights) if method != "sight" else None
    facts: dict[str, Any] = {"share": share}
    if name_encoder is not None:
        threshold = checked(name_encoder, threshold)
        facts = {"encoder": name_encoder.name, "threshold": threshold}
    if method == "name":
        assert name_encoder is not None
        matches = _by_name(learned, target, folder, name_encoder, threshold)
    else:
        agent = open_agent(folder, device=device)
        matches = _by_sight(agent, learned, target, name_encoder, threshold, share, images)
    if json:
        show.print_json({"by": method} | facts | {"matches": matches})
    else:
        _print(method, matches, facts)


def _default_by(learned: str, target: str | None) -> names.MatchBy:
    """Return "both" if one side has images and the other is the bank or a task in it; else "name"."""
    sides = [side for side in (learned, target) if side is not None]
    others = [side for side in sides if not _has_images(side)]
    if len(sides) - len(others) != 1 or any(Path(side).is_file() for side in others):
        return "name"
    return "both"


def _has_images(side: str) -> bool:
    path = Path(side)
    return path.is_dir() or path.suffix.lower() == ".zip"


def _by_name(
    learned: str, target: str | None, home: Path | None, encoder: Encoder, threshold: float | None
) -> list[dict[str, Any]]:
    from skillmesh.learning.class_names.pairs import match_tasks, surest_first

    first, second = (_side(name, home) for name in (learned, target))
    others = second.classes
    if target is None:  # a task does not match itself
        others = {task: classes for task, classes in others.items() if task not in first.modules}
    matches = [
        replace(m, learned_task=first.shown[m.learned_task], target_task=second.shown[m.target_task])
        for m in match_tasks(first.classes, others, encoder, threshold)
    ]
    return [dict(vars(m)) for m in sorted(matches, key=surest_first)]


def _by_sight(
    agent: Core,
    learned: str,
    target: str | None,
    encoder: Encoder | None,
    threshold: float | None,
    share: float,
    images: int,
) -> list[dict[str, Any]]:
    """Return matches by how the bank classifies the images of A or B; each row gives A's class first."""
    from skillmesh.data.folder import find_tasks, survey_task
    from skillmesh.synergy.matching import BankView, by_both, by_sight

    new, known = (target, learned) if target is not None and not _has_images(learned) else (learned, target)
    if new is None or not _has_images(new) or (known is not None and Path(known).exists()):
        raise DataError(
            f"matching by sight needs images on one side and the bank on the other, found {learned!r} and "
            f"{target or 'the bank'!r}; give a folder or zip of images and a task in the bank, or use --by name"
        )
    task = None if known is None else _task_of(agent, agent.find(known))
    sightings: list[Sighting] = []
    for path in find_tasks([new]):
        view = BankView.of(agent, survey_task(path, hold_out=()), images)
        sightings += by_sight(view, share) if encoder is None else by_both(view, encoder, threshold)
    shown = _display_names(agent, agent.mapper()[0])
    kept = [replace(s, learned_task=shown[s.module]) for s in sightings if task is None or s.module == task.id]
    return [_as_row(sighting, new_first=new == learned) for sighting in kept]


def _task_of(agent: Core, module: Module) -> Module:
    """Return the task in use that is this module or contains it as a part."""
    from skillmesh.module.notice import parts_of

    return next(m for m in agent.mapper()[0] if module.id in {m.id, *(part.id for part in parts_of(m))})


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


def _print(method: str, matches: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    from skillmesh.cli import show

    several = method != "name" or len({(m["learned_task"], m["target_task"]) for m in matches}) > 1
    evidence = [] if method == "name" else [">images", ">share", ">agreement"]
    rows = show.table(
        None, "learned class", *["of task"] * several, "target class", *["of task"] * several, ">score", *evidence
    )
    for m in matches:
        tasks = (m["learned_task"], m["target_task"]) if several else ()
        figures = (str(m["images"]), f"{m['share']:.2f}", f"{m['agreement']:.2f}") if evidence else ()
        rows.add_row(m["learned"], *tasks[:1], m["target"], *tasks[1:], f"{m['score']:.4f}", *figures)
    least = facts.get("threshold", facts.get("share"))
    no_match = (
        f"no match: of no class is a share of more than {least:g} of the images answered with one known class"
        if method == "sight"
        else f"no match: no pair of classes has a similarity of {least:g} or more"
    )
    show.console.print(rows if matches else no_match)


def _side(name: str | None, home: Path | None) -> Side:
    if name is None:
        return _known(open_agent(home))
    path = Path(name)
    if _has_images(name):
        from skillmesh.data.folder import find_tasks, survey_task, task_name

        tasks = {str(task): task for task in find_tasks([path])}
        classes = {key: tuple(survey_task(task, hold_out=()).classes) for key, task in tasks.items()}
        return Side(classes, {key: task_name(task) for key, task in tasks.items()})
    if path.is_file():
        return Side({name: _lines(path)}, {name: path.stem})
    return _known(open_agent(home), name)


def _known(agent: Core, task: str | None = None) -> Side:
    """Return all modules of the bank, or the one task of this name, which may be a merged task."""
    from skillmesh.module.notice import parts_of

    bank = list(agent.bank)
    chosen = bank if task is None else [agent.find(task)]
    classes = {module.id: tuple(module.card.classes) for module in chosen}
    shown = {module.id: module.card.task for module in chosen} | _display_names(agent, bank)
    parts = frozenset(part.id for module in chosen for part in parts_of(module))
    return Side(classes, shown, parts)


def _display_names(agent: Core, modules: Sequence[Module]) -> dict[str, str]:
    """Return each module's task name by id, with the teacher's name if several modules share a task name."""
    tasks = Counter(module.card.task for module in modules)
    return {
        module.id: module.card.task if tasks[module.card.task] == 1 else selector
        for module, selector in zip(modules, agent.bank.selectors(modules), strict=True)
    }


def _lines(path: Path) -> tuple[str, ...]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; expected class names, one per line") from error
    names = tuple(dict.fromkeys(filter(None, lines)))
    if not names:
        raise DataError(f"{path} holds no class names; expected one per line")
    return names
