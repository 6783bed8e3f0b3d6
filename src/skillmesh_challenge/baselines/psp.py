"""Parameter superposition (Cheung et al. 2019): all tasks' weights lie in one sum, each under its own random key.

Nothing protects what was learned. Tasks simply write in directions that are almost orthogonal to each other, and a
task that reads with its own key sees the others as noise that grows with their number (see superposition.py).

    superpose = "weights"   the paper's way: the layer's weight is the sum itself. The first task's key is all
                            ones, so it begins at the start; later ones begin at one with scrambled inputs.
    superpose = "changes"   the start stays outside, and only what tasks change of it is summed: every task
                            begins at the start, disturbed by what the others changed.

Norms and biases are each task's own, and counted: a vector that is added or scaled with is no sum over inputs, in
which parts of other tasks could cancel. Keys are drawn from the seed and the task's position. They need not be
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
    """Reads and writes every layer of the body with the task's key."""

    method: Settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        beside = self.method.superpose == "changes"
        self._sums: list[Superposition] = []
        self._held: list[nn.Parameter] = []
        for layer in layers_of(self.network.body).values():
            one = Superposition(layer, self.method.keys, beside)
            parametrize.register_parametrization(layer, "weight", one)
            self._sums.append(one)
            self._held.append(cast(nn.Parameter, layer.parametrizations.weight.original))  # type: ignore[union-attr]
        self.begin()

    def own(self) -> list[torch.Tensor]:
        held = {id(part) for part in self._held}
        vectors = [part for part in self.network.body.parameters() if id(part) not in held]
        return [*vectors, *super().own()]

    def take_shape(self, position: int) -> None:
        if position == 0 and self.method.superpose == "weights":
            for one in self._sums:
                one.clear()
            return
        chance = self.chance(position, "keys")
        for one in self._sums:
            one.draw(chance)

    def after_step(self) -> None:
        """Unbinding before the step and binding of its gradient multiply every weight once, or turn it."""
        products = 1 if self.method.keys == "binary" else 2
        spend("keys", 2.0 * products * sum(part.numel() for part in self._held))

    def kept_bytes(self) -> dict[str, int]:
        keys = self.known * sum(one.key_bytes for one in self._sums)
        return super().kept_bytes() | {"weights": bytes_of(self._held), "keys": keys}

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"held": [part.detach() for part in self._held]}

    def restore_own(self, own: dict[str, Any]) -> None:
        super().restore_own(own)
        with torch.no_grad():
            for part, value in zip(self._held, own["held"], strict=True):
                part.copy_(value)
