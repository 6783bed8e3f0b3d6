"""What a method works with: the tasks, their assignment to agents, the workers, and the record that it writes."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from skillmesh.data.folder import TaskImages
from skillmesh.numerics.process import Progress
from skillmesh_challenge import record
from skillmesh_challenge.entries import Bounds, Confusions, EntryAnswers, Learned, RunSettings, Sharing, Step
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.record import write_bytes, write_json, write_learned, write_step

Assignment = dict[str, tuple[str, ...]]
"""Each agent's tasks, in the order in which it learns them."""


WAYS = ("order", "round-robin", "balanced")


def assign(
    tasks: Sequence[str], agents: int, how: str = "order", sizes: Sequence[int] | None = None
) -> Assignment:
    """Return an assignment that gives every task to one agent.

    Parameters
    ----------
    how
        `order`: the first agent gets the first tasks, and so on, in blocks as equal as possible;
        `round-robin`: task by task in turn; `balanced`: the largest first, each to the agent with the least work;
        else a JSON or CSV file. With more agents than tasks, some agents have none: they only receive.
    sizes
        Number of images of each task, for `balanced`.
    """
    if agents < 1:
        raise RunError(f"found {agents} agents; expected 1 or more")
    names = [agent_name(index) for index in range(agents)]
    if how == "round-robin":
        return {name: tuple(tasks[index::agents]) for index, name in enumerate(names)}
    if how == "order":
        cuts = [round(index * len(tasks) / agents) for index in range(agents + 1)]
        if agents > len(tasks):  # the first agents get one each
            cuts = [min(index, len(tasks)) for index in range(agents + 1)]
        return {name: tuple(tasks[cuts[i] : cuts[i + 1]]) for i, name in enumerate(names)}
    if how == "balanced":
        return _balanced(tasks, names, sizes or [1] * len(tasks))
    return _from_file(Path(how), tasks, agents)


def _balanced(tasks: Sequence[str], names: Sequence[str], sizes: Sequence[int]) -> Assignment:
    """Assign the largest task first, to the agent with the least work; agents learn tasks in the given order."""
    loads, chosen = dict.fromkeys(names, 0), {name: list[int]() for name in names}
    for index in sorted(range(len(tasks)), key=lambda i: -sizes[i]):
        name = min(names, key=lambda n: (loads[n], len(chosen[n])))
        loads[name] += sizes[index]
        chosen[name].append(index)
    return {name: tuple(tasks[i] for i in sorted(indices)) for name, indices in chosen.items()}


def agent_name(index: int) -> str:
    return f"a{index + 1:03d}"


def _from_file(path: Path, tasks: Sequence[str], agents: int) -> Assignment:
    """Return the assignment in a JSON file, `{"agent": ["task", …]}`, or in a CSV file of agent and task."""
    try:
        text = path.read_text()
        assignment = _of_csv(text) if path.suffix.lower() == ".csv" else _of_json(json.loads(text))
    except (OSError, ValueError) as error:
        raise RunError(
            f"cannot read the assignment {path}: {error}; expected {', '.join(WAYS)}, or a file with JSON "
            'such as {"anna": ["dice"]} or CSV lines such as anna,dice'
        ) from error
    _refuse_wrong_tasks(path, assignment, tasks)
    if len(assignment) > agents:
        raise RunError(f"{path} names {len(assignment)} agents, but --agents is {agents}; make them agree")
    spare = (name for name in map(agent_name, range(agents + len(assignment))) if name not in assignment)
    while len(assignment) < agents:
        assignment[next(spare)] = ()
    return assignment


def _of_json(value: Any) -> Assignment:
    if not isinstance(value, dict) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in value.values()
    ):
        raise ValueError("expected an object of lists of task names")
    return {agent: tuple(names) for agent, names in value.items()}


