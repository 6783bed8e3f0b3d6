"""Work inside a process: how it tells its progress, and which settings of the whole process it changes."""

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
"""Called with the number of steps done since the last call."""


class Progress(Protocol):
    """Told what begins and how it goes on."""

    def start(self, what: str, total: int) -> None: ...

    def advance(self, steps: int) -> None: ...


def begin(progress: Progress | None, what: str, total: int) -> Advance | None:
    """Announce a piece of work, if anyone listens; return what is to be called as it goes on."""
    if progress is None:
        return None
    progress.start(what, total)
    return progress.advance


# One thread for sums whose last bit matters: agents that hold the same must find the same numbers.
#
# How many threads BLAS has is a setting of the whole process, and whoever leaves a limit puts back what it found.
# Of two limits that overlap, the first to end would lift the other's: so only one is in force at a time. torch has
# a number for every thread; those of the program that uses an agent keep theirs.

_ALONE = threading.RLock()
_RECORDING = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let BLAS use one thread; other threads that want the same wait."""
    with _ALONE, threadpool_limits(1, "blas"):
        yield


def one_thread_each(workers: int) -> ThreadPoolExecutor:
    """Return a pool of threads in which torch uses one thread; it keeps its number in all others."""
    return ThreadPoolExecutor(workers, initializer=_use_one_torch_thread)


def _use_one_torch_thread() -> None:
    """Limit torch in the calling thread alone.

    Each thread has a number of its own, but torch also records the last one that was set, for threads that have
    not used it yet. Another thread puts the record back and ends, since this sets a thread's own number too.
    """
    import torch

    with _RECORDING:
        recorded = torch.get_num_threads()  # a new thread starts with what is recorded
        if recorded == 1:
            return
        torch.set_num_threads(1)
        keeper = threading.Thread(target=torch.set_num_threads, args=[recorded])
        keeper.start()
        keeper.join()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# What the process keeps of the memory that it has freed: all of it for a network, none of it for a lone carrier.
#
# glibc hands large blocks back to the system as soon as they are freed, and every forward pass frees dozens.
# Getting them again costs page faults: a quarter of the time of a forward pass of lite0. Left to itself it also
# learns from the first large block to keep the next ones, so a node that builds a mapper now and then would grow
# to the size of its largest build.
#
# These are settings of a whole process, so they are made only where it is skillmesh's own: a command, a node, a
# worker of a run. A program that uses an agent keeps its allocator as it is, and pays with that quarter.

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_KEEP = 512 * 2**20
_GIVE_BACK = 32 * 2**10
_ours = False


def process_is_ours() -> None:
    """Let this process's allocator be tuned from now on: it runs nothing but skillmesh."""
    global _ours
    _ours = True


def keep_freed_memory() -> bool:
    """For a network on a CPU; return whether it was done. `SKILLMESH_MALLOC=system` leaves glibc alone."""
    return _set({_M_MMAP_THRESHOLD: _KEEP, _M_TRIM_THRESHOLD: _KEEP, _M_TOP_PAD: 2**26})


def give_back_freed_memory() -> bool:
    """For a node, until it loads a network: a third less memory at rest, for 0.2 s more per build of a mapper.

    zenoh's many threads share two heaps; each would keep what it has freed in one of its own.
    """
    return _set({_M_ARENA_MAX: 2, _M_MMAP_THRESHOLD: _GIVE_BACK, _M_TRIM_THRESHOLD: _GIVE_BACK})


def hand_back() -> None:
    """Give back now what was freed and kept: after something large, and by a node now and then."""
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
    taken = [mallopt(option, value) for option, value in options.items()]
    return all(taken)


# Seeded draws that leave the random numbers of the program around them as they were.


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch on the CPU and on `device`; afterwards its generators are where they were."""
    import torch

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


# Quiet loading: libraries that log what the user is told anyway, or need not know.


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Drop errors, warnings and less of these loggers, and what this thread logs with none in particular.

    Everything else, and the levels that a program has set, stay as they are.
    """
    with ExitStack() as when_over:
        for logger in map(logging.getLogger, names):
            when_over.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        root, here = logging.getLogger(), threading.get_ident()

        def of_others(record: logging.LogRecord) -> bool:
            return record.thread != here or record.levelno >= logging.CRITICAL

        root.addFilter(of_others)
        when_over.callback(root.removeFilter, of_others)
        if not root.handlers and logging.lastResort is not None:  # `logging.error` would set up one that stays
            root.addHandler(logging.lastResort)
            when_over.callback(root.removeHandler, logging.lastResort)
        yield
