"""How long work tells whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Advance = Callable[[int], None]
"""Called with the number of steps done since the last call."""


class Progress(Protocol):
    """Told what begins and how it goes on."""

    def start(self, what: str, total: int) -> None: ...

    def advance(self, steps: int) -> None: ...


def begin(progress: Progress | None, what: str, total: int) -> Advance | None:
    """Announce a piece of work, if anyone listens; return what is to be called as it goes on."""
    if progress is None:
        return None
    progress.start(what, total)
    return progress.advance
