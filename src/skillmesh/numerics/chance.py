"""Seeded draws that leave the random numbers of the program around them as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch on the CPU and on `device`; afterwards its generators are where they were."""
    import torch

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
