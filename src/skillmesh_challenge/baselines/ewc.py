"""Elastic weight consolidation: the importance of a weight is its Fisher information.

After a task, the log-likelihood of its answers is nearly quadratic around the learned weights, with the Fisher
information as curvature: a weight that changes the answers much, in either direction, gets a strong penalty. EWC
(Kirkpatrick et al. 2017) keeps one quadratic per task; they add up to a single one, which is recomputed when a
task begins. Online EWC (Schwarz et al. 2018) keeps one around the newest weights and lets old tasks decay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from skillmesh.numerics.arrays import spend
from skillmesh_challenge.baselines.data import BaselineTask
from skillmesh_challenge.baselines.importance import RegularisedLearner, Tensors, elements
from skillmesh_challenge.baselines.network import bytes_of

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.regularised import Ewc as EwcSettings
    from skillmesh_challenge.baselines.settings.regularised import EwcOnline as EwcOnlineSettings


class FisherLearner(RegularisedLearner):
    """Common base of EWC and Online EWC."""

    method: EwcSettings

    def fisher(self, task: BaselineTask) -> Tensors:
        """Return the diagonal Fisher information: the mean over images of the squared log-likelihood gradient."""
        examples = self.sample(task.train, self.method.fisher_images)
        if self.method.fisher == "empirical":
            fisher = self.mean_over_images(examples, _label_loss, examples.labels, torch.square)
        else:
            chance = torch.rand(len(examples), generator=self.chance(self.known - 1, "answers")).to(self.device)
            fisher = self.mean_over_images(examples, _sampled_label_loss, chance, torch.square)
        spend("importance", float(len(examples)) * elements(self.weights))
        return fisher


def _label_loss(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits, label)


def _sampled_label_loss(logits: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Return the loss of a class that is sampled from the network's own predictions, not of the true class."""
    below = logits.detach().softmax(0).cumsum(0) <= chance
    return _label_loss(logits, below.sum().clamp_max(len(logits) - 1))


class EwcLearner(FisherLearner):
    """Keeps, for every task, its Fisher information and the weights at which it was measured."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fishers: list[Tensors] = []
        self.old: list[Tensors] = []

    def after_task(self, task: BaselineTask) -> None:
        self.fishers.append(self.fisher(task))
        self.old.append(self.copies())

    def penalty_terms(self) -> tuple[Tensors, Tensors]:
        """Add the tasks' quadratics: the importances' sum, around the old weights' importance-weighted mean."""
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
        self.fishers, self.old = ([self.on_device(part) for part in own[name]] for name in ("fishers", "old"))


class EwcOnlineLearner(FisherLearner):
    """Keeps one running Fisher information, around the newest weights."""

    method: EwcOnlineSettings

    def after_task(self, task: BaselineTask) -> None:
        fisher = self.fisher(task)
        if self.importance:
            torch._foreach_add_(fisher, self.importance, alpha=self.method.decay)
            spend("importance", float(elements(self.weights)))
        self.importance = fisher
