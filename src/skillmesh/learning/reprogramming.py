"""Adversarial reprogramming: one learned pattern per task, added to every image before the network sees it.

The pattern is stored as one byte per pixel and colour, 128 for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from skillmesh.backbone.suffix import Start
from skillmesh.data.images import Pixels
from skillmesh.learning.costs import PassCosts
from skillmesh.learning.head import Head
from skillmesh.learning.training import Examples, Space, Trained, Training, TrainingSettings

if TYPE_CHECKING:
    from skillmesh.backbone.network import Network

NOTHING = 128
SETTINGS = TrainingSettings(epochs=20, patience=20, judged_from=0.0, rate=2.0)
"""Steps are in grey levels."""


def train_pattern(
    network: Network,
    space: Space,
    parts: tuple[Examples, Examples],
    head: Head,
    settings: TrainingSettings = SETTINGS,
    checkpoint: Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Trained:
    """Train a pattern, with the head, on training and validation images; see `stored` for the values."""
    return _PatternTraining(network, space, parts, settings, head, network.places).run(checkpoint, progress)


def stored(pattern: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Round a pattern to what a module holds of it."""
    bytes_: NDArray[np.uint8] = np.clip(np.rint(pattern) + NOTHING, 0, 255).astype(np.uint8)
    return bytes_


def reprogrammed(images: Pixels, pattern: NDArray[np.uint8]) -> Pixels:
    """Add a stored pattern to images; what leaves the range of a pixel is cut."""
    return np.clip(images.astype(np.int16) + pattern.astype(np.int16) - NOTHING, 0, 255).astype(np.uint8)


class _PatternTraining(Training):
    def _first_values(self) -> torch.Tensor:
        size = self._settings.size or self._network.size
        return torch.zeros((size, size, 3), device=self._network.device)

    def _raw(self, start: Start) -> torch.Tensor:
        patterned = (start.activations + self._values).clamp(0, 255)
        return self._suffix.raw(start._replace(activations=patterned), self._network.base)

    def _backward_macs(self, per_image: PassCosts) -> int:
        return per_image.forward  # through the first layer too, down to the pixels
