"""Threads that work in the background, behind answers, and end with the node."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

NICE = 10
"""How far work in the background steps back."""


def thread(name: str, target: Callable[[], None], when_over: contextlib.ExitStack | None = None) -> None:
    """Start a thread, and wait for it at the end where there is something to wait for."""

    def run() -> None:
        _step_back()
        target()

    started = threading.Thread(target=run, name=f"skillmesh-{name}", daemon=True)
    started.start()
    if when_over is not None:
        when_over.callback(started.join, timeout=10)


def pool(name: str, workers: int, when_over: contextlib.ExitStack) -> ThreadPoolExecutor:
    made = ThreadPoolExecutor(workers, f"skillmesh-{name}", initializer=_step_back)
    when_over.callback(made.shutdown, wait=False, cancel_futures=True)
    return made


def _step_back() -> None:
    """Let answers go first: on Linux each thread has a niceness of its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
