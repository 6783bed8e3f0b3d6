"""Protection against processes that a demo leaves behind, and against two demos in one folder."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from skillmesh.errors import AgentError


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Refuse a second demo in the same folder, since it would clear the homes of the first."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / "demo.lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise AgentError(f"a demo already runs in {out}; wait for it or choose another --out") from None
    except OSError as error:
        raise AgentError(f"cannot write to {out}: {error.strerror}; choose another folder with --out") from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn signals that would end this process at once into SystemExit, so that its agents are ended first."""

    def leave(number: int, _frame: object) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup sets SIG_IGN on purpose
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
