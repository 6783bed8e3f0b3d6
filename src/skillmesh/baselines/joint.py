"""Joint training, the upper bound: from the start anew, on all images of all tasks so far."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from skillmesh.baselines.data import Task
from skillmesh.baselines.trainer import Batch, Trainer


class Joint(Trainer):
    """Forgets nothing, since it keeps everything."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._start = copy.deepcopy(self.network.body.state_dict())
        self._images = 0

    def before_task(self, task: Task) -> None:
        """Go back to where all began."""
        self.network.body.load_state_dict(self._start)

    def examples(self, task: Task, before: Sequence[Task]) -> Batch:
        parts = [self.labelled(earlier.train, position) for position, earlier in enumerate(before)]
        parts.append(self.labelled(task.train, self.known - 1))
        self._images = sum(part.x.nbytes for part in parts)
        return Batch(*(torch.cat([one.to(self.device) for one in column]) for column in zip(*parts, strict=True)))

    def loss(self, batch: Batch) -> torch.Tensor:
        return self.mixed_loss(batch)

    def kept_bytes(self) -> dict[str, int]:
        return super().kept_bytes() | {"images": self._images}

    def own_state(self) -> dict[str, Any]:
        return {"images": self._images}

    def restore_own(self, own: dict[str, Any]) -> None:
        self._images = own["images"]
