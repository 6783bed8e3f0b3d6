"""Where agents learn: in this process, on this machine's cores, or on a Dask cluster.

All three are `concurrent.futures.Executor`s. Work that needs the backbone gets it from `worker_backbone`, which
loads it once in every process. Results do not depend on where work is done.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillmesh.common.extras import DASK
from skillmesh.numerics.process import process_is_ours
from skillmesh_challenge.errors import RunError

if TYPE_CHECKING:
    from skillmesh.backbone.backbone import Backbone

_loading = threading.Lock()


@dataclass(frozen=True)
class BackboneRef:
    """Description of the backbone that a worker loads; small enough to be sent to it."""

    name: str
    weights: Path | None = None
    calibration: Path | None = None
    device: str | None = None
    cache_folder: Path | None = None


def worker_backbone(ref: BackboneRef) -> Backbone:
    """Return the backbone of this process; the first call loads it."""
    with _loading:  # threads of one worker must not load it twice
        return _loaded(ref)


@lru_cache(maxsize=2)
def _loaded(ref: BackboneRef) -> Backbone:
    from skillmesh.backbone.backbone import Backbone

    return Backbone.from_settings(ref.name, ref.weights, ref.calibration, ref.device, ref.cache_folder)


@dataclass(frozen=True)
class Workplace:
    """An executor that is ready for work."""

    executor: Executor
    words: str
    workers: int
    startup_seconds: float
    """Time until every worker had loaded its backbone."""
    shares_disk: bool
    """Whether workers can access the run's files on this machine."""


@contextmanager
def open_place(ref: BackboneRef, workers: int, threads: int, cluster: str | None = None) -> Iterator[Workplace]:
    """Start workers, let each load the backbone, and yield their executor.

    Parameters
    ----------
    workers
        Processes on this machine; one means this process itself. A cluster has its own number.
    threads
        Number of threads that each worker uses to describe images.
    cluster
        Address of a Dask scheduler; its workers must find the tasks under the same paths.
    """
    if cluster is not None:
        with _on_dask(ref, threads, cluster) as place:
            yield place
    elif workers == 1:
        with _in_this_process(ref, threads) as place:
            yield place
    else:
        with _on_cores(ref, workers, threads) as place:
            yield place


# In this process.


class _InProcess(Executor):
    """Executor that runs each call as soon as it is submitted, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def _in_this_process(ref: BackboneRef, threads: int) -> Iterator[Workplace]:
    before = os.environ.get("SKILLMESH_THREADS")
    _set_threads(threads)
    try:
        start = time.perf_counter()
        worker_backbone(ref)
        yield Workplace(_InProcess(), "this process", 1, time.perf_counter() - start, True)
    finally:
        if before is None:
            os.environ.pop("SKILLMESH_THREADS", None)
        else:
            os.environ["SKILLMESH_THREADS"] = before


# On this machine's cores.


@contextmanager
def _on_cores(ref: BackboneRef, workers: int, threads: int) -> Iterator[Workplace]:
    import multiprocessing

    spawned = multiprocessing.get_context("spawn")  # torch hangs in a forked process
    start = time.perf_counter()
    all_ready = spawned.Barrier(workers)
    with ProcessPoolExecutor(workers, spawned, _start_worker, (threads, all_ready)) as pool:
        for ready in [pool.submit(_load_and_wait_for_all, ref) for _ in range(workers)]:
            ready.result()
        yield Workplace(pool, "processes of this machine", workers, time.perf_counter() - start, True)


_all_ready: Any = None


def _start_worker(threads: int, all_ready: Any) -> None:
    """Prepare a new worker process."""
    global _all_ready
    _all_ready = all_ready
    end_with_parent()
    process_is_ours()
    _set_threads(threads)


def end_with_parent() -> None:
    """End this worker when its parent ends: a killed run must not leave workers that wait or continue for ever."""
    threading.Thread(target=_wait_for_parents_end, daemon=True).start()


def _wait_for_parents_end() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _load_and_wait_for_all(ref: BackboneRef) -> None:
    """Load the backbone and wait until every worker has done so; a failure in one ends the wait of all."""
    try:
        worker_backbone(ref)
    except BaseException:
        _all_ready.abort()
        raise
    with suppress(threading.BrokenBarrierError):  # the worker that failed reports the reason
        _all_ready.wait(600)


def _set_threads(threads: int) -> None:
    os.environ["SKILLMESH_THREADS"] = str(threads)


# On a Dask cluster.


@contextmanager
def _on_dask(ref: BackboneRef, threads: int, address: str) -> Iterator[Workplace]:
    try:
        from distributed import Client
    except ImportError as error:
        raise RunError(DASK.missing("a cluster")) from error
    start = time.perf_counter()
    try:
        client = Client(address, timeout=20)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise RunError(
            f"no Dask scheduler answers at {address} ({error}); start one with `dask scheduler`, or fix --cluster"
        ) from error
    with client:
        ready = client.run(_ready, ref, threads)
        if not ready:
            raise RunError(f"the scheduler at {address} has no workers; start some with `dask worker {address}`")
        executor = client.get_executor(pure=False)  # type: ignore[no-untyped-call]
        yield Workplace(executor, "Dask", len(ready), time.perf_counter() - start, False)


def _ready(ref: BackboneRef, threads: int) -> int:
    process_is_ours()
    _set_threads(threads)
    worker_backbone(ref)
    return os.getpid()
