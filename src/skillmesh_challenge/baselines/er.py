"""Experience replay (Robins 1995; the paper cites Rebuffi 2017): some images of old tasks are trained on again.

After a task, a few random images of each of its classes are kept, so the buffer grows with every task. The next
task is trained on all its own images and the whole buffer, each image through its own task's head. So the cost
grows too: if a share of every task's images is kept, the n-th task costs 1 + (n − 1) · share (the paper's
appendix D).

The choice of images depends only on the seed and the task, so a resumed run draws the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from skillmesh_challenge.baselines.data import BaselineExamples, BaselineTask, Batch
from skillmesh_challenge.baselines.trainer import Trainer

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.plain import Er


class Replay(Trainer):
    """Trains on the new task's images and on kept images of old tasks."""

    method: Er
    _buffer: Batch | None = None
    """The buffer if it is drawn from separately; None if it is empty or part of the examples."""
    _bytes = 0

    def kept(self, task: BaselineTask, position: int) -> BaselineExamples:
        """Return the images kept of a task: the first few of each class in a random order."""
        order = torch.randperm(len(task.train), generator=self.chance(position, "buffer"))
        labels = task.train.labels.cpu()[order]
        rows = [order[labels == label][: self.method.per_class] for label in range(task.classes)]
        return task.train[torch.cat(rows).to(task.train.x.device)]

    def examples(self, task: BaselineTask, before: Sequence[BaselineTask]) -> Batch:
        new = self.labelled(task.train, self.known - 1)
        old = [self.labelled(self.kept(earlier, at), at) for at, earlier in enumerate(before)]
        self._buffer = None
        if not old:
            return new
        buffer = self._together(old)
        if self.method.mix == "union":
            return self._together([buffer, new])
        self._buffer = buffer
        return new

    def batches(self, examples: Batch, chance: torch.Generator) -> Iterator[Batch]:
        if self._buffer is None:
            yield from super().batches(examples, chance)
            return
        generator = self.chance(self.known - 1, "replay")
        drawn = torch.empty(0, dtype=torch.long)
        for batch in super().batches(examples, chance):
            count = len(batch.labels)
            while len(drawn) < count:  # the whole buffer once, then again in another order
                drawn = torch.cat([drawn, torch.randperm(len(self._buffer.labels), generator=generator)])
            rows, drawn = drawn[:count].to(self.device), drawn[count:]
            yield self._together([batch, Batch(*(part[rows] for part in self._buffer[:3]))])

    def _together(self, parts: Sequence[Batch]) -> Batch:
        columns = zip(*(part[:3] for part in parts), strict=True)
        return Batch(*(torch.cat([part.to(self.device) for part in column]) for column in columns))

    def loss(self, batch: Batch) -> torch.Tensor:
        return self.mixed_loss(batch)

    def columns_trained(self) -> int:
        return sum(self.network.spans)

    def after_task(self, task: BaselineTask) -> None:
        self._bytes += self.kept(task, self.known - 1).stored_bytes

    def kept_bytes(self) -> dict[str, int]:
        return super().kept_bytes() | {"images": self._bytes}

    def own_state(self) -> dict[str, Any]:
        return {"bytes": self._bytes}

    def restore_own(self, own: dict[str, Any]) -> None:
        self._bytes = own["bytes"]
