"""What a method plays on: the tasks, where to work, and the record that it writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from skillmesh.common.progress import Progress
from skillmesh.data.folder import TaskImages
from skillmesh_challenge import record, writing
from skillmesh_challenge.entries import Bounds, Confusions, EntryAnswers, Learned, RunSettings, Sharing, Step


@dataclass(frozen=True)
class Stage:
    """One run's folder and surroundings. All results go through it, so that all methods leave the same record."""

    folder: Path
    settings: RunSettings
    tasks: Sequence[TaskImages]
    """In the order in which they are to be learned."""
    cache_folder: Path
    workers: int = 1
    threads: int = 1
    cluster: str | None = None
    device: str | None = None
    reuse: tuple[Path, ...] = ()
    """Runs whose learned tasks may be taken over, where they are what this run would learn."""
    progress: Progress | None = None
    tell: Callable[[str], None] = field(default=lambda _: None)
    """Told what happens, beside the log."""

    def log(self, text: str) -> None:
        with (self.folder / "log.txt").open("a") as file:
            file.write(f"{datetime.now(UTC).strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        self.tell(text)

    # What is there already.

    def read(self) -> record.Record:
        return record.read_record(self.folder)

    def module_file(self, position: int) -> Path:
        return record.module_file(self.folder, position, self.settings.names[position])

    # What a method writes.

    def keep_learned(self, learned: Learned, module: bytes | None = None) -> None:
        """Keep a learned task. The module goes first: a task counts as learned when its JSON is there."""
        if module is not None:
            writing.write_bytes(self.module_file(learned.position), module)
        writing.write_learned(self.folder, learned)

    def keep_step(self, step: Step) -> None:
        writing.write_step(self.folder, step)

    def keep_confusions(self, confusions: Confusions) -> None:
        writing.write_json(self.folder / "confusions.json", asdict(confusions))

    def keep_answers(self, answers: EntryAnswers) -> None:
        writing.write_json(self.folder / "answers.json", asdict(answers))

    def keep_bounds(self, bounds: Bounds) -> None:
        writing.write_json(self.folder / "bounds.json", asdict(bounds))

    def keep_sharing(self, sharing: Sharing) -> None:
        writing.write_json(self.folder / "sharing.json", asdict(sharing))

    def keep_times(self, **seconds: float) -> None:
        """Note how long something took, summed over sittings; of one that was killed, what had ended by then."""
        times = record.read_times(self.folder)
        for name, value in seconds.items():
            times[name] = times.get(name, 0.0) + round(value, 3)
        writing.write_json(self.folder / "times.json", times)

    def timed(self, name: str) -> Timer:
        return Timer(partial(self._keep_time, name))

    def _keep_time(self, name: str, seconds: float) -> None:
        self.keep_times(**{name: seconds})


class Timer:
    """Measures wall-clock; what was spent counts even where the work fails."""

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
