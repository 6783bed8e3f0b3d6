"""Learning without forgetting (Li & Hoiem 2017): distillation of old heads on the new task's images.

Before a task is learned, the logits of all old heads for its images are recorded. While it is learned, the old
heads must keep giving the same answers: the cross-entropy between both, softened by a temperature, is added to the
new task's loss. No old image is kept. Old heads are trained too. As in the paper, the new head alone is trained
first: the body does not change meanwhile, so one pass over the images serves for this and for the recorded logits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from skillmesh.numerics.arrays import spend
from skillmesh_challenge.baselines.data import BaselineTask, Batch, equal_batches
from skillmesh_challenge.baselines.trainer import Trainer

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.plain import Lwf


class WithoutForgetting(Trainer):
    """Adds a distillation loss that keeps the answers of old heads."""

    method: Lwf
    _recorded: torch.Tensor | None = None
    """Logits of all old heads, one row per image of the new task."""

    def before_task(self, task: BaselineTask) -> None:
        self._recorded = None
        old = list(self.network.heads)[:-1]
        if not old and not self.method.warm_up:
            return
        features = self._features(task.train.x)
        if old:
            with torch.no_grad():
                self._recorded = torch.cat([head(features) for head in old], dim=1)
            spend("forward", float(len(features)) * self.network.features * self._recorded.shape[1])
        self._warm_up(features, task.train.labels)

    def _features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of the images under the current body."""
        self.network.eval()
        with torch.no_grad(), self.autocast():
            parts = [self.network.body(batch).float() for batch in equal_batches(x)]
        spend("forward", float(len(x)) * self.network.macs[0])
        return torch.cat(parts)[: len(x)]

    def _warm_up(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        """Train the new head alone."""
        head, epochs, chance = self.network.heads[-1], self.method.warm_up, self.chance(self.known - 1, "warm-up")
        if not epochs:
            return
        optimiser = torch.optim.SGD(head.parameters(), lr=self.method.head_rate, momentum=self.method.momentum)
        schedule = self.schedule(optimiser, epochs * math.ceil(len(labels) / self.method.batch))
        for _ in range(epochs):
            order = torch.randperm(len(labels), generator=chance).to(self.device)
            for rows in torch.split(order, self.method.batch):
                optimiser.zero_grad(set_to_none=True)
                loss = nn.functional.cross_entropy(head(features[rows]), labels[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                if schedule is not None:
                    schedule.step()
        products = float(epochs) * len(labels) * self.network.features * self.network.spans[-1]
        spend("forward", products)
        spend("backward", products)  # for the weights alone: the features need no gradient

    def loss(self, batch: Batch) -> torch.Tensor:
        if self._recorded is None:
            return super().loss(batch)
        old = self._recorded.shape[1]
        logits = self.network.logits_of_all(batch.x)
        learned = nn.functional.cross_entropy(logits[:, old:], batch.labels)
        distilled = distillation(
            logits[:, :old], self._recorded[batch.rows], self.network.spans[:-1], self.method.temperature
        )
        return learned + self.method.strength * distilled

    def columns_trained(self) -> int:
        return sum(self.network.spans)

    def after_task(self, task: BaselineTask) -> None:
        self._recorded = None


def distillation(
    logits: torch.Tensor, recorded: torch.Tensor, spans: list[int], temperature: float
) -> torch.Tensor:
    """Return the cross-entropy of softened and recorded answers, summed over heads and averaged over images."""
    now, before = logits.float() / temperature, recorded / temperature
    pairs = zip(torch.split(now, spans, dim=1), torch.split(before, spans, dim=1), strict=True)
    losses = [nn.functional.cross_entropy(new, old.softmax(dim=1)) for new, old in pairs]
    return torch.stack(losses).sum()
