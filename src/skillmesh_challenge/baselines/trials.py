"""One setting of a method on trial: an ordinary run on the first few tasks, less their test images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from skillmesh.data.folder import Split, TaskImages
from skillmesh.errors import DataError
from skillmesh.numerics.process import Progress
from skillmesh_challenge.baselines.settings import Baseline
from skillmesh_challenge.datasets import Rule, open_tasks, task_paths
from skillmesh_challenge.metrics import after_learning
from skillmesh_challenge.record import Record
from skillmesh_challenge.run import Plan, run


@dataclass(frozen=True)
class Ground:
    """Where tuning happens: the first few tasks, less their test images."""

    places: tuple[str, ...]
    first: int
    dataset: str | None = None
    rule: Rule = "appendix"
    partial: bool = False

    def __call__(self, seed: int) -> list[TaskImages]:
        tasks = open_tasks(self.places, dataset=self.dataset, seed=seed, rule=self.rule, partial=self.partial)
        return [_without_test(task) for task in tasks[: self.first]]

    def paths(self) -> list[Path]:
        return task_paths(self.places, dataset=self.dataset)[: self.first]


def _without_test(task: TaskImages) -> TaskImages:
    """Validation images stand where test images stood; nothing stands where they stood."""
    validation = task.splits["val"]
    if not len(validation):
        raise DataError(f"the task {task.name!r} has no validation images to tune on; expected some in val")
    nothing = Split((), np.empty(0, dtype=np.int64))
    return replace(task, splits={"train": task.splits["train"], "val": nothing, "test": validation})


@dataclass(frozen=True)
class Trial:
    """One setting of one method; small, and can be sent to another process."""

    method: Baseline
    number: int
    changes: dict[str, Any]
    ground: Ground
    out: Path
    seed: int
    device: str | None
    command: str
    progress: Progress | None = None

    def make(self) -> Tried:
        """Make its run, or go on with it, or read it where it is complete."""
        plan = Plan(
            paths=self.ground.paths(),
            method=replace(self.method, **self.changes),
            out=self.out / self.method.name / self._folder,
            agents=1,
            seed=self.seed,
            open=self.ground,
            bound=False,
            workers=1,
            device=self.device,
            command=self.command,
            progress=self.progress,
        )
        return Tried.of(self.changes, run(plan))

    @property
    def _folder(self) -> str:
        """By what is tried, not by its number: of another grid, or another method, each setting is another run."""
        settings = json.dumps(replace(self.method, **self.changes).settings(), sort_keys=True)
        tried = ",".join(f"{name}={value}" for name, value in self.changes.items())
        return f"{tried},{hashlib.sha256(settings.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Tried:
    """What came of a setting."""

    changes: dict[str, Any]
    final_accuracy: float
    """The criterion."""
    after_learning: float
    """Of each task when it had just been learned, its task told, on average: whether it learned at all."""
    forgetting: float | None
    macs: float
    seconds: float

    @classmethod
    def of(cls, changes: dict[str, Any], record: Record) -> Tried:
        results = record.results
        assert results is not None
        return cls(
            changes,
            results["final_accuracy"],
            after_learning(record.matrix("given")) or 0.0,
            results["lifelong"]["forgetting"],
            results["costs"]["teacher_total"],
            results["wall_seconds"]["teachers_seconds"],
        )


class TrialJob(Protocol):
    """Whatever is made in a process of its own."""

    def make(self) -> Any: ...


SomeJob = TypeVar("SomeJob", bound=TrialJob)


def made(jobs: Sequence[SomeJob], workers: int) -> Iterator[tuple[SomeJob, Any]]:
    """Make all of them, several side by side in processes that take one after the other; as each is done."""
    if workers == 1:
        for job in jobs:
            yield job, job.make()
        return
    import multiprocessing

    spawned = multiprocessing.get_context("spawn")  # a forked torch hangs
    with ProcessPoolExecutor(workers, spawned, _begin, (workers,)) as pool:
        waiting = {pool.submit(job.make): job for job in jobs}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begin(workers: int) -> None:
    """Make a new process ready: threads of several that wait for the same cores would spin."""
    import torch

    from skillmesh.numerics.process import cores, process_is_ours
    from skillmesh_challenge.executors import end_with_parent

    end_with_parent()
    process_is_ours()
    torch.set_num_threads(max(1, min(torch.get_num_threads(), cores() // workers)))
