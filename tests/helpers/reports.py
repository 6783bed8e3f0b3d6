"""Modified copies of runs, and a report's tables, for tests of the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skillmesh_challenge.metrics import results_of
from skillmesh_challenge.record import read_record
from skillmesh_challenge.report import Report
from skillmesh_challenge.report.table import ReportTable


def copied(
    source: Path, target: Path, change: Callable[[dict[str, Any]], None] | None = None, **settings: Any
) -> Path:
    """Copy a run with changed steps and settings, and recompute its results."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("agents"))
    whole = json.loads((target / "run.json").read_text())
    whole["settings"] |= settings
    (target / "run.json").write_text(json.dumps(whole))
    for path in (target / "steps").glob("*.json"):
        step = json.loads(path.read_text())
        if change is not None:
            change(step)
        path.write_text(json.dumps(step))
    (target / "results.json").write_text(json.dumps(results_of(read_record(target))))
    return target


def lengthened(source: Path, target: Path, count: int, found: Callable[[int], float]) -> Path:
    """Return a run of `count` tasks, all like the first; `found` gives the share recognised by number of tasks."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("agents", "modules", "*.json"))
    for name in ("run.json", "results.json"):
        shutil.copy(source / name, target)
    names = [f"task {position + 1}" for position in range(count)]
    whole = json.loads((source / "run.json").read_text())
    whole["settings"]["tasks"] = [whole["settings"]["tasks"][0] | {"name": name} for name in names]
    whole["settings"]["assignment"] = {"a001": names}
    (target / "run.json").write_text(json.dumps(whole))
    learned = json.loads(sorted((source / "learned").glob("*.json"))[0].read_text())
    step = json.loads((source / "steps" / "0001.json").read_text())
    for position, name in enumerate(names):
        file = target / "learned" / f"{position:04d}.json"
        file.write_text(json.dumps(learned | {"task": name, "position": position}))
        known = position + 1
        tasks = [step["tasks"][0] | {"task": other, "found": found(known)} for other in names[:known]]
        file = target / "steps" / f"{known:04d}.json"
        file.write_text(json.dumps(step | {"known": known, "tasks": tasks}))
    (target / "results.json").write_text(json.dumps(results_of(read_record(target))))
    return target


def table_of(report: Report, name: str) -> ReportTable:
    return next(table for section in report.sections for table in section.all_tables if table.name == name)


def column(table: ReportTable, name: str) -> list[Any]:
    return [row[table.columns.index(name)].value for row in table.rows]
