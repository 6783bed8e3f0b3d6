"""Trials of single settings: ordinary runs on the first few tasks, without their test images."""

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
    """The data for tuning: the first few tasks, without their test images."""

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
    """Return the task with its validation images as test images, and an empty validation split."""
    validation = task.splits["val"]
    if not len(validation):
        raise DataError(f"the task {task.name!r} has no validation images to tune on; expected images in val")
    empty = Split((), np.empty(0, dtype=np.int64))
    return replace(task, splits={"train": task.splits["train"], "val": empty, "test": validation})


@dataclass(frozen=True)
class Trial:
    """One setting of one method to try; small enough to send to another process."""

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
        """Run the trial; resume it if it is incomplete, only read it if it is complete."""
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
        """Folder name from the settings, not the trial's number: a changed grid or method then gets new runs."""
        settings = json.dumps(replace(self.method, **self.changes).settings(), sort_keys=True)
        tried = ",".join(f"{name}={value}" for name, value in self.changes.items())
        return f"{tried},{hashlib.sha256(settings.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Tried:
    """The result of a trial."""

    changes: dict[str, Any]
    final_accuracy: float
    """Accuracy by which the best setting is chosen, 0 to 1."""
    after_learning: float
    """Mean accuracy of each task right after it was learned, task given: shows whether it learned at all."""
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
    """A job that can run in another process."""

    def make(self) -> Any: ...


SomeJob = TypeVar("SomeJob", bound=TrialJob)


def run_jobs(jobs: Sequence[SomeJob], workers: int) -> Iterator[tuple[SomeJob, Any]]:
    """Run all jobs in `workers` processes, and yield each job with its result as it completes."""
    if workers == 1:
        for job in jobs:
            yield job, job.make()
        return
    import multiprocessing

    spawned = multiprocessing.get_context("spawn")  # torch hangs in forked processes
    with ProcessPoolExecutor(workers, spawned, _start_worker, (workers,)) as pool:
        futures = {pool.submit(job.make): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _start_worker(workers: int) -> None:
    """Set up a worker process with its share of the cores: more threads than cores would busy-wait."""
    import torch

    from skillmesh.numerics.process import cores, process_is_ours
    from skillmesh_challenge.executors import end_with_parent

    end_with_parent()
    process_is_ours()
    torch.set_num_threads(max(1, min(torch.get_num_threads(), cores() // workers)))
