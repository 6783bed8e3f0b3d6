"""Group runs for the report: runs that differ only in their seed are a group, groups of one method a family.

Accuracy does not depend on the number of agents, so figures of accuracy show one group of each family (the one
with the most agents). Speedup is drawn over all groups.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from skillmesh_challenge.entries import DIVERGED, Learned, TaskAtStep
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.metrics import Interval, Matrix, averages, interval
from skillmesh_challenge.record import Record, find_records, read_record


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    records: tuple[Record, ...]
    """Sorted by seed."""

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def method(self) -> dict[str, Any]:
        return self.first.settings.method

    @property
    def agents(self) -> int:
        return self.first.settings.agents

    @property
    def has_task_label(self) -> bool:
        """Whether the method is given the task label of every test image, as baselines are in the paper."""
        return bool(self.method.get("label") == "given")

    @property
    def tasks(self) -> list[str]:
        return self.first.settings.names

    @property
    def same_order(self) -> bool:
        """Whether all seeds learned the tasks in the same order; only then is a step the same task in all."""
        return len({tuple(record.settings.names) for record in self.records}) == 1

    def figure(self, *path: str) -> Interval | None:
        """Return the value at `path` in results.json, over seeds; None if it is missing in any run."""
        return self.over_seeds(lambda record: _inside(record.results, path))

    def over_seeds(self, value: Callable[[Record], float | None]) -> Interval | None:
        values = [value(record) for record in self.records]
        known = [float(number) for number in values if number is not None]
        return interval(known) if len(known) == len(values) else None

    def curve(self, read: Callable[[Record], Sequence[float | None]]) -> list[Interval | None]:
        """Return the values after 1, 2, … tasks, each over seeds."""
        series = [list(read(record)) for record in self.records]
        return [_interval_or_none(values) for values in zip(*series, strict=True)]

    def average_curve(self, figure: str) -> list[Interval | None]:
        """Return the mean over the tasks known so far, after each task."""
        return self.curve(lambda record: averages(record.matrix(figure)))

    def at_the_end(self, task: str, figure: str) -> Interval | None:
        return self.over_seeds(lambda record: getattr(_last(record)[task], figure))

    def learned(self, task: str) -> Learned:
        return next(learned for learned in self.first.learned if learned.task == task)

    @cached_property
    def matrix(self) -> Matrix:
        """Accuracy matrix of the final answers of the first seed."""
        return self.first.matrix("final")


@dataclass(frozen=True)
class RunFamily:
    """Groups of one method on the same tasks, with different numbers of agents."""

    label: str
    groups: tuple[Group, ...]
    """Sorted by number of agents."""

    @property
    def shown(self) -> Group:
        """The group that represents the family in figures of accuracy."""
        return replace(self.groups[-1], label=self.label)

    @property
    def sweeps(self) -> list[RunFamily]:
        """Sets of two or more of its groups that differ only in the number of agents."""
        alike: dict[tuple[str, str, float], list[Group]] = {}
        for group in self.groups:
            settings = group.first.settings
            alike.setdefault((settings.sharing, settings.assign, settings.alpha), []).append(group)
        several = {key: groups for key, groups in alike.items() if len(groups) > 1}
        return [
            RunFamily(
                self.label if len(alike) == 1 else ", ".join((self.label, *map(str, key[:2]))), tuple(groups)
            )
            for key, groups in several.items()
        ]


@dataclass(frozen=True)
class Comparison:
    """The runs that a report compares."""

    families: tuple[RunFamily, ...]
    notes: tuple[str, ...]
    """Runs that were left out, and warnings that a reader needs."""

    @property
    def groups(self) -> list[Group]:
        return [group for family in self.families for group in family.groups]

    @property
    def shown(self) -> list[Group]:
        return [family.shown for family in self.families]

    @property
    def records(self) -> list[Record]:
        return [record for group in self.groups for record in group.records]


def collect(folders: Sequence[str | Path]) -> Comparison:
    """Return all complete runs in these folders, in the order given; raise RunError if there are none."""
    records = [read_record(folder) for folder in dict.fromkeys(find_records(folders))]
    complete = [record for record in records if record.complete]
    if not complete:
        raise RunError(
            f"none of the {len(records)} runs found is complete; repeat the command that started them to resume"
        )
    notes = [
        f"The run in {where} is not complete and was left out ({len(record.learned)} of "
        f"{len(record.settings.tasks)} tasks learned); repeat the command that started it to resume."
        for where, record in zip(places(records), records, strict=True)
        if not record.complete
    ]
    families = _families(complete)
    return Comparison(families, (*notes, *_warnings(families)))


def places(records: Sequence[Record]) -> list[str]:
    """Return the shortest path ends that distinguish the runs: every sweep has a folder `seed-0`."""
    parts = [record.folder.absolute().parts for record in records]
    ends = [["/".join(part[-length:]) for part in parts] for length in range(1, max(map(len, parts)) + 1)]
    return next((names for names in ends if len(set(names)) == len(names)), ends[0])


def _families(records: Sequence[Record]) -> tuple[RunFamily, ...]:
    by_family: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        by_family.setdefault(_family_key(record), {}).setdefault(_group_key(record), []).append(record)
    labels = _labels([next(iter(groups.values()))[0] for groups in by_family.values()])
    return tuple(
        RunFamily(label, _groups(label, list(groups.values())))
        for label, groups in zip(labels, by_family.values(), strict=True)
    )


def _groups(label: str, groups: list[list[Record]]) -> tuple[Group, ...]:
    sorted_groups = []
    for records in sorted(groups, key=lambda group: group[0].settings.agents):
        settings = records[0].settings
        details = [f"{settings.agents} agents" if settings.agents > 1 else "1 agent"]
        details += ["over a mesh"] if settings.sharing == "mesh" else []
        details += [settings.assign] if len({group[0].settings.assign for group in groups}) > 1 else []
        details += [f"α = {settings.alpha:g}"] if len({group[0].settings.alpha for group in groups}) > 1 else []
        full = ", ".join([label, *details]) if len(groups) > 1 else label
        sorted_groups.append(Group(full, tuple(_one_per_seed(records))))
    return tuple(sorted_groups)


def _one_per_seed(records: Sequence[Record]) -> list[Record]:
    """Return one run for each seed, sorted by seed; a copy of a run is not a second seed."""
    return list({record.settings.seed: record for record in sorted(records, key=_seed)}.values())


def _seed(record: Record) -> int:
    return record.settings.seed


def _family_key(record: Record) -> str:
    settings = record.settings
    return json.dumps([settings.method, settings.backbone, sorted(settings.names), settings.data_hash])


def _group_key(record: Record) -> str:
    settings = record.settings
    return json.dumps([settings.agents, settings.assign, settings.sharing, settings.alpha])


def _labels(records: Sequence[Record]) -> list[str]:
    """Return a label for each run: the method's name, with the folder where two methods share a name."""
    names = [_name(record.settings.method) for record in records]
    labels = [
        name if names.count(name) == 1 else f"{name} ({where})"
        for name, where in zip(names, places(records), strict=True)
    ]
    return [
        label if labels.count(label) == 1 else f"{label} {labels[: index + 1].count(label)}"
        for index, label in enumerate(labels)
    ]


