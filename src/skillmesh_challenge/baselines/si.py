"""Synaptic intelligence (Zenke et al. 2017): a weight is as important as the fall of the loss that it brought.

While a task is learned, each step lowers the loss by about −gradient · step, and that sum has one part for every
weight. Added up along the path, the parts say who did the work; over the square of the way that the weight went,
they are the curvature of a parabola that falls as much. No image is looked at again after the task.
Gradients are of a batch, so that their noise counts as work, too; the paper says so, and lives with it.

A weight that went against the loss has a negative part. The paper's sum over tasks has it as it is, and so has
ours; a spring never pushes, so a sum below zero counts as none where it is used. (The authors' own code sets such
a sum to zero after every task.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skillmesh.numerics.arrays import spend
from skillmesh_challenge.baselines.data import BaselineTask
from skillmesh_challenge.baselines.importance import PulledLearner, Tensors, elements

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.regularised import Si as Settings


class SiLearner(PulledLearner):
    """Watches every step."""

    method: Settings

    def before_task(self, task: BaselineTask) -> None:
        super().before_task(task)
        self._start = self.copies()
        self.work: Tensors = [torch.zeros_like(weight) for weight in self.weights]
        """What each weight did for the loss of the newest task."""
        self._before, self._gradients = self.copies(), self.copies()

    def after_backward(self) -> None:
        """Look before the springs pull: their work is not the task's."""
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
            ways = torch._foreach_sub(self.weights, self._start)
        squares = torch._foreach_add(torch._foreach_mul(ways, ways), self.method.damping)
        gained = torch._foreach_div(self.work, squares)
        spend("importance", 2.0 * elements(self.weights))
        self.importance = list(torch._foreach_add(gained, self.importance) if self.importance else gained)
        del self._start, self._before, self._gradients
