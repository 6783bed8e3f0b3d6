"""Memory aware synapses (Aljundi et al. 2018): importance is the sensitivity of the answers to a weight.

The importance of a weight is the absolute gradient of the squared norm of an image's logits, averaged over images.
It needs neither labels nor a loss. Importances of all tasks are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skillmesh_challenge.baselines.data import BaselineTask
from skillmesh_challenge.baselines.importance import RegularisedLearner

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.regularised import Mas as Settings


class MasLearner(RegularisedLearner):
    """Measures after each task how sensitive the logits are to every weight."""

    method: Settings

    def after_task(self, task: BaselineTask) -> None:
        examples = self.sample(task.train, self.method.answer_images)
        importance = self.mean_over_images(examples, _squared_norm, examples.labels, torch.abs)
        if self.importance:
            torch._foreach_add_(importance, self.importance)
        self.importance = importance


def _squared_norm(logits: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return logits.square().sum()
