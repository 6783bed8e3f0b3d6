"""Memory aware synapses (Aljundi et al. 2018): a weight is as important as the answers are sensitive to it.

How much would the length of the answer change if the weight did? That asks for no label and no loss, only for the
gradient of the squared norm of an image's logits; its size, averaged over images, is the importance. Importances
of all tasks are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from skillmesh_challenge.baselines.data import BaselineTask
from skillmesh_challenge.baselines.importance import PulledLearner

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.regularised import Mas as Settings


class MasLearner(PulledLearner):
    """Looks at its own answers after a task."""

    method: Settings

    def after_task(self, task: BaselineTask) -> None:
        examples = self.some(task.train, self.method.answer_images)
        found = self.image_by_image(examples, _length, examples.labels, torch.abs)
        if self.importance:
            torch._foreach_add_(found, self.importance)
        self.importance = found


def _length(logits: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return logits.square().sum()
