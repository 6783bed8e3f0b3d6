"""Methods that keep tasks apart: the network takes on another shape for each task, and can take it on again.

What a task owns beside its key or mask are small vectors that nothing could keep apart: statistics of batch norms
and, where the method trains them, their scales and the layers' biases. Each task begins with those of the start.
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
    """A trainer whose network is one of as many as there are tasks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._norms = [
            module
            for module in self.network.body.modules()
            if isinstance(module, Norm) and module.running_mean is not None and self.method.norms == "trained"
        ]
        self._shown: int | None = None
        self._owned: list[list[torch.Tensor]] = []

    # What methods say.

    def own(self) -> list[torch.Tensor]:
        """Where the network keeps what is each task's own, in the same order every time."""
        return [part for norm in self._norms for part in (norm.running_mean, norm.running_var) if part is not None]

    @abstractmethod
    def take_shape(self, position: int) -> None:
        """Bring key or mask of this task into the layers; the newest may be one that is still to be learned."""

    # What follows from it.

    def begin(self) -> None:
        """Keep what the start is like; to be called when the layers are as the method wants them."""
        self._start = [part.detach().clone() for part in self.own()]

    def before_task(self, task: BaselineTask) -> None:
        self._set_own(self._start)
        self.take_shape(self.known - 1)
        self._shown = self.known - 1

    def after_task(self, task: BaselineTask) -> None:
        self._settle(task.train.x)
        self._owned.append([part.detach().clone() for part in self.own()])

    def logits(self, x: torch.Tensor, position: int) -> torch.Tensor:
        self.show(position)
        return super().logits(x, position)

    def _all_logits(self, x: torch.Tensor) -> torch.Tensor:
        """Every task has a network of its own."""
        return torch.cat([self._logits(x, position) for position in range(self.known)], dim=1)

    def show(self, position: int) -> None:
        """Be the network of this task."""
        if position != self._shown:
            self._set_own(self._owned[position])
            self.take_shape(position)
            self._shown = position

    def _set_own(self, values: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for part, value in zip(self.own(), values, strict=True):
                part.copy_(value)

    def _settle(self, x: torch.Tensor) -> None:
        """Take the norms' statistics once more, of the final weights: running averages lag behind few steps."""
        if not self._norms:
            return
        momenta = [norm.momentum for norm in self._norms]
        for norm in self._norms:
            norm.reset_running_stats()
            norm.train().momentum = None  # the plain average of all batches
        with torch.no_grad(), self.autocast():
            batches = math.ceil(len(x) / TEST_BATCH)
            rows = torch.arange(batches * TEST_BATCH, device=x.device) % len(x)  # the last one begins anew
            for some in rows.view(batches, TEST_BATCH):
                self.network.body(x[some])
        for norm, momentum in zip(self._norms, momenta, strict=True):
            norm.eval().momentum = momentum
        spend("forward", float(len(rows)) * self.network.macs[0])

    # Keeping.

    def kept_bytes(self) -> dict[str, int]:
        norms = sum(bytes_of(owned) for owned in self._owned)
        return {"norms": norms, "head": bytes_of(self.network.heads.parameters())}

    def state(self) -> dict[str, Any]:
        """Without the body: it comes back from the start, what was learned lies beside it."""
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
