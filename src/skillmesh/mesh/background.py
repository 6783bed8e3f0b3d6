"""Work in the background, behind answers. Threads end with the node."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

NICE = 10
"""How far work in the background steps back."""
A_LITTLE = 4
"""How far the mesh's lines do: behind answers, but not so far that a busy machine loses its peers."""


def thread(
    name: str, target: Callable[[], None], when_over: contextlib.ExitStack | None = None, nice: int = NICE
) -> None:
    """Start a thread, and wait for it at the end where there is something to wait for."""

    def run() -> None:
        _step_back(nice)
        target()

    started = threading.Thread(target=run, name=f"skillmesh-{name}", daemon=True)
    started.start()
    if when_over is not None:
        when_over.callback(started.join, timeout=10)


def pool(name: str, workers: int, when_over: contextlib.ExitStack) -> ThreadPoolExecutor:
    made = ThreadPoolExecutor(workers, f"skillmesh-{name}", initializer=_step_back, initargs=(NICE,))
    when_over.callback(made.shutdown, wait=False, cancel_futures=True)
    return made


def from_background(call: Callable[[], Result], nice: int = NICE) -> Result:
    """Call something whose own threads shall step back too: they inherit that from their maker."""
    with ThreadPoolExecutor(1, initializer=_step_back, initargs=(nice,)) as maker:
        return maker.submit(call).result()


def _step_back(nice: int) -> None:
    """Let answers go first: on Linux each thread has a niceness of its own."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
