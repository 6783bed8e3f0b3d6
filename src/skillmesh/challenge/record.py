"""The record of a run: one folder that holds all that was set, done and found, as JSON and CSV.

    run.json               what was asked for: method, agents, who learns what, tasks; versions and origin
    learned/NN-task.json   one per learned task, written when it is done: a run that is killed goes on behind it
    modules/NN-task.skill  what was learned, where the method makes modules
    steps/NNN.json         after so many tasks: every known task's accuracies, what the student's work cost
    steps.csv              the same as one table, a row per step and task
    confusions.json        at the last step: which tasks are taken for which, and images of it
    sharing.json           how all agents came to know all tasks, bytes sent, and that they answer alike
    bounds.json            one classifier trained on all data together
    times.json             wall-clock by what it went to
    results.json           macro averages and all metrics
    log.txt                what happened when

Any method writes the same record, modules or not: what it needs is an accuracy of every known task at every step.
The accuracy matrix is `Record.matrix(figure)`. Whatever is time and not result is in fields named `…seconds`.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from skillmesh.errors import RunError

FORMAT = 1
FIGURES = ("given", "found", "final", "strict", "unknown")
"""What is measured of a task at a step."""

Made = TypeVar("Made")


@dataclass(frozen=True)
class TaskFacts:
    """A task as it was found."""

    name: str
    path: str
    """Where it lay when the run was made: the report shows images from there, if it is still there."""
    classes: tuple[str, ...]
    train: int
    val: int
    test: int


@dataclass(frozen=True)
class RunSettings:
    """What a run was asked for. A folder holds runs of one such setting only."""

    method: dict[str, Any]
    """All its settings; `name` among them."""
    agents: int
    assign: str
    """How tasks were given to agents: order, round-robin, or the name of a file."""
    assignment: dict[str, tuple[str, ...]]
    """Each agent's tasks, in the order in which it learns them; an agent may have none."""
    sharing: str
    """memory or mesh."""
    alpha: float
    """MACs that sending a byte counts for."""
    seed: int
    tasks: tuple[TaskFacts, ...]
    """In the order in which they are learned and added."""
    data_hash: str
    backbone: str = ""
    """The backbone's fingerprint, where the method has one."""
    format: int = FORMAT

    @property
    def names(self) -> list[str]:
        return [task.name for task in self.tasks]


@dataclass(frozen=True)
class Circumstances:
    """What surrounds a run and must not change its results."""

    executor: str
    workers: int
    threads: int
    versions: dict[str, str]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Learned:
    """What learning one task took and gave."""

    task: str
    position: int
    """In the order of the run's tasks, from 0."""
    agent: str
    macs: dict[str, float]
    """Of the teacher, by what they were spent on."""
    seconds: float
    images: int
    """Training and validation images looked at."""
    cached_images: int | None = None
    """How many of their descriptors lay in the cache: they cost MACs, but no seconds here."""
    module_bytes: int = 0
    """What a student receives; of a method without modules, whatever it sends for this task."""
    parts: dict[str, int] = field(default_factory=dict)
    """Those bytes by what they hold: head, anchor, probes, biases, card."""
    validation_accuracy: float | None = None
    module_id: str | None = None
    content_id: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def total_macs(self) -> float:
        return math.fsum(self.macs.values())


@dataclass(frozen=True)
class TaskAtStep:
    """One task's test images after so many tasks, as shares; none where a method has no such thing."""

    task: str
    images: int
    given: float | None
    """Right class, the task given."""
    found: float | None
    """Right task."""
    final: float
    """Right task and right class, nothing given, an answer forced."""
    strict: float | None = None
    """The same, "unknown" counting as wrong."""
    unknown: float | None = None
    """Answered "unknown"."""


@dataclass(frozen=True)
class Step:
    """After `known` tasks."""

    known: int
    tasks: tuple[TaskAtStep, ...]
    """In the order of the run: the known ones; behind them others, where a method can be asked about these too."""
    student_macs: dict[str, float]
    """What an agent spent to take in the newest task, by what on: rebuilding its mapper."""
    student_seconds: float
    test_seconds: float


@dataclass(frozen=True)
class Sharing:
    """How all agents came to know all tasks, and whether they do."""

    how: str
    """memory or mesh."""
    received: dict[str, int]
    """Bytes of other agents' modules that each agent took in: as sent over the mesh, or the modules' sizes."""
    answers: dict[str, str]
    """A hash of each agent's answers to a sample of test images, with all their figures."""
    asked: int
    """How many images that sample has."""
    seconds: float
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes that each agent served to others, where there was a mesh."""
    trial_macs: dict[str, float] = field(default_factory=dict)
    """What each agent spent on trying what arrived before it let it in, where there was a mesh."""
    held: tuple[str, ...] = ()
    """Tasks that some agent held back until the run let them go."""

    @property
    def same_answers(self) -> bool:
        """Whether all agents answer the same, bit by bit."""
        return len(set(self.answers.values())) == 1


@dataclass(frozen=True)
class Confused:
    """An image that was taken for another task's."""

    task: str
    label: str
    image: str
    """Its name inside the task."""
    taken_for: str
    answer: str
    """The class that it was said to be, there."""


@dataclass(frozen=True)
class Confusions:
    """Which tasks are taken for which, at the last step."""

    tasks: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """Row: the image's task; column: the one it was taken for."""
    samples: tuple[Confused, ...]


@dataclass(frozen=True)
class Bounds:
    """One classifier over all classes, trained on all tasks' data together: what sharing cannot beat by much."""

    how: str
    tasks: tuple[TaskAtStep, ...]
    macs: dict[str, float]
    seconds: float


