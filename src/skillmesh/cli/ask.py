"""The command `ask`: say what images show."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skillmesh.cli import options
from skillmesh.cli.app import app, open_agent
from skillmesh.errors import AgentError

if TYPE_CHECKING:
    from skillmesh.answer import Answer


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