def _of_csv(text: str) -> Assignment:
    assignment: dict[str, list[str]] = {}
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        words = [word.strip() for word in row]
        if not any(words) or (number == 1 and words == ["agent", "task"]):
            continue
        if len(words) != 2:
            raise ValueError(f"line {number} has {len(words)} columns, expected 2: agent and task")
        assignment.setdefault(words[0], []).append(words[1])
    return {agent: tuple(names) for agent, names in assignment.items()}


def _refuse_wrong_tasks(path: Path, assignment: Assignment, tasks: Sequence[str]) -> None:
    for name in assignment:  # each agent has a folder with its name
        if name in ("", ".", "..") or Path(name).name != name or "\\" in name:
            raise RunError(f"{path} names an agent {name!r}; expected a name without slashes, such as anna")
    given = [task for names in assignment.values() for task in names]
    twice = sorted({task for task in given if given.count(task) > 1})
    foreign, missing = sorted(set(given) - set(tasks)), sorted(set(tasks) - set(given))
    for names, what in (
        (twice, "assigns twice"),
        (foreign, "assigns but that do not exist"),
        (missing, "leaves out"),
    ):
        if names:
            raise RunError(
                f"tasks that {path} {what}: {', '.join(names[:5])}; expected each of the {len(tasks)} tasks once"
            )


@dataclass(frozen=True)
class Stage:
    """One run's folder and resources. All results go through it, so that all methods write the same record."""

    folder: Path
    settings: RunSettings
    tasks: Sequence[TaskImages]
    """Tasks in the order in which they are learned."""
    cache_folder: Path
    workers: int = 1
    threads: int = 1
    cluster: str | None = None
    device: str | None = None
    reuse: tuple[Path, ...] = ()
    """Runs whose learned tasks may be reused, if this run would learn the same."""
    progress: Progress | None = None
    tell: Callable[[str], None] = field(default=lambda _: None)
    """Function that gets each log line too, to show it to the user."""

    def log(self, text: str) -> None:
        with (self.folder / "log.txt").open("a") as file:
            file.write(f"{datetime.now(UTC).strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        self.tell(text)

    # What is recorded already.

    def read(self) -> record.Record:
        return record.read_record(self.folder)

    def module_file(self, position: int) -> Path:
        return record.module_file(self.folder, position, self.settings.names[position])

    # What a method writes.

    def keep_learned(self, learned: Learned, module: bytes | None = None) -> None:
        """Record a learned task. The module is written first: a task counts as learned when its JSON exists."""
        if module is not None:
            write_bytes(self.module_file(learned.position), module)
        write_learned(self.folder, learned)

    def keep_step(self, step: Step) -> None:
        write_step(self.folder, step)

    def keep_confusions(self, confusions: Confusions) -> None:
        write_json(self.folder / "confusions.json", asdict(confusions))

    def keep_answers(self, answers: EntryAnswers) -> None:
        write_json(self.folder / "answers.json", asdict(answers))

    def keep_bounds(self, bounds: Bounds) -> None:
        write_json(self.folder / "bounds.json", asdict(bounds))

    def keep_sharing(self, sharing: Sharing) -> None:
        write_json(self.folder / "sharing.json", asdict(sharing))

    def keep_times(self, **seconds: float) -> None:
        """Add seconds to the recorded times, summed over resumed runs; killed parts are not counted."""
        times = record.read_times(self.folder)
        for name, value in seconds.items():
            times[name] = times.get(name, 0.0) + round(value, 3)
        write_json(self.folder / "times.json", times)

    def timed(self, name: str) -> Timer:
        return Timer(partial(self._keep_time, name))

    def _keep_time(self, name: str, seconds: float) -> None:
        self.keep_times(**{name: seconds})


class Timer:
    """Measures wall-clock time, also if the work fails."""

    def __init__(self, keep: Callable[[float], None]) -> None:
        self._keep = keep
        self._start = 0.0

    def __enter__(self) -> Timer:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: Any) -> None:
        self._keep(self.seconds)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start