def _name(method: dict[str, Any]) -> str:
    return f"{method['name']}, with task label" if method.get("label") == "given" else str(method["name"])


def _warnings(families: Sequence[RunFamily]) -> list[str]:
    hashes = {family.groups[0].first.settings.data_hash for family in families}
    warnings = [
        f"{group.label}, seed {record.settings.seed}: from {diverged[0]} on its {DIVERGED}."
        for family in families
        for group in family.groups
        for record in group.records
        if (diverged := [learned.task for learned in record.learned if DIVERGED in learned.notes])
    ]
    trials = [family.label for family in families if _is_trial(family.groups[0].first)]
    if trials:
        warnings.append(f"Measured on validation images, since these are trials of tuning: {', '.join(trials)}.")
    if len(hashes) > 1:
        warnings.append("These runs do not all use the same tasks and images: compare their figures with care.")
    return warnings


def _is_trial(record: Record) -> bool:
    return "challenge tune" in str(record.circumstances.provenance.get("command"))


def _last(record: Record) -> dict[str, TaskAtStep]:
    return {task.task: task for task in record.steps[-1].tasks}


def _inside(results: Any, path: Sequence[str]) -> float | None:
    for name in path:
        if not isinstance(results, dict) or results.get(name) is None:
            return None
        results = results[name]
    return float(results)


def _interval_or_none(values: Sequence[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    return interval(known) if known and len(known) == len(values) else None
