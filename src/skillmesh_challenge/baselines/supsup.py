"""SupSup (Wortsman et al. 2020): the weights never change, each task learns which of them to use.

Edge-popup (Ramanujan et al. 2020) learns the mask: every weight has a score, those with the largest scores of a
layer are in, and the gradient passes straight through that choice, so that a weight that is out can come in again.
Scores are thrown away when a task is learned. What stays is a bit per weight, so nothing can be forgotten.

From a random start the weights are ±1 times Kaiming's deviation, drawn from the seed, which alone is counted:
eight bytes. From the pretrained start they are the backbone that all agents share, not counted, as ours is not;
there scores begin at the weights' sizes, so that the first mask keeps the largest. Norms do not learn scales, but
each task has statistics of its own, as in SupSup's code, and as everywhere here each task has its own head.

Where the label is withheld, a task is told by how sure its network is: see telling.py.

`supsup-parallel` is the same learner. Tasks do not depend on each other, so agents can learn theirs side by side
and send masks, statistics and heads. Here they are learned one after another in one process, with the same
results, MACs and bytes, and each task counts for the agent that it was given to. Only times are of one process.
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
from skillmesh_challenge.baselines.data import BaselineTask, in_equal_batches
from skillmesh_challenge.baselines.isolation import Isolated
from skillmesh_challenge.baselines.learner import LearnerAnswers
from skillmesh_challenge.baselines.network import bytes_of, layers_of
from skillmesh_challenge.baselines.telling import Parts, averaged, entropy, named, slopes

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.isolating import Supsup as Settings

SEED_BYTES = 8


class TopShare(torch.autograd.Function):
    """1 for the largest share of scores, 0 for others; backwards as if it were not there."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, share: float) -> torch.Tensor:
        """Scores that equal the largest one left out are out too, which random numbers hardly ever do."""
        out = round((1 - share) * scores.numel())
        if out == 0:
            return torch.ones_like(scores)
        flat = scores.flatten()
        # The same number either way: selecting is faster on a CPU, and on a GPU runs on a small part of it.
        last_out = flat.sort().values[out - 1] if flat.is_cuda else flat.kthvalue(out).values
        return (scores > last_out).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class Masked(nn.Module):
    """A mask on a layer's frozen weight: of scores while they are learned, else of bits."""

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
        """Forget scores and use this."""
        self.scores = None
        self.mask.copy_(mask.view_as(self.mask))


class SupsupLearner(Isolated):
    """Learns masks; keeps them as bits."""

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
        """Kaiming's deviation for what a mask leaves of the inputs, with a random sign."""
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

    def take_shape(self, position: int) -> None:
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
        """Every weight was multiplied with its mask, and backwards the gradient with the weight."""
        spend("masks", 2.0 * sum(mask.mask.numel() for mask in self._masks))

    def after_task(self, task: BaselineTask) -> None:
        super().after_task(task)
        flat = torch.cat([mask.chosen().detach().flatten() for mask in self._masks])
        self._bits.append(torch.from_numpy(np.packbits(flat.bool().cpu().numpy())))
        self.take_shape(self.known - 1)

    def masks(self, position: int) -> Iterator[torch.Tensor]:
        """Of one task, layer by layer, as numbers."""
        sizes = [mask.mask.numel() for mask in self._masks]
        flat = np.unpackbits(self._bits[position].numpy(), count=sum(sizes))
        return iter(torch.split(torch.from_numpy(flat).to(self.device), sizes))

    # Answering.

    def withheld(self, x: torch.Tensor) -> LearnerAnswers:
        if self.method.telling == "one-shot":
            parts = [self._in_one_shot(some.to(self.device)) for some in in_equal_batches(x)]
            tasks = torch.cat(parts)[: len(x)]
        else:
            unsure = [entropy(self._logits(x, position)) for position in range(self.known)]
            tasks = torch.stack(unsure).argmin(dim=0)
        classes = torch.zeros_like(tasks)
        for position in range(self.known):
            if (rows := tasks == position).any():
                classes[rows] = self.given(x[rows], position)
        return LearnerAnswers(tasks, classes)

    def _in_one_shot(self, x: torch.Tensor) -> torch.Tensor:
        """The task of each image."""
        self.network.eval()
        body, buffers = self.network.body, [mask.mask for mask in self._masks]

        def mask_of(position: int) -> Parts:
            return named(body, buffers, list(self.masks(position)))

        statistics = averaged(named(body, self.own(), owned) for owned in self._owned)
        found = slopes(body, list(self.network.heads), x, mask_of, statistics)
        return torch.stack(list(found)).argmin(dim=0).cpu()

    # Keeping.

    def kept_bytes(self) -> dict[str, int]:
        seed = {"seed": SEED_BYTES} if self.method.start == "random" else {}
        return super().kept_bytes() | seed | {"masks": bytes_of(self._bits)}

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"bits": self._bits}

    def restore_own(self, own: dict[str, Any]) -> None:
        super().restore_own(own)
        self._bits = list(own["bits"])