@dataclass
class Record:
    """A run's folder, read."""

    folder: Path
    settings: RunSettings
    circumstances: Circumstances
    learned: list[Learned]
    """By position; a run under way lacks some."""
    steps: list[Step]
    confusions: Confusions | None
    sharing: Sharing | None
    bounds: Bounds | None
    results: dict[str, Any] | None
    times: dict[str, float]

    @property
    def complete(self) -> bool:
        return self.results is not None

    def matrix(self, figure: str = "final") -> NDArray[np.float64]:
        """R[t, i]: the figure of task i after t + 1 tasks; NaN where the task was not known or has none."""
        size = len(self.settings.tasks)
        found = np.full((size, size), np.nan)
        for step in self.steps:
            for column, task in enumerate(step.tasks):
                value = getattr(task, figure)
                found[step.known - 1, column] = np.nan if value is None else value
        return found

    def module_file(self, position: int) -> Path:
        return module_file(self.folder, position, self.settings.names[position])


# Reading.


def read_record(folder: str | Path) -> Record:
    """Read a run, finished or not."""
    folder = Path(folder)
    whole = _read(folder / "run.json")
    if whole.get("settings", {}).get("format") != FORMAT:
        raise RunError(
            f"{folder / 'run.json'} is of format {whole.get('settings', {}).get('format')!r}, expected {FORMAT}; "
            "run the challenge again with this release"
        )
    names = ("confusions", "sharing", "bounds", "results")
    confusions, sharing, bounds, results = (folder / f"{name}.json" for name in names)
    learned = sorted((folder / "learned").glob("*.json"))
    steps = sorted((folder / "steps").glob("*.json"))
    return Record(
        folder,
        made(RunSettings, whole["settings"]),
        made(Circumstances, whole["circumstances"]),
        [made(Learned, _read(path)) for path in learned],
        [made(Step, _read(path)) for path in steps],
        made(Confusions, _read(confusions)) if confusions.exists() else None,
        made(Sharing, _read(sharing)) if sharing.exists() else None,
        made(Bounds, _read(bounds)) if bounds.exists() else None,
        _read(results) if results.exists() else None,
        read_times(folder),
    )


def read_times(folder: Path) -> dict[str, float]:
    path = folder / "times.json"
    return _read(path) if path.exists() else {}


def find_records(folders: Iterable[str | Path]) -> list[Path]:
    """The runs in these folders: the folder itself, or those inside it (one per seed or number of agents)."""
    found: list[Path] = []
    for folder in map(Path, folders):
        inside = sorted(path.parent for path in folder.rglob("run.json")) if folder.is_dir() else []
        if not inside:
            raise RunError(
                f"there is no run in {folder}; make one with `skillmesh challenge run … --out {folder}`"
            )
        found += inside
    return found


def made(kind: type[Made], values: dict[str, Any]) -> Made:
    """Make a record's dataclass of JSON: lists become tuples, dictionaries the dataclasses they stand for."""
    try:
        return kind(**{name: _restored(kind, name, value) for name, value in values.items()})
    except TypeError as error:
        known = ", ".join(f.name for f in fields(kind))  # type: ignore[arg-type]
        raise RunError(f"a {kind.__name__} of a run is damaged ({error}); expected {known}") from error


_INSIDE: dict[tuple[str, str], type[Any]] = {
    ("RunSettings", "tasks"): TaskFacts,
    ("Step", "tasks"): TaskAtStep,
    ("Bounds", "tasks"): TaskAtStep,
    ("Confusions", "samples"): Confused,
}


def _restored(kind: type[Any], name: str, value: Any) -> Any:
    inside = _INSIDE.get((kind.__name__, name))
    if inside is not None:
        return tuple(made(inside, item) for item in value)
    return _tuples(value)


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunError(
            f"cannot read {path}: {error}; expected a file that `skillmesh challenge run` wrote"
        ) from error
    return found


# Writing. Every file is written beside its place and renamed into it: a kill leaves it whole or not at all.


def write_settings(folder: Path, settings: RunSettings, circumstances: Circumstances) -> None:
    write_json(folder / "run.json", {"settings": asdict(settings), "circumstances": asdict(circumstances)})


def write_learned(folder: Path, learned: Learned) -> None:
    write_json(folder / "learned" / f"{_stem(learned.position, learned.task)}.json", asdict(learned))


def write_step(folder: Path, step: Step) -> None:
    write_json(folder / "steps" / f"{step.known:04d}.json", asdict(step))


def write_steps_table(folder: Path, steps: Iterable[Step]) -> None:
    """All steps as one CSV."""
    target = folder / "steps.csv"
    partial = target.with_name(f".{target.name}.partial")
    with partial.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["known", "task", "images", *FIGURES])
        for step in steps:
            for task in step.tasks:
                table.writerow([step.known, task.task, task.images, *(getattr(task, name) for name in FIGURES)])
    partial.replace(target)


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    partial.replace(path)


def write_bytes(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)


def module_file(folder: Path, position: int, task: str) -> Path:
    return folder / "modules" / f"{_stem(position, task)}.skill"


def without_times(value: Any) -> Any:
    """What a run found, less how long it took and what a warm cache spared: equal for a run that was resumed."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if not key.endswith("seconds") and key != "cached_images"}
        return {key: without_times(item) for key, item in kept.items()}
    if isinstance(value, list | tuple):
        return [without_times(item) for item in value]
    return value


def _stem(position: int, task: str) -> str:
    """A file name that sorts like the tasks and can be read; the number alone makes it unique."""
    return f"{position:04d}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', task)[:60]}"
