"""Base class of methods that isolate tasks: the network is switched to the parameters of one task at a time.

Beside its key or mask, a task owns small vectors that a key or mask cannot separate: batch-norm statistics and, if
the method trains them, batch-norm scales and layer biases. Each task begins with their initial values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from skillmesh.numerics.arrays import spend
from skillmesh_challenge.baselines.data import TEST_BATCH, BaselineTask
from skillmesh_challenge.baselines.network import Norm, bytes_of
from skillmesh_challenge.baselines.trainer import Trainer


class Isolated(Trainer, ABC):
    """A trainer that effectively has one network per task."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._norms = [
            module
            for module in self.network.body.modules()
            if isinstance(module, Norm) and module.running_mean is not None and self.method.norms == "trained"
        ]
        self._shown: int | None = None
        self._owned: list[list[torch.Tensor]] = []

    # Overridden by methods.

    def own(self) -> list[torch.Tensor]:
        """Return the network's tensors that differ per task, always in the same order."""
        return [part for norm in self._norms for part in (norm.running_mean, norm.running_var) if part is not None]

    @abstractmethod
    def switch_to(self, position: int) -> None:
        """Load the key or mask of this task into the layers; the newest task may not be learned yet."""

    # Learning and switching.

    def begin(self) -> None:
        """Store the initial values; to be called when the method has prepared the layers."""
        self._start = [part.detach().clone() for part in self.own()]

    def before_task(self, task: BaselineTask) -> None:
        self._set_own(self._start)
        self.switch_to(self.known - 1)
        self._shown = self.known - 1

    def after_task(self, task: BaselineTask) -> None:
        self._settle(task.train.x)
        self._owned.append([part.detach().clone() for part in self.own()])

    def logits(self, x: torch.Tensor, position: int) -> torch.Tensor:
        self.show(position)
        return super().logits(x, position)

    def _all_logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of all tasks, each from its own network."""
        return torch.cat([self._logits(x, position) for position in range(self.known)], dim=1)

    def show(self, position: int) -> None:
        """Switch the network to this task."""
        if position != self._shown:
            self._set_own(self._owned[position])
            self.switch_to(position)
            self._shown = position

    def _set_own(self, values: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for part, value in zip(self.own(), values, strict=True):
                part.copy_(value)

    def _settle(self, x: torch.Tensor) -> None:
        """Measure batch-norm statistics again with the final weights: running averages lag after few steps."""
        if not self._norms:
            return
        momenta = [norm.momentum for norm in self._norms]
        for norm in self._norms:
            norm.reset_running_stats()
            norm.train().momentum = None  # the plain average of all batches
        with torch.no_grad(), self.autocast():
            batches = math.ceil(len(x) / TEST_BATCH)
            rows = torch.arange(batches * TEST_BATCH, device=x.device) % len(x)  # the last batch wraps around
            for batch in rows.view(batches, TEST_BATCH):
                self.network.body(x[batch])
        for norm, momentum in zip(self._norms, momenta, strict=True):
            norm.eval().momentum = momentum
        spend("forward", float(len(rows)) * self.network.macs[0])

    # Saving.

    def kept_bytes(self) -> dict[str, int]:
        norms = sum(bytes_of(owned) for owned in self._owned)
        return {"norms": norms, "head": bytes_of(self.network.heads.parameters())}

    def state(self) -> dict[str, Any]:
        """Return the state without the body, whose weights are rebuilt; what was learned is stored beside it."""
        heads = self.network.heads.state_dict()
        return {"spans": self.network.spans, "heads": heads, "own": self.own_state()}

    def restore(self, state: dict[str, Any], before: Sequence[BaselineTask]) -> None:
        for classes in state["spans"]:
            self.network.add_head(classes, torch.Generator())
        self.network.heads.load_state_dict(state["heads"])
        self.restore_own(state["own"])
        self._shown = None

    def own_state(self) -> dict[str, Any]:
        return {"owned": self._owned}

    def restore_own(self, own: dict[str, Any]) -> None:
        self._owned = [[part.to(self.device) for part in parts] for parts in own["owned"]]
