"""One thread for sums whose last bit matters: agents that hold the same must find the same numbers.

How many threads BLAS has is a setting of the whole process, and whoever leaves a limit puts back what it found. Of
two limits that overlap, the first to end would lift the other's: so only one is in force at a time. torch has a
number for every thread; those of the program that uses an agent keep theirs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

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
