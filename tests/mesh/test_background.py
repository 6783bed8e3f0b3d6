"""Background work and the threads that it starts have a lower priority than answers."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

import pytest

from skillmesh.mesh import wire

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="threads have a niceness of their own on Linux only"
)


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_threads_and_pools_lower_their_priority_and_not_that_of_the_caller():
    before, seen = niceness(), []
    with contextlib.ExitStack() as over:
        wire.thread("one", lambda: seen.append(niceness()), over)
        seen.append(wire.pool("some", 2, over).submit(niceness).result())
    assert seen == [max(before, wire.NICE)] * 2
    assert niceness() == before


def test_threads_started_by_a_background_call_inherit_its_priority():
    def with_a_thread_of_its_own() -> list[int]:
        seen: list[int] = []
        inner = threading.Thread(target=lambda: seen.append(niceness()))
        inner.start()
        inner.join()
        return seen

    before = niceness()
    assert wire.from_background(with_a_thread_of_its_own) == [max(before, wire.NICE)]
    assert niceness() == before


def test_an_error_in_the_background_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        wire.from_background(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
