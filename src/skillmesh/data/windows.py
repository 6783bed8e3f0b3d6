"""Work through many images a few at a time, so that memory stays flat and results come early."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

WINDOW = 64
"""Images at once: half a second of work on two cores, and enough that no core waits for long."""

Item = TypeVar("Item")


def in_windows(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield items in lists of 64, taking none before it is needed."""
    rest = iter(items)
    while window := list(islice(rest, WINDOW)):
        yield window
