"""Check tasks before a run: every fault at once, what prevents a run apart from what is only worth knowing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from skillmesh.common.progress import Progress
from skillmesh.data.folder import TaskImages
from skillmesh.data.twins import TaskTwins
from skillmesh.errors import DataError
from skillmesh_challenge.data.faults import structure_faults, twin_faults, unreadable_faults
from skillmesh_challenge.data.finding import Found, Settings, find
from skillmesh_challenge.data.looks import Look, look_at
from skillmesh_challenge.data.problems import DataReport, DataTaskFacts, Problem
from skillmesh_challenge.data.twins import Twins, by_task, find_twins, shared_by_tasks
from skillmesh_challenge.datasets import Rule, places


class BadDataError(DataError):
    """Data that no run should be started on; `report` has all that was found."""

    def __init__(self, report: DataReport) -> None:
        super().__init__(report.words())
        self.report = report


def refuse_bad_data(report: DataReport) -> DataReport:
    """Raise with the whole report where something prevents a run; else hand it on for its warnings."""
    if not report.ok:
        raise BadDataError(report)
    return report


def check(
    paths: Sequence[str | Path],
    *,
    dataset: str | None = None,
    seed: int = 0,
    rule: Rule = "appendix",
    partial: bool = False,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> DataReport:
    """Look at every image of every task at `paths`, as a run with this seed would open them.

    Parameters
    ----------
    dataset
        The collection that the paths hold; a path may say it itself, `skill102:DIR`.
    rule, partial
        As `open_collection` takes them.
    skip_unreadable
        Images that cannot be decoded are a warning, as long as every class keeps some.
    """
    found = find(places(paths, dataset), Settings(seed, rule, partial))
    looks = look_at(found.tasks, progress)
    twins = find_twins(looks)
    twins_of, bad_of = by_task(twins), _unreadable(looks)
    problems = found.problems + _equal_names(found)
    facts = []
    for index, (task, path) in enumerate(zip(found.tasks, found.paths, strict=True)):
        bad, mine = bad_of[index], twins_of[index]
        problems += structure_faults(task, path)
        problems += unreadable_faults(task, bad, skip_unreadable) + twin_faults(task, mine)
        facts.append(_facts(task, path, bad, mine))
    problems += _shared(found, twins)
    return DataReport(facts, problems, twins)


def _unreadable(looks: list[Look]) -> dict[int, list[Look]]:
    bad: dict[int, list[Look]] = defaultdict(list)
    for look in looks:
        if look.reason:
            bad[look.task].append(look)
    return bad


def _facts(task: TaskImages, path: Path, bad: list[Look], twins: TaskTwins) -> DataTaskFacts:
    return DataTaskFacts(
        name=task.name,
        place=str(path),
        classes=len(task.classes),
        images={split: len(part) for split, part in task.splits.items()},
        unreadable=len(bad),
        twins_in_splits=len(twins.in_split),
        twins_across_splits={words: len(files) for words, files in twins.across_splits.items()},
        twins_in_other_tasks=twins.elsewhere,
    )


def _equal_names(found: Found) -> list[Problem]:
    counts = Counter(task.name for task in found.tasks)
    problems = []
    for name in sorted(name for name, count in counts.items() if count > 1):
        where = tuple(str(p) for task, p in zip(found.tasks, found.paths, strict=True) if task.name == name)
        text = f"{len(where)} tasks have this name: {', '.join(where)}; rename all but one"
        problems.append(Problem("duplicate-name", text, name, fatal=True, files=where))
    return problems


def _shared(found: Found, twins: list[Twins]) -> list[Problem]:
    problems = []
    for (a, b), count in sorted(shared_by_tasks(twins).items()):
        one, other = found.tasks[a].name, found.tasks[b].name
        text = f"{count:,} image(s) of {one!r} are images of {other!r} too: no mapper can tell whose they are"
        problems.append(Problem("twins-across-tasks", text))
    return problems
