"""`skillmesh challenge data`: which datasets are known by name, and whether data is fit for a run."""

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
    typer.Option("--dataset", metavar="NAME", show_default=False, help="What DIR holds: skill102 or decathlon."),
]
SubsamplingRule = Annotated[
    Literal["appendix", "list"],
    typer.Option(
        "--rule", help="skill102: thin out every split, or (list) those over 54,000 or 6,000 images alone."
    ),
]
Partial = Annotated[bool, typer.Option("--partial", help="Of a dataset known by name, take what is there.")]
SkipUnreadable = Annotated[
    bool, typer.Option("--skip-unreadable", help="Images that cannot be read are left out, not refused.")
]

COUNTS = ("classes", "train", "val", "test")
FAULTS = {
    "broken": "images that cannot be read",
    "twice": "lie in their split already",
    "leaked": "test images that lie in train too",
    "shared": "lie in another task too",
}
"""Columns of the report, and what they count."""


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
    """Open every image of every task and report all faults at once; status 1 where a run would be refused."""
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
    """Show the tasks, then what prevents a run, then what is only worth knowing."""
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
    verdict = "a run may start" if report.ok else "no run can start"
    outlet.line(
        f"{len(report.tasks):,} task(s), {images:,} images: {len(report.errors)} error(s), "
        f"{len(report.warnings)} warning(s); {verdict}"
    )


@data.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="skill102 or decathlon.", show_default=False)] = None,
    json: options.Json = False,
) -> None:
    """List the datasets that are known by name, or what one of them is made of."""
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
    found = collection(name)
    if json:
        facts = {"name": found.name, "title": found.title, "source": found.source, "layout": found.layout}
        show.print_json(facts | {"datasets": [asdict(row) for row in found.rows]})
        return
    rows = show.table(None, ">", "dataset", ">classes", ">train", ">val", ">test")
    for number, row in enumerate(found.rows, 1):
        rows.add_row(str(number), row.name, *(f"{n:,}" for n in (row.classes, row.train, row.val, row.test)))
    show.console.print(rows)
    outlet.line(f"{found.title}: to be had at {found.source}")
    outlet.line(f"expected: {found.layout}")
