"""Synaptic intelligence (Zenke et al. 2017): importance is a weight's share in lowering the loss.

While a task is learned, each step lowers the loss by about −gradient · step, a sum with one term per weight. Added
up along the path, the terms measure each weight's contribution; divided by the squared distance that the weight
moved, they are the curvature of a parabola with the same decrease. No image is processed again after the task.
Gradients come from batches, so their noise counts as contribution too, as the paper notes and accepts.

A weight that moved against the loss has a negative contribution. As in the paper, the sum over tasks includes it;
a negative sum gives no penalty where it is used. (The authors' own code sets such a sum to zero after every task.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skillmesh.numerics.arrays import spend
from skillmesh_challenge.baselines.data import BaselineTask
from skillmesh_challenge.baselines.importance import RegularisedLearner, Tensors, elements

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.regularised import Si as Settings


class SiLearner(RegularisedLearner):
    """Accumulates importances during every training step."""

    method: Settings

    def before_task(self, task: BaselineTask) -> None:
        super().before_task(task)
        self._start = self.copies()
        self.work: Tensors = [torch.zeros_like(weight) for weight in self.weights]
        """Contribution of each weight to the decrease of the newest task's loss."""
        self._before, self._gradients = self.copies(), self.copies()

    def after_backward(self) -> None:
        """Record the gradients before the penalty is added: its contribution is not the task's."""
        with torch.no_grad():
            torch._foreach_copy_(self._gradients, self.gradients())
            torch._foreach_copy_(self._before, self.weights)
        super().after_backward()

    def after_step(self) -> None:
        with torch.no_grad():
            steps = torch._foreach_sub(self.weights, self._before)
            torch._foreach_addcmul_(self.work, self._gradients, steps, value=-1)
        spend("importance", float(elements(self.weights)))

    def after_task(self, task: BaselineTask) -> None:
        with torch.no_grad():
            moved = torch._foreach_sub(self.weights, self._start)
        squares = torch._foreach_add(torch._foreach_mul(moved, moved), self.method.damping)
        gained = torch._foreach_div(self.work, squares)
        spend("importance", 2.0 * elements(self.weights))
        self.importance = list(torch._foreach_add(gained, self.importance) if self.importance else gained)
        del self._start, self._before, self._gradients
