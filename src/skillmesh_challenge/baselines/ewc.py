"""Elastic weight consolidation: a weight is as important as its Fisher information.

After a task the log-likelihood of its answers is nearly a parabola around the learned weights. The Fisher
information says how narrow: a weight that changes the answers much, whichever way, is held hard. EWC (Kirkpatrick
et al. 2017) keeps a parabola for every task; they add up to one, which is made anew when a task begins. Online EWC
(Schwarz et al. 2018) keeps a single one around the newest weights and lets old tasks fade.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from skillmesh.numerics.arrays import spend
from skillmesh_challenge.baselines.data import BaselineTask
from skillmesh_challenge.baselines.importance import PulledLearner, Tensors, elements
from skillmesh_challenge.baselines.network import bytes_of

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.regularised import Ewc as EwcSettings
    from skillmesh_challenge.baselines.settings.regularised import EwcOnline as EwcOnlineSettings


class Fishing(PulledLearner):
    """What both have in common."""

    method: EwcSettings

    def fisher(self, task: BaselineTask) -> Tensors:
        """The diagonal: the mean square of the gradient of an answer's log-likelihood, image by image."""
        examples = self.some(task.train, self.method.fisher_images)
        if self.method.fisher == "empirical":
            found = self.image_by_image(examples, _of_label, examples.labels, torch.square)
        else:
            chance = torch.rand(len(examples), generator=self.chance(self.known - 1, "answers")).to(self.device)
            found = self.image_by_image(examples, _of_answer, chance, torch.square)
        spend("importance", float(len(examples)) * elements(self.weights))
        return found


def _of_label(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, label)


def _of_answer(logits: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Of a class that the network draws by its own likelihoods, not of the true one."""
    below = logits.detach().softmax(0).cumsum(0) <= chance
    return _of_label(logits, below.sum().clamp_max(len(logits) - 1))


class EwcLearner(Fishing):
    """A Fisher information and the weights around which it was taken, for every task."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fishers: list[Tensors] = []
        self.old: list[Tensors] = []

    def after_task(self, task: BaselineTask) -> None:
        self.fishers.append(self.fisher(task))
        self.old.append(self.copies())

    def springs(self) -> tuple[Tensors, Tensors]:
        """Springs on one weight pull like a single one: their sum, to their mean weighted by importance."""
        total = [torch.zeros_like(weight) for weight in self.weights]
        middle = self.copies()
        for fisher, old in zip(self.fishers, self.old, strict=True):
            torch._foreach_add_(total, fisher)
            tiny = torch.finfo(total[0].dtype).tiny
            share = torch._foreach_div(fisher, torch._foreach_clamp_min(total, tiny))
            torch._foreach_lerp_(middle, old, share)
            spend("penalty", 2.0 * elements(self.weights))
        return total, middle

    def kept_bytes(self) -> dict[str, int]:
        return super().kept_bytes() | {
            "importance": sum(map(bytes_of, self.fishers)),
            "old weights": sum(map(bytes_of, self.old)),
        }

    def own_state(self) -> dict[str, Any]:
        return {"fishers": self.fishers, "old": self.old}

    def restore_own(self, own: dict[str, Any]) -> None:
        self.fishers, self.old = ([self.here(one) for one in own[name]] for name in ("fishers", "old"))


class EwcOnlineLearner(Fishing):
    """A running Fisher information, around the newest weights."""

    method: EwcOnlineSettings

    def after_task(self, task: BaselineTask) -> None:
        fisher = self.fisher(task)
        if self.importance:
            torch._foreach_add_(fisher, self.importance, alpha=self.method.decay)
            spend("importance", float(elements(self.weights)))
        self.importance = fisher
