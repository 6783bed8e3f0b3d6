"""The record of a run: one folder with its settings, costs and results, as JSON and CSV.

    run.json               settings: method, agents, assignment, tasks; versions and provenance
    learned/NNNN-task.json one per learned task, written when it is done: a killed run resumes after the last one
    modules/NNNN-task.skill the learned modules, if the method makes modules
    steps/NNNN.json        after NNNN tasks: every known task's accuracies, and the costs of a student
    steps.csv              the same as one table, a row per step and task
    confusions.json        at the last step: which tasks are taken for which, with the names of some images
    answers.json           at the last step: the answers to each class's images, with the names of some images
    sharing.json           how all agents got all modules, bytes sent, and whether they give the same answers
    bounds.json            one classifier trained on all data together
    times.json             wall-clock time by part of the run
    results.json           macro averages and all metrics
    log.txt                what happened when

All methods write the same record, with modules or without: it needs an accuracy of every known task at every step.
The accuracy matrix is `Record.matrix(figure)`. Times, which are not results, are in fields named `…seconds`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from skillmesh.common.files import write_whole
from skillmesh_challenge.entries import (
    FORMAT,
    Bounds,
    Circumstances,
    Confusions,
    Entry,
    EntryAnswers,
    Learned,
    RunSettings,
    Sharing,
    Step,
)
from skillmesh_challenge.errors import RunError

SomeEntry = TypeVar("SomeEntry", bound=Entry)
_adapter = cache(TypeAdapter)
"""Reader of one kind of entry, cached because records are read often."""
RENAMED = {"known_unknown": "known_unanswered"}
"""Names that earlier releases gave to results, and their names now."""


@dataclass
class Record:
    """The content of a run's folder."""

    folder: Path
    settings: RunSettings
    circumstances: Circumstances
    learned: list[Learned]
    """Learned tasks by position; an unfinished run lacks some."""
    steps: list[Step]
    confusions: Confusions | None
    answers: EntryAnswers | None
    """None for runs of earlier releases and for methods that do not keep them."""
    sharing: Sharing | None
    bounds: Bounds | None
    results: dict[str, Any] | None
    times: dict[str, float]

    @property
    def complete(self) -> bool:
        return self.results is not None

    def matrix(self, figure: str = "final") -> NDArray[np.float64]:
        """Return R[t, i], the figure of task i after t + 1 tasks; NaN if the task was not known or has none."""
        size = len(self.settings.tasks)
        matrix = np.full((size, size), np.nan)
        for step in self.steps:
            for column, task in enumerate(step.tasks):
                value = getattr(task, figure)
                matrix[step.known - 1, column] = np.nan if value is None else value
        return matrix

    def module_file(self, position: int) -> Path:
        return module_file(self.folder, position, self.settings.names[position])


# Reading.


def read_record(folder: str | Path) -> Record:
    """Return the record of a run, finished or not; raise RunError if it cannot be read."""
    folder = Path(folder)
    run = _read(folder / "run.json")
    if run.get("settings", {}).get("format") != FORMAT:
        raise RunError(
            f"{folder / 'run.json'} is of format {run.get('settings', {}).get('format')!r}, expected {FORMAT}; "
            "run the challenge again with this release"
        )
    return Record(
        folder,
        parse_entry(RunSettings, run["settings"]),
        parse_entry(Circumstances, run["circumstances"]),
        [parse_entry(Learned, _read(path)) for path in sorted((folder / "learned").glob("*.json"))],
        [parse_entry(Step, _read(path)) for path in sorted((folder / "steps").glob("*.json"))],
        _parse_if_exists(Confusions, folder / "confusions.json"),
        _parse_if_exists(EntryAnswers, folder / "answers.json"),
        _parse_if_exists(Sharing, folder / "sharing.json"),
        _parse_if_exists(Bounds, folder / "bounds.json"),
        _read_results(results) if (results := folder / "results.json").exists() else None,
        read_times(folder),
    )


def _read_results(path: Path) -> dict[str, Any]:
    return {RENAMED.get(name, name): value for name, value in _read(path).items()}


def read_times(folder: Path) -> dict[str, float]:
    path = folder / "times.json"
    return _read(path) if path.exists() else {}


def find_records(folders: Iterable[str | Path]) -> list[Path]:
    """Return the runs in these folders: each folder itself, or runs inside it (per seed or number of agents)."""
    runs: list[Path] = []
    for folder in map(Path, folders):
        inside = sorted(path.parent for path in folder.rglob("run.json")) if folder.is_dir() else []
        if not inside:
            raise RunError(
                f"there is no run in {folder}; start one with `skillmesh challenge run … --out {folder}`"
            )
        runs += inside
    return runs


def parse_entry(kind: type[SomeEntry], values: dict[str, Any]) -> SomeEntry:
    """Return a part of a record read from JSON; raise RunError on missing or unknown fields and wrong types."""
    try:
        entry: SomeEntry = _adapter(kind).validate_python(values)  # type: ignore[arg-type] # a class is hashable
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, known = ".".join(map(str, first["loc"])), ", ".join(f.name for f in fields(kind))  # type: ignore[arg-type]
        raise RunError(
            f"a {kind.__name__} of a run is damaged ({place}: {first['msg'].lower()}); expected {known}"
        ) from error
    return entry


def _parse_if_exists(kind: type[SomeEntry], path: Path) -> SomeEntry | None:
    return parse_entry(kind, _read(path)) if path.exists() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunError(
            f"cannot read {path}: {error}; expected a file that `skillmesh challenge run` wrote"
        ) from error
    return content


def module_file(folder: Path, position: int, task: str) -> Path:
    return folder / "modules" / f"{stem(position, task)}.skill"


def stem(position: int, task: str) -> str:
    """Return a readable file name that sorts in the order of the tasks; the number makes it unique."""
    return f"{position:04d}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', task)[:60]}"


def without_times(value: Any) -> Any:
    """Return results without times and cache counts: they are equal if a run was interrupted and resumed."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if not key.endswith("seconds") and key != "cached_images"}
        return {key: without_times(item) for key, item in kept.items()}
    if isinstance(value, list | tuple):
        return [without_times(item) for item in value]
    return value


# Write a run's record. Every file is written under another name and renamed: a kill leaves it whole or absent.

FIGURES = ("given", "found", "final", "strict", "unknown")
"""Names of the figures that are measured for a task at a step."""


def refuse_file(folder: Path) -> None:
    """Raise RunError if `folder` cannot be created because a file is in its place or is one of its parents."""
    existing = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    if not existing.is_dir():
        raise RunError(f"{existing} is a file or a broken link, expected a folder; name another folder with --out")


def write_settings(folder: Path, settings: RunSettings, circumstances: Circumstances) -> None:
    write_json(folder / "run.json", {"settings": asdict(settings), "circumstances": asdict(circumstances)})


def write_learned(folder: Path, learned: Learned) -> None:
    write_json(folder / "learned" / f"{stem(learned.position, learned.task)}.json", asdict(learned))


def write_step(folder: Path, step: Step) -> None:
    write_json(folder / "steps" / f"{step.known:04d}.json", asdict(step))


def write_steps_table(folder: Path, steps: Iterable[Step]) -> None:
    """Write all steps as one CSV file."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["known", "task", "images", *FIGURES])
    for step in steps:
        for task in step.tasks:
            table.writerow([step.known, task.task, task.images, *(getattr(task, name) for name in FIGURES)])
    write_bytes(folder / "steps.csv", text.getvalue().encode())


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a part of a run; if a power cut loses it, it is computed again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data, sync=False)
