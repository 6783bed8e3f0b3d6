"""Parameter superposition (Cheung et al. 2019): one sum stores the weights of all tasks, each with a random key.

Nothing protects what was learned. Tasks are stored in directions that are almost orthogonal to each other. A task
read with its own key sees the others as noise, which grows with their number (see superposition.py).

    superpose = "weights"   as in the paper: the layer's weight is the sum itself. The first key is all ones, so
                            the first task begins with the initial weights, later ones with scrambled inputs.
    superpose = "changes"   the initial weights stay outside, and only changes to them are summed: every task
                            begins with the initial weights, disturbed by the changes of the others.

Each task has its own batch norms and biases, which are counted: such a vector is not summed over inputs, so the
parts of other tasks could not cancel. Keys are drawn from the seed and the task's position. They need not be
stored, but are counted as if they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from skillmesh.numerics.arrays import spend
from skillmesh_challenge.baselines.isolation import Isolated
from skillmesh_challenge.baselines.network import bytes_of, layers_of
from skillmesh_challenge.baselines.superposition import Superposition

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.isolating import Psp as Settings


class PspLearner(Isolated):
    """Binds every layer's weights of the body with the task's key."""

    method: Settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        only_changes = self.method.superpose == "changes"
        self._sums: list[Superposition] = []
        self._held: list[nn.Parameter] = []
        for layer in layers_of(self.network.body).values():
            superposition = Superposition(layer, self.method.keys, only_changes)
            parametrize.register_parametrization(layer, "weight", superposition)
            self._sums.append(superposition)
            self._held.append(cast(nn.Parameter, layer.parametrizations.weight.original))  # type: ignore[union-attr]
        self.begin()

    def own(self) -> list[torch.Tensor]:
        held = {id(part) for part in self._held}
        vectors = [part for part in self.network.body.parameters() if id(part) not in held]
        return [*vectors, *super().own()]

    def switch_to(self, position: int) -> None:
        if position == 0 and self.method.superpose == "weights":
            for superposition in self._sums:
                superposition.clear()
            return
        chance = self.chance(position, "keys")
        for superposition in self._sums:
            superposition.draw(chance)

    def after_step(self) -> None:
        """Count the key products: unbinding before the step, and binding its gradient, for every weight."""
        products = 1 if self.method.keys == "binary" else 2
        spend("keys", 2.0 * products * sum(part.numel() for part in self._held))

    def kept_bytes(self) -> dict[str, int]:
        keys = self.known * sum(superposition.key_bytes for superposition in self._sums)
        return super().kept_bytes() | {"weights": bytes_of(self._held), "keys": keys}

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"held": [part.detach() for part in self._held]}

    def restore_own(self, own: dict[str, Any]) -> None:
        super().restore_own(own)
        with torch.no_grad():
            for part, value in zip(self._held, own["held"], strict=True):
                part.copy_(value)
