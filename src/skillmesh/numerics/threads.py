"""One thread for sums whose last bit matters: agents that hold the same must find the same numbers.

How many threads BLAS has is a setting of the whole process, and whoever leaves a limit puts back what it found. Of
two limits that overlap, the first to end would lift the other's: so only one is in force at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

_ALONE = threading.RLock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let BLAS use one thread; other threads that want the same wait."""
    with _ALONE, threadpool_limits(1, "blas"):
        yield


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
