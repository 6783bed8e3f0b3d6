"""Experience replay (Robins 1995; Rebuffi 2017, as the paper has it): some old images are learned again.

After a task, a few images of each of its classes are kept, drawn at random; the buffer grows with every task. The
next is learned from all its own images and the whole buffer, each image through its own task's head. So the work
grows too: with a share of images kept of every task, the n-th costs 1 + (n − 1) · share (the paper's appendix D).

Which images are kept follows from the seed and the task alone. A run that goes on after a kill draws them again.
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
    """Learns old images with the new ones."""

    method: Er
    _buffer: Batch | None = None
    """Where it is not among the examples."""
    _bytes = 0

    def kept(self, task: BaselineTask, position: int) -> BaselineExamples:
        """What is kept of a task: of each class the first few in an order that is drawn."""
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
        again = self.chance(self.known - 1, "replay")
        drawn = torch.empty(0, dtype=torch.long)
        for batch in super().batches(examples, chance):
            count = len(batch.labels)
            while len(drawn) < count:  # each once, then each again in another order
                drawn = torch.cat([drawn, torch.randperm(len(self._buffer.labels), generator=again)])
            rows, drawn = drawn[:count].to(self.device), drawn[count:]
            yield self._together([batch, Batch(*(part[rows] for part in self._buffer[:3]))])

    def _together(self, parts: Sequence[Batch]) -> Batch:
        columns = zip(*(part[:3] for part in parts), strict=True)
        return Batch(*(torch.cat([one.to(self.device) for one in column]) for column in columns))

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
