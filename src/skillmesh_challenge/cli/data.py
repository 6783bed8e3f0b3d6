"""`skillmesh challenge data`: check tasks before a run, and list the datasets that are known by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from skillmesh.cli import options, outlet
from skillmesh_challenge.cli import challenge

if TYPE_CHECKING:
    from skillmesh_challenge.data import DataReport

data = typer.Typer(
    help="Check tasks before a run; list the datasets that are known by name.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
challenge.add_typer(data, name="data")

Places = Annotated[list[str], typer.Argument(metavar="DIR...", help="Tasks, folders of tasks, or NAME:DIR.")]
Dataset = Annotated[
    str | None,
    typer.Option("--dataset", metavar="NAME", show_default=False, help="Dataset in DIR: skill102 or decathlon."),
]
SubsamplingRule = Annotated[
    Literal["appendix", "list"],
    typer.Option(
        "--rule", help="skill102: subsample every split, or (list) only splits over 54,000 or 6,000 images."
    ),
]
Partial = Annotated[bool, typer.Option("--partial", help="Accept an incomplete copy of the dataset.")]
SkipUnreadable = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out unreadable images instead of refusing the run.")
]

COUNTS = ("classes", "train", "val", "test")
FAULTS = {
    "broken": "images that cannot be read",
    "twice": "duplicates in the same split",
    "leaked": "test images that are also in train",
    "shared": "images that are also in another task",
}
"""Columns of the report for faults, with what each counts."""


@data.command("check")
def check_(
    folders: Places,
    dataset: Dataset = None,
    rule: SubsamplingRule = "appendix",
    partial: Partial = False,
    skip_unreadable: SkipUnreadable = False,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Open every image of every task and report all faults; the exit status is 1 if a run would be refused."""
    from skillmesh.cli import show
    from skillmesh_challenge.data import check

    with show.progress_bar() as bar:
        report = check(
            folders,
            dataset=dataset,
            seed=seed,
            rule=rule,
            partial=partial,
            skip_unreadable=skip_unreadable,
            progress=bar,
        )
    if json:
        show.print_json(report.as_dict())
    else:
        print_report(report)
    if not report.ok:
        raise typer.Exit(1)


def print_report(report: DataReport) -> None:
    """Print the tasks, then the errors that prevent a run, then the warnings."""
    from skillmesh.cli import show

    rows = show.table(None, "task", *(f">{name}" for name in (*COUNTS, *FAULTS)))
    for task in report.tasks:
        counts = (task.classes, *task.images.values(), task.unreadable, task.twins_in_splits)
        twins = (task.twins_across_splits.get("test in train", 0), task.twins_in_other_tasks)
        rows.add_row(task.name, *(f"{count:,}" for count in (*counts, *twins)))
    if report.tasks:
        show.console.print(rows)
        outlet.line("; ".join(f"{name}: {meaning}" for name, meaning in FAULTS.items()))
    for title, problems in (("error", report.errors), ("warning", report.warnings)):
        for problem in problems:
            outlet.line(f"{title}: {problem}")
    images = sum(sum(task.images.values()) for task in report.tasks)
    verdict = "a run can start" if report.ok else "no run can start"
    outlet.line(
        f"{len(report.tasks):,} task(s), {images:,} images: {len(report.errors)} error(s), "
        f"{len(report.warnings)} warning(s); {verdict}"
    )


@data.command("list")
def list_(
    name: Annotated[
        str | None, typer.Argument(help="The collection: skill102 or decathlon.", show_default=False)
    ] = None,
    json: options.Json = False,
) -> None:
    """List the datasets that are known by name, or the parts of one of them."""
    from dataclasses import asdict

    from skillmesh.cli import show
    from skillmesh_challenge.datasets import COLLECTIONS, collection

    if name is None:
        known = [
            {"name": c.name, "title": c.title, "datasets": c.count, "source": c.source}
            for c in COLLECTIONS.values()
        ]
        if json:
            show.print_json(known)
            return
        for each in known:
            outlet.line(f"{each['name']}: {each['title']}, {each['datasets']} datasets; {each['source']}")
        return
    chosen = collection(name)
    if json:
        facts = {"name": chosen.name, "title": chosen.title, "source": chosen.source, "layout": chosen.layout}
        show.print_json(facts | {"datasets": [asdict(row) for row in chosen.rows]})
        return
    rows = show.table(None, ">", "dataset", ">classes", ">train", ">val", ">test")
    for number, row in enumerate(chosen.rows, 1):
        rows.add_row(str(number), row.name, *(f"{n:,}" for n in (row.classes, row.train, row.val, row.test)))
    show.console.print(rows)
    outlet.line(f"{chosen.title}: available at {chosen.source}")
    outlet.line(f"expected layout: {chosen.layout}")
