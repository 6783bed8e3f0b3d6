"""`skillmesh challenge run` and `challenge methods`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import options, outlet
from skillmesh_challenge.cli import challenge
from skillmesh_challenge.cli.data import Dataset, Partial, Places, SkipUnreadable, SubsamplingRule
from skillmesh_challenge.errors import RunError

if TYPE_CHECKING:
    from skillmesh_challenge.record import Record


@challenge.command("run")
def run(
    tasks: Places,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The run's folder; an unfinished run in it is resumed.")
    ],
    agents: Annotated[
        str | None,
        typer.Option(
            "--agents",
            metavar="N[,N…]",
            show_default="2, or 1 where learning is in sequence",
            help="Number of agents; several numbers make a sweep.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", metavar="NAME|FILE.toml", help="Method; `challenge methods` lists them.")
    ] = "sketch",
    assign: Annotated[
        str,
        typer.Option("--assign", metavar="order|round-robin|balanced|FILE", help="How tasks are given to agents."),
    ] = "order",
    mesh: Annotated[bool, typer.Option("--mesh", help="Share over a real mesh, one process per agent.")] = False,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="ADDRESS", show_default=False, help="Learn on a Dask cluster."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, show_default=False, help="Worker processes; default: cores.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, show_default=False, help="Threads per worker; default: cores/workers."),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="S[,S…]", help="Several seeds give confidence intervals.")
    ] = "0",
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Learn in a random order set by the seed.")] = False,
    alpha: Annotated[float, typer.Option("--alpha", min=0, help="Cost of sending a byte, in MACs.")] = 1000.0,
    bound: Annotated[
        bool, typer.Option("--bound/--no-bound", help="Also train one classifier on all data together.")
    ] = True,
    cold: Annotated[bool, typer.Option("--cold", help="Start with an empty descriptor cache.")] = False,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            "--reuse",
            metavar="DIR",
            show_default=False,
            help="Copy tasks learned by a run of the same method and images.",
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", metavar="NAME", show_default=False, help="Default: the method's own."),
    ] = None,
    weights: options.Weights = None,
    calibration: options.CalibrationFile = None,
    dataset: Dataset = None,
    rule: SubsamplingRule = "appendix",
    partial: Partial = False,
    skip_unreadable: SkipUnreadable = False,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Run the challenge: agents learn tasks in parallel; after each task all tasks known so far are tested."""
    from skillmesh.cli import show
    from skillmesh_challenge.baselines import methods as _baselines  # noqa: F401  (importing registers their names)
    from skillmesh_challenge.data import check, refuse_bad_data
    from skillmesh_challenge.datasets import open_tasks, task_paths
    from skillmesh_challenge.methods import find_method
    from skillmesh_challenge.record import find_records
    from skillmesh_challenge.run import Plan, folders_of, sweep

    chosen = find_method(method, {"backbone": backbone} | _absolute(weights=weights, calibration=calibration))
    numbers = _numbers(agents or ("2" if getattr(chosen, "parallel", True) else "1"), "--agents", 1)
    drawn = _numbers(seeds, "--seeds", 0)
    opening: dict[str, Any] = {"dataset": dataset, "rule": rule, "partial": partial}
    with show.progress_bar() as bar:
        plan = Plan(
            paths=(),
            open=lambda seed: open_tasks(tasks, seed=seed, **opening),
            method=chosen,
            out=out,
            agents=1,
            assign=assign,
            mesh=mesh,
            alpha=alpha,
            shuffle=shuffle,
            bound=bound,
            workers=workers,
            threads=threads,
            cluster=cluster,
            device=device,
            cold=cold,
            reuse=tuple(find_records(reuse or ())),
            command=show.command_line(),
            progress=bar,
            tell=lambda text: show.stderr.print(text, soft_wrap=True),
        )
        for count in numbers:  # before the tasks are read
            chosen.refuse(replace(plan, agents=count))
        new = [
            seed for folder, seed in folders_of(out, numbers, drawn).items() if not (folder / "run.json").exists()
        ]
        for seed in sorted(set(new)):  # a resumed run was checked when it began
            data = check(tasks, seed=seed, skip_unreadable=skip_unreadable, progress=bar, **opening)
            for warning in refuse_bad_data(data).warnings:
                show.stderr.print(f"warning: {warning}", soft_wrap=True)
        plan = replace(plan, paths=task_paths(tasks, dataset=dataset))
        with show.resumable(out):
            records = sweep(plan, numbers, drawn)
    if json:
        show.print_json(
            [{"folder": str(r.folder), "agents": r.settings.agents, "results": r.results} for r in records]
        )
    else:
        _print(records)


@challenge.command("methods")
def methods(json: options.Json = False) -> None:
    """List the methods that `challenge run` knows by name, with their settings."""
    from skillmesh.cli import show
    from skillmesh_challenge.baselines import methods as _baselines  # noqa: F401  (importing registers their names)
    from skillmesh_challenge.methods import METHODS

    if json:
        show.print_json([method.settings() for method in METHODS.values()])
        return
    for method in METHODS.values():
        settings = {name: "none" if value is None else value for name, value in method.settings().items()}
        del settings["name"]
        outlet.line(f"{method.name}: " + ", ".join(f"{name} {value}" for name, value in settings.items()))


def _print(records: list[Record]) -> None:
    from skillmesh.cli import show

    columns = (">agents", ">seed", ">task given", ">task found", ">final", ">all data")
    rows = show.table(None, "method", *columns, "task label")
    for record in records:
        results: dict[str, Any] = record.results or {}
        together = results["bounds"].get("all_data_together", {}).get("final_accuracy")
        rows.add_row(
            str(record.settings.method["name"]),
            str(record.settings.agents),
            str(record.settings.seed),
            *(show.percent(results[k]) for k in ("task_given_accuracy", "task_found_accuracy", "final_accuracy")),
            show.percent(together),
            "given" if record.settings.method.get("label") == "given" else "none",
        )
    show.console.print(rows)
    if several := [record for record in records if record.settings.agents > 1]:
        _print_sharing(several)


def _print_sharing(records: list[Record]) -> None:
    """Print the speedup of several agents, and whether they give the same answers."""
    from skillmesh.cli import show

    rows = show.table(None, ">agents", ">seed", ">speedup", ">efficiency", "answers")
    for record in records:
        results: dict[str, Any] = record.results or {}
        shared = results["sharing"]
        rows.add_row(
            str(record.settings.agents),
            str(record.settings.seed),
            f"{results['costs']['speedup']:.2f}",
            f"{results['costs']['efficiency']:.4f}",
            "–" if shared is None else ("alike" if shared["same_answers"] else "DIFFERENT"),
        )
    show.console.print()
    show.console.print(rows)


def _absolute(**files: Path | None) -> dict[str, str | None]:
    """Return absolute paths, which workers in other folders can use."""
    return {name: None if path is None else str(path.resolve()) for name, path in files.items()}


def _numbers(text: str, name: str, least: int) -> list[int]:
    """Return the numbers in a comma-separated list."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) >= least for word in words):
        raise RunError(f"{name} is {text!r}; expected whole numbers from {least} up, separated by commas")
    values = [int(word) for word in words]
    if len(set(values)) != len(values):
        raise RunError(f"{name} is {text!r}; expected each number once")
    return values
