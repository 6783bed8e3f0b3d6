"""Keep freed memory in the process while a network runs on a CPU.

glibc hands large blocks back to the system as soon as they are freed, and every forward pass frees dozens. Getting
them again costs page faults: a quarter of the time of a forward pass of lite0.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEEP = 512 * 2**20


def keep_freed_memory() -> bool:
    """Raise glibc's thresholds; say whether that was done. `SKILLMESH_MALLOC=system` leaves them alone."""
    if sys.platform != "linux" or os.environ.get("SKILLMESH_MALLOC") == "system":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([mallopt(_M_MMAP_THRESHOLD, _KEEP), mallopt(_M_TRIM_THRESHOLD, _KEEP), mallopt(_M_TOP_PAD, 2**26)])
