"""Adversarial reprogramming: one learned pattern per task, added to every image before the network sees it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from skillmesh.backbone.suffix import PassCosts, Start
from skillmesh.learning.head import Head
from skillmesh.learning.training import Examples, Space, Trained, Training, TrainingSettings

if TYPE_CHECKING:
    from skillmesh.backbone.torch_network import TorchNetwork

SETTINGS = TrainingSettings(epochs=20, patience=20, judged_from=0.0, rate=2.0)
"""The rate is in grey levels."""


def train_pattern(
    network: TorchNetwork,
    space: Space,
    parts: tuple[Examples, Examples],
    head: Head,
    settings: TrainingSettings = SETTINGS,
    checkpoint: Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Trained:
    """Train a pattern, together with the head, on training and validation images.

    The returned values are in grey levels; `stored` converts them to bytes.
    """
    return _PatternTraining(network, space, parts, settings, head, network.places).run(checkpoint, progress)


class _PatternTraining(Training):
    def _initial_values(self) -> torch.Tensor:
        size = self._settings.size or self._network.size
        return torch.zeros((size, size, 3), device=self._network.device)

    def _raw(self, start: Start) -> torch.Tensor:
        patterned = (start.activations + self._values).clamp(0, 255)
        return self._suffix.raw(start._replace(activations=patterned), self._network.base)

    def _backward_macs(self, per_image: PassCosts) -> int:
        return per_image.forward  # the gradient goes through the first layer too, down to the pixels
