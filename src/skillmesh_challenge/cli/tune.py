"""`skillmesh challenge tune`: choose settings of baselines on validation images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillmesh.cli import options
from skillmesh_challenge.cli import challenge
from skillmesh_challenge.cli.data import Dataset, Partial, Places, SubsamplingRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skillmesh_challenge.baselines.trials import Trial, Tried
    from skillmesh_challenge.baselines.tuning import Tuned


@challenge.command("tune")
def tune_(
    tasks: Places,
    method: Annotated[str, typer.Option("--method", metavar="NAME|FILE.toml[,…]", help="Baselines to tune.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Output folder; an unfinished sweep in it is resumed.")
    ],
    first: Annotated[int, typer.Option("--first", min=1, help="Number of tasks to tune on.")] = 4,
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", metavar="NAME", show_default=False, help="Default: the method's own."),
    ] = None,
    weights: options.Weights = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of settings tried in parallel.")] = 1,
    dataset: Dataset = None,
    rule: SubsamplingRule = "appendix",
    partial: Partial = False,
    seed: options.Seed = 0,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Tune baselines on validation images of the first tasks; every method gets the same number of tries."""
    from skillmesh.cli import show
    from skillmesh_challenge.baselines import methods as _baselines  # noqa: F401  (importing registers their names)
    from skillmesh_challenge.baselines.trials import Ground
    from skillmesh_challenge.baselines.tuning import tune
    from skillmesh_challenge.methods import find_method

    changes = {"backbone": backbone, "weights": None if weights is None else str(weights.resolve())}
    names = [name.strip() for name in method.split(",") if name.strip()]
    ground = Ground(tuple(map(str, tasks)), first, dataset, rule, partial)
    if (count := len(ground.paths())) < first:
        show.warn(f"tuning on {count} tasks instead of {first}: no more were found")
    with show.resumable(out), show.progress_bar() as bar:
        tuned = tune(
            [find_method(name, changes) for name in names],
            ground,
            out,
            seed=seed,
            device=device,
            workers=workers,
            command=show.command_line(),
            tell=_print_trial,
            progress=bar if workers == 1 else None,
        )
    if json:
        show.print_json({one.method.name: _as_dict(one, out) for one in tuned})
    else:
        _print(tuned)
        files = ", ".join(str(out / f"{one.method.name}.toml") for one in tuned)
        show.stderr.print(f"chosen settings: {files}; use them with `challenge run --method FILE`", soft_wrap=True)


def _print_trial(trial: Trial, tried: Tried) -> None:
    from skillmesh.cli import show

    name = (
        f"{trial.method.name} {trial.number + 1}/{len(trial.method.settings_to_try())} ({_words(tried.changes)})"
    )
    show.stderr.print(f"{name}: {show.percent(tried.final_accuracy)}, {tried.seconds:.1f} s", soft_wrap=True)


def _as_dict(tuned: Tuned, out: Path) -> dict[str, Any]:
    return {
        "file": str(out / f"{tuned.method.name}.toml"),
        "chosen": tuned.chosen,
        "tried": [vars(tried) for tried in tuned.tried],
    }


def _print(tuned: Sequence[Tuned]) -> None:
    from skillmesh.cli import show

    rows = show.table(None, "method", "+settings", ">after learning", ">final", ">forgetting", ">MACs", "")
    for one in tuned:
        for number, tried in enumerate(one.tried):
            rows.add_row(
                one.method.name,
                _words(tried.changes),
                show.percent(tried.after_learning),
                show.percent(tried.final_accuracy),
                show.percent(tried.forgetting),
                f"{tried.macs:.2e}",
                "chosen" if number == one.chosen else "",
            )
    show.console.print(rows)


def _words(changes: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in changes.items()
    )
