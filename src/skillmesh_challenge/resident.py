"""Memory use of this process, on systems that report it in /proc."""

from __future__ import annotations

from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def resident_bytes() -> int | None:
    """Return the bytes of memory in use now; None on systems without /proc."""
    return _field("VmRSS")


def peak_bytes() -> int | None:
    """Return the largest number of bytes in use since `forget_peak`; None on systems without /proc."""
    return _field("VmHWM")


def forget_peak() -> None:
    """Reset the peak to the memory in use now."""
    if CLEAR.exists():
        CLEAR.write_text("5")


def _field(name: str) -> int | None:
    if not STATUS.exists():
        return None
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
