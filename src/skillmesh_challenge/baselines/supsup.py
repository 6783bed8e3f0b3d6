"""SupSup (Wortsman et al. 2020): the weights never change; each task learns a mask that selects some of them.

Edge-popup (Ramanujan et al. 2020) learns the mask: every weight has a score, and the mask keeps the weights with
the largest scores of a layer. The gradient passes straight through that choice, so a weight that is masked out can
return. Scores are discarded when a task is learned; a bit per weight remains, so nothing can be forgotten.

With a random start the weights are ±1 times Kaiming's standard deviation, drawn from the seed; only the seed is
counted: eight bytes. With the pretrained start they are the backbone that all agents share, which is not counted,
as for our method. Its scores begin as the weights' absolute values, so the first mask keeps the largest weights.
Batch norms learn no scales, but each task has its own statistics, as in SupSup's code, and its own head.

If the task label is withheld, the task whose network is most certain is chosen: see task_inference.py.

`supsup-parallel` is the same learner. Tasks do not depend on each other, so agents can learn theirs in parallel
and send masks, statistics and heads. This code learns them one after another in one process, with the same
results, MACs and bytes, and counts each task for the agent it was assigned to. Only the times are of one process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from skillmesh.numerics.arrays import spend
from skillmesh_challenge.baselines.data import BaselineTask, equal_batches
from skillmesh_challenge.baselines.isolation import Isolated
from skillmesh_challenge.baselines.learner import LearnerAnswers
from skillmesh_challenge.baselines.network import bytes_of, layers_of
from skillmesh_challenge.baselines.task_inference import Parts, averaged, entropy, named, slopes

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.isolating import Supsup as Settings

SEED_BYTES = 8


class TopShare(torch.autograd.Function):
    """Return 1 for the largest share of scores and 0 for the others; the gradient passes through unchanged."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, share: float) -> torch.Tensor:
        """Return the mask. Scores that tie with the largest dropped one are dropped too: rare if random."""
        dropped = round((1 - share) * scores.numel())
        if dropped == 0:
            return torch.ones_like(scores)
        flat = scores.flatten()
        # Both give the same number: kthvalue is faster on a CPU, but uses only a small part of a GPU.
        threshold = flat.sort().values[dropped - 1] if flat.is_cuda else flat.kthvalue(dropped).values
        return (scores > threshold).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class Masked(nn.Module):
    """A mask on a layer's frozen weight: from scores while they are learned, afterwards from stored bits."""

    mask: torch.Tensor

    def __init__(self, weight: torch.Tensor, share: float) -> None:
        super().__init__()
        self._share = share
        self.scores: nn.Parameter | None = None
        self.register_buffer("mask", torch.ones_like(weight), persistent=False)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * (self.mask if self.scores is None else self.chosen())

    def chosen(self) -> torch.Tensor:
        assert self.scores is not None
        mask: torch.Tensor = TopShare.apply(self.scores.abs(), self._share)  # type: ignore[no-untyped-call]
        return mask

    def learn(self, scores: torch.Tensor) -> None:
        self.scores = nn.Parameter(scores)

    def settle(self, mask: torch.Tensor) -> None:
        """Discard the scores and use this mask."""
        self.scores = None
        self.mask.copy_(mask.view_as(self.mask))


class SupsupLearner(Isolated):
    """Learns one mask per task, and keeps the masks as bits."""

    method: Settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.network.body.requires_grad_(False)
        if self.method.start == "random":
            self._draw_weights()
        self._masks: list[Masked] = []
        self._bits: list[torch.Tensor] = []
        for layer in layers_of(self.network.body).values():
            self._masks.append(Masked(layer.weight.detach(), self.method.share))
            parametrize.register_parametrization(layer, "weight", self._masks[-1])
        self.begin()

    def _draw_weights(self) -> None:
        """Set each weight to Kaiming's deviation for the inputs that a mask keeps, with a random sign."""
        chance = self.chance(0, "weights")
        for layer in layers_of(self.network.body).values():
            deviation = math.sqrt(2 / (self.method.share * layer.weight[0].numel()))
            signs = torch.randint(0, 2, layer.weight.shape, generator=chance).float().mul(2).sub(1)
            layer.weight.copy_(signs * deviation)

    # Learning.

    def trainable(self) -> list[dict[str, Any]]:
        scores = [mask.scores for mask in self._masks]
        return [
            {"params": scores, "lr": self.method.rate},
            {"params": list(self.network.heads[-1].parameters()), "lr": self.method.head_rate},
        ]

    def switch_to(self, position: int) -> None:
        if position == len(self._bits):
            self._draw_scores(position)
            return
        for mask, values in zip(self._masks, self.masks(position), strict=True):
            mask.settle(values)

    def _draw_scores(self, position: int) -> None:
        chance = self.chance(position, "scores")
        for mask, layer in zip(self._masks, layers_of(self.network.body).values(), strict=True):
            weight: torch.Tensor = layer.parametrizations.weight.original  # type: ignore[union-attr, assignment]
            scores = weight.abs()
            if self.method.start == "random":  # as both papers' code draws them: Kaiming, uniform, slope √5
                bound = 1 / math.sqrt(weight[0].numel())
                scores.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=chance))
            mask.learn(scores)

    def after_step(self) -> None:
        """Count two products per weight: with its mask, and in the backward pass with the gradient."""
        spend("masks", 2.0 * sum(mask.mask.numel() for mask in self._masks))

    def after_task(self, task: BaselineTask) -> None:
        super().after_task(task)
        flat = torch.cat([mask.chosen().detach().flatten() for mask in self._masks])
        self._bits.append(torch.from_numpy(np.packbits(flat.bool().cpu().numpy())))
        self.switch_to(self.known - 1)

    def masks(self, position: int) -> Iterator[torch.Tensor]:
        """Return the masks of one task, one tensor of 0 and 1 per layer."""
        sizes = [mask.mask.numel() for mask in self._masks]
        flat = np.unpackbits(self._bits[position].numpy(), count=sum(sizes))
        return iter(torch.split(torch.from_numpy(flat).to(self.device), sizes))

    # Answering.

    def withheld(self, x: torch.Tensor) -> LearnerAnswers:
        if self.method.telling == "one-shot":
            parts = [self._in_one_shot(batch.to(self.device)) for batch in equal_batches(x)]
            tasks = torch.cat(parts)[: len(x)]
        else:
            entropies = [entropy(self._logits(x, position)) for position in range(self.known)]
            tasks = torch.stack(entropies).argmin(dim=0)
        classes = torch.zeros_like(tasks)
        for position in range(self.known):
            if (rows := tasks == position).any():
                classes[rows] = self.given(x[rows], position)
        return LearnerAnswers(tasks, classes)

    def _in_one_shot(self, x: torch.Tensor) -> torch.Tensor:
        """Return the task of each image by the one-shot method."""
        self.network.eval()
        body, buffers = self.network.body, [mask.mask for mask in self._masks]

        def mask_of(position: int) -> Parts:
            return named(body, buffers, list(self.masks(position)))

        statistics = averaged(named(body, self.own(), owned) for owned in self._owned)
        derivatives = slopes(body, list(self.network.heads), x, mask_of, statistics)
        return torch.stack(list(derivatives)).argmin(dim=0).cpu()

    # Saving.

    def kept_bytes(self) -> dict[str, int]:
        seed = {"seed": SEED_BYTES} if self.method.start == "random" else {}
        return super().kept_bytes() | seed | {"masks": bytes_of(self._bits)}

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"bits": self._bits}

    def restore_own(self, own: dict[str, Any]) -> None:
        super().restore_own(own)
        self._bits = list(own["bits"])
