"""`skillmesh challenge simulate`: measure the mapper with more tasks than there is data for."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from skillmesh.cli import options
from skillmesh_challenge.cli import challenge


@challenge.command("simulate")
def simulate_(
    folders: Annotated[
        list[Path], typer.Argument(metavar="TASKS...", help="Real tasks to start from, or folders of tasks.")
    ],
    tasks: Annotated[int, typer.Option("--tasks", min=4, max=10_000, help="Number of tasks to simulate.")] = 500,
    agents: Annotated[
        int, typer.Option("--agents", min=1, help="Number of agents; it sets the bytes sent.")
    ] = 500,
    classes: Annotated[int, typer.Option("--classes", min=2, max=1000, help="Classes per simulated task.")] = 49,
    halves: Annotated[
        int, typer.Option("--halves", min=1, help="Number of random halves of the real tasks to check with.")
    ] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    compact: options.Compact = False,
    backbone: options.BackboneName = "lite0",
    weights: options.Weights = None,
    calibration: options.CalibrationFile = None,
    seed: options.Seed = 0,
) -> None:
    """Simulate more tasks than there is data for; measure the mapper's time, memory, bytes and accuracy."""
    from skillmesh.cli import show
    from skillmesh.core import Core
    from skillmesh.data.folder import find_tasks
    from skillmesh.evaluation.provenance import provenance
    from skillmesh.store.home import create_home
    from skillmesh_challenge.scale import ScalePlan
    from skillmesh_challenge.simulate import simulate

    paths = find_tasks(folders)
    settings = {"backbone": backbone, "weights": weights, "calibration": calibration, "compact": compact}
    with TemporaryDirectory(prefix="skillmesh-simulate-") as fresh, show.progress_bar() as bar:
        create_home(Path(fresh), name="simulate", seed=seed, **settings)
        plan = ScalePlan(tasks, agents, classes, seed=seed)
        report = simulate(Core(Path(fresh), device="cpu"), paths, plan, halves, bar)
        report["provenance"] = provenance(_command_line(folders), paths, seed)
    if json:
        show.print_json(report)
    else:
        _print_report(report)


def _command_line(folders: list[Path]) -> str:
    """Return the command as typed, with `TASKS` for the folders: their paths on this machine are private."""
    named = {str(folder) for folder in folders}
    words = ["TASKS" if word in named else word for word in sys.argv[1:]]
    return " ".join(["skillmesh", *words])


def _print_report(report: dict[str, Any]) -> None:
    from skillmesh.cli import show

    plan, memory, sent = report["plan"], report["memory"], report["bytes"]
    size = f"{plan['tasks']:,} tasks, {report['classes']:,} classes, {plan['agents']:,} agents"
    rows = show.table(size, "", ">")
    milliseconds = {"answer_seconds": "answer one image", "bare_seconds": "the bare backbone"}
    milliseconds["mapper_seconds"] = "the mapper alone"
    for key, label in milliseconds.items():
        rows.add_row(label, f"{1000 * report[key]:.1f} ms")
    rows.add_row("answer / bare backbone", f"{report['answer_ratio']:.2f}")
    rows.add_row("build the mapper", f"{report['build_seconds']:.1f} s")
    rows.add_row("agreement with scoring every task in full", show.percent(report["shortlist_agreement"]))
    rows.add_row("mapper in memory; peak while it is built", _rest_and_peak(memory, "mapper"))
    rows.add_row("modules in memory", _mb(memory["module_bytes_held"]))
    rows.add_row("whole process in memory; peak in the build", _rest_and_peak(memory, "process"))
    rows.add_row("a module", show.kilobytes(sent["module"]))
    rows.add_row("received by each agent", _mb(sent["per_agent"]))
    rows.add_row("received by all", f"{sent['all_agents'] / 1e9:,.1f} GB")
    show.console.print(rows)
    _print_accuracy(report)
    show.console.print(report["simulated"])


def _print_accuracy(report: dict[str, Any]) -> None:
    from skillmesh.cli import show

    real = report["real_tasks"]
    rows = show.table(
        f"{real // 2} of {real} real tasks, grown to {real}: task found",
        *(">alone", ">among the real", ">all real", ">grown", ">grown − all real"),
    )
    for half in report["check"]:
        figures = (half[key] for key in ("alone", "among_real", "all_real", "grown"))
        rows.add_row(*map(show.percent, figures), f"{100 * half['gap']:+.1f}")
    if report["check"]:
        show.console.print(rows)
    if report["extrapolated"]:
        shares, tasks = report["extrapolated"], report["plan"]["tasks"]
        task, final = show.percent(shares["task_found_accuracy"]), show.percent(shares["final_accuracy"])
        show.console.print(f"extrapolated to {tasks:,} tasks: task found {task}, final {final}")
    else:
        why = "the check missed by more than 2 points" if report["check"] else "too few real tasks to check it"
        show.console.print(f"no accuracy is extrapolated: {why}")


def _mb(count: float | None) -> str:
    return "–" if count is None else f"{count / 1e6:,.0f} MB"


def _rest_and_peak(memory: dict[str, int | None], what: str) -> str:
    return f"{_mb(memory[f'{what}_bytes'])}; {_mb(memory[f'{what}_peak_bytes'])}"
