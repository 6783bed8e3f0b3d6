"""Beneficial biases: one learned number per channel of the frozen network, trained together with the head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from skillmesh.backbone.spec import chosen
from skillmesh.backbone.suffix import PassCosts, Start
from skillmesh.learning.head import Head
from skillmesh.learning.training import Examples, Space, Trained, Training, TrainingSettings

if TYPE_CHECKING:
    from skillmesh.backbone.torch_network import TorchNetwork

OURS = TrainingSettings(epochs=3, rate=0.03)
PAPER = TrainingSettings(epochs=20, rate=0.01, patience=20, judged_from=0.0)
"""The paper's settings: all layers, many epochs, and a head on the last layer's features trained with the biases.

Of the rates 0.001 and 0.01 the second has the better validation results."""


def train_biases(
    network: TorchNetwork,
    space: Space,
    parts: tuple[Examples, Examples],
    head: Head,
    where: str = "all",
    settings: TrainingSettings = OURS,
    checkpoint: Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Trained:
    """Train the biases of the layers `where`, together with the head, on training and validation images.

    The returned values are to be added to the network's own biases; they are zero for untrained layers.
    """
    return _BiasTraining(network, space, parts, head, where, settings).run(checkpoint, progress)


class _BiasTraining(Training):
    def __init__(
        self,
        network: TorchNetwork,
        space: Space,
        parts: tuple[Examples, Examples],
        head: Head,
        where: str,
        settings: TrainingSettings,
    ) -> None:
        places = chosen(where, network.places)
        self._mask = torch.zeros_like(network.base)
        for place in places:
            self._mask[place.part] = 1
        self._first_biased = network.places.index(places[0])
        super().__init__(network, space, parts, settings, head, places)

    def _initial_values(self) -> torch.Tensor:
        return torch.zeros_like(self._network.base)

    def _kept(self, values: torch.Tensor) -> torch.Tensor:
        return values * self._mask

    def _raw(self, start: Start) -> torch.Tensor:
        return self._suffix.raw(start, self._network.base + self._kept(self._values))

    def _backward_macs(self, per_image: PassCosts) -> int:
        return per_image.backward(self._first_biased)
