"""The demo: draw tasks, learn them in sequence, answer with no task label, and show it all."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from skillmesh.agent import Agent, create_home
from skillmesh.challenge.evaluate import Evaluation, evaluate
from skillmesh.cli import picture, show
from skillmesh.data.demo import HIDDEN, LEARNED, write_demo_tasks

IMAGES = {"train": 12, "val": 4, "test": 6}
"""Images per class."""


@dataclass(frozen=True)
class Timing:
    """Seconds of the demo's parts."""

    drawing: float
    learning: float
    answering: float


def run(out: Path, device: str | None, as_json: bool) -> None:
    """Run the demo in `out`; a second run draws nothing again, but learns afresh."""
    with show.progress_bar() as bar:
        started = time.perf_counter()
        folders = _draw(out / "tasks", bar)
        drawn = time.perf_counter()
        agent = _fresh_agent(out / "agent", device)
        agent.backbone  # noqa: B018  (loaded before the clock starts)
        result = evaluate(agent, folders, hide=HIDDEN, progress=bar)
        summary = result.summary()
        timing = Timing(drawn - started, summary["learn_seconds"], summary["answer_seconds"])
        target = out / "answers.png"
        picture.draw_answers(agent, folders, target)
    if as_json:
        show.print_json(summary | {"drawing_seconds": round(timing.drawing, 3), "picture": str(target)})
        return
    _print(result, summary, timing, target, agent)


def _draw(folder: Path, bar: show.Bar) -> list[Path]:
    names = (*LEARNED, *HIDDEN)
    bar.start("drawing tasks", len(names))
    folders = []
    for name in names:
        folders += write_demo_tasks(folder, names=[name], **IMAGES)
        bar.advance(1)
    return folders


def _fresh_agent(home: Path, device: str | None) -> Agent:
    """The demo shows learning, so it begins with an agent that knows nothing."""
    shutil.rmtree(home, ignore_errors=True)
    create_home(home, name="demo")
    return Agent(home, device=device)


def _print(result: Evaluation, summary: dict[str, Any], timing: Timing, target: Path, agent: Agent) -> None:
    title = f"{len(result.tasks)} tasks learned one after the other, then asked with no task label"
    rows = show.table(
        title,
        "task",
        ">classes",
        ">task given",
        ">task found",
        ">right answer",
        ">said unknown",
        ">module",
        ">learned in",
    )
    for t in result.tasks:
        figures = (t.oracle_accuracy, t.task_accuracy, t.final_accuracy, t.known_unknown)
        shown = [show.percent(figure) for figure in figures]
        rows.add_row(t.task, str(t.classes), *shown, show.kilobytes(t.module_bytes), f"{t.learn_seconds:.1f} s")
    keys = ("oracle_accuracy", "task_accuracy", "final_accuracy", "known_unknown")
    means = [show.percent(summary[key]) for key in keys]
    rows.add_section()
    rows.add_row(
        show.bold("mean"), "", *means, show.kilobytes(summary["module_bytes"]), f"{timing.learning:.1f} s in all"
    )
    show.console.print(rows)
    show.console.print()
    hidden = show.table("tasks that it never learned", "task", ">said unknown")
    for h in result.hidden:
        hidden.add_row(h.task, show.percent(h.unknown))
    show.console.print(hidden)
    images = sum(t.test_images for t in result.tasks) + sum(h.test_images for h in result.hidden)
    typer.echo(
        f"\ndrew the images in {timing.drawing:.0f} s, answered {images:,} of them in {timing.answering:.0f} s"
    )
    typer.echo(f"picture: {target}")
    typer.echo(f"try it:  skillmesh ask IMAGE --home {agent.home}")
