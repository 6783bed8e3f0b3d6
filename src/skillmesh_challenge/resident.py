"""How much memory this process takes, where the system says so."""

from __future__ import annotations

from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def resident_bytes() -> int | None:
    """What lies in memory now; nothing on systems without /proc."""
    return _field("VmRSS")


def peak_bytes() -> int | None:
    """The most that lay in memory since `forget_peak`."""
    return _field("VmHWM")


def forget_peak() -> None:
    """Let the peak begin anew from what lies in memory now."""
    if CLEAR.exists():
        CLEAR.write_text("5")


def _field(name: str) -> int | None:
    if not STATUS.exists():
        return None
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
