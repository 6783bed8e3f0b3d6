"""Progress reporting for long-running work, and process-wide settings: threads, memory, random seeds, logging."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    import torch

Advance = Callable[[int], None]
"""Function called with the number of steps done since the last call."""


class Progress(Protocol):
    """A receiver of progress reports: the start of a piece of work, then its steps."""

    def start(self, what: str, total: int) -> None: ...

    def advance(self, steps: int) -> None: ...


def begin(progress: Progress | None, what: str, total: int) -> Advance | None:
    """Report the start of a piece of work, if there is a receiver; return the function to report its steps."""
    if progress is None:
        return None
    progress.start(what, total)
    return progress.advance


# One thread for sums whose last bit matters: agents with the same modules must compute the same numbers.
#
# The number of BLAS threads is a setting of the whole process, and each limit restores the previous number when it
# ends. If two limits overlapped, the first to end would lift the other's, so only one is in force at a time. torch
# has a number for each thread; threads of the program that uses an agent keep theirs.

_ALONE = threading.RLock()
_RECORDING = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside this context; other threads that enter it wait."""
    with _ALONE, threadpool_limits(1, "blas"):
        yield


SWITCH = 0.001
"""Seconds after which a thread that runs Python code lets a waiting one run; Python's default is 5 ms."""


def answer_several_at_once() -> None:
    """Tune this process, if it is ours, for answering several questions at once, each on a thread of its own.

    BLAS is limited to one thread from now on: its own threads wait for one another within a product, busily. As
    soon as the cores have other work too, that takes several times as long as the product on one thread. And a
    thread that learns, or imports a module, must not keep those waiting that answer.
    """
    if _ours:
        threadpool_limits(1, "blas")
        sys.setswitchinterval(SWITCH)


def one_thread_each(workers: int) -> ThreadPoolExecutor:
    """Return a thread pool in which torch uses one thread; its number in all other threads is unchanged."""
    return ThreadPoolExecutor(workers, initializer=_use_one_torch_thread)


def _use_one_torch_thread() -> None:
    """Limit torch to one thread in the calling thread only.

    Each thread has its own number, but torch also records the last one that was set, for threads that have not
    used it yet. A short-lived thread restores the record, since setting it changes the thread's own number too.
    """
    if (torch := sys.modules.get("torch")) is None:
        return
    with _RECORDING:
        recorded = torch.get_num_threads()  # a new thread starts with the recorded number
        if recorded == 1:
            return
        torch.set_num_threads(1)
        keeper = threading.Thread(target=torch.set_num_threads, args=[recorded])
        keeper.start()
        keeper.join()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Freed memory: a process that runs a network keeps all of it, a node that only carries modules keeps none.
#
# glibc returns large blocks to the system as soon as they are freed, and every forward pass frees dozens. Getting
# them again costs page faults: a quarter of the time of a forward pass of lite0. By default glibc also starts to
# keep large blocks after the first one was freed, so a node that builds a mapper now and then would grow to the
# size of its largest build.
#
# These are settings of a whole process, so they are only changed in skillmesh's own processes: a command, a node,
# a worker of a run. A program that uses an agent keeps its allocator as it is, and loses that quarter of the time.

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_KEEP = 512 * 2**20
_GIVE_BACK = 32 * 2**10
_ours = False


def process_is_ours() -> None:
    """Allow tuning of this process's allocator from now on: the process runs only skillmesh."""
    global _ours
    _ours = True


def keep_freed_memory() -> bool:
    """Keep freed memory, for a network on a CPU; return whether it is kept (not if `SKILLMESH_MALLOC=system`)."""
    return _set({_M_MMAP_THRESHOLD: _KEEP, _M_TRIM_THRESHOLD: _KEEP, _M_TOP_PAD: 2**26})


def give_back_freed_memory() -> bool:
    """Return freed memory to the system, for a node until it loads a network; return whether that worked.

    It saves a third of the memory at rest, for 0.2 s more per build of a mapper. zenoh's many threads share two
    heaps; otherwise each would keep freed memory in a heap of its own.
    """
    return _set({_M_ARENA_MAX: 2, _M_MMAP_THRESHOLD: _GIVE_BACK, _M_TRIM_THRESHOLD: _GIVE_BACK})


def hand_back() -> None:
    """Return freed memory to the system now: after something large, and from time to time in a node."""
    if sys.platform == "linux" and os.environ.get("SKILLMESH_MALLOC") != "system":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _set(options: dict[int, int]) -> bool:
    if not _ours or sys.platform != "linux" or os.environ.get("SKILLMESH_MALLOC") == "system":
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    accepted = [mallopt(option, value) for option, value in options.items()]
    return all(accepted)


# Seeded random numbers that do not change the random state of the program that uses skillmesh.


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch on the CPU and on `device` inside this context; restore its generators afterwards."""
    import torch

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


# Silent loading of libraries that log what users are informed of anyway, or do not need.


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Drop records below CRITICAL of these loggers, and those that this thread logs with the root logger.

    Everything else, and the levels that a program has set, are unchanged.
    """
    with ExitStack() as cleanup:
        for logger in map(logging.getLogger, names):
            cleanup.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        root, this_thread = logging.getLogger(), threading.get_ident()

        def keep_record(record: logging.LogRecord) -> bool:
            return record.thread != this_thread or record.levelno >= logging.CRITICAL

        root.addFilter(keep_record)
        cleanup.callback(root.removeFilter, keep_record)
        if not root.handlers and logging.lastResort is not None:  # else `logging.error` would add a permanent one
            root.addHandler(logging.lastResort)
            cleanup.callback(root.removeHandler, logging.lastResort)
        yield
