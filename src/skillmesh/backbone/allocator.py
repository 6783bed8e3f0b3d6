"""What the process keeps of the memory that it has freed: all of it for a network, none of it for a lone carrier.

glibc hands large blocks back to the system as soon as they are freed, and every forward pass frees dozens. Getting
them again costs page faults: a quarter of the time of a forward pass of lite0. Left to itself it also learns from
the first large block to keep the next ones, so a node that builds a mapper now and then would grow to the size of
its largest build.

These are settings of a whole process, so they are made only where it is skillmesh's own: a command, a node, a
worker of a run. A program that uses an agent keeps its allocator as it is, and pays with that quarter.
"""

from __future__ import annotations

import contextlib
import os
import sys

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
