"""The quadratic regularisation penalty of EWC, SI and MAS, which keeps important weights near their old values.

The penalty `strength / 2 · Σ importance · (weight − old weight)²` over the body's weights is added to the loss of
a new task. (A head belongs to one task: no other task changes it.) The methods differ only in how they measure
importance. The penalty's gradient is not found by autograd: its formula is added to the gradients of the loss.

A large penalty makes steps of a fixed length unstable: where rate · strength · importance is above 1, a step
overshoots the old weight, and above 2 the weight diverges. So the published methods, with `steps = "plain"`, work
only with strengths that are small enough for the most important weight. With `steps = "steady"`, which is ours, a
weight whose product is above 1 takes steps that are shorter by that factor. The penalty alone then returns it to
the old weight in one step without momentum, and in several decaying steps with momentum. The minimum of the loss
stays the same, because the whole gradient vanishes at the same weights. Weights with a product of 1 or less move
exactly as with plain SGD, bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call, grad, vmap

from skillmesh.numerics.arrays import spend
from skillmesh_challenge.baselines.data import BaselineExamples, BaselineTask
from skillmesh_challenge.baselines.network import bytes_of
from skillmesh_challenge.baselines.trainer import Trainer

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings.regularised import Regularised as Settings

Tensors = list[torch.Tensor]
"""One tensor per weight of the body, in the order of the parameters."""
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function of an image's logits and one number that belongs to the image (its label, or a random number)."""

TINY = 1e-12
CHUNKS = {"cuda": 16, "cpu": 4}
"""Number of images whose gradients, each as large as the body, are in memory at once: many on GPU, few on CPU."""


class QuadraticPenalty:
    """The gradient of the quadratic penalty on each weight."""

    def __init__(self, importance: Tensors, old: Tensors, strength: float) -> None:
        self._old = old
        self._stiffness = torch._foreach_mul(importance, strength)
        torch._foreach_clamp_min_(self._stiffness, 0.0)  # SI's importances can be negative: they give no penalty
        spend("penalty", float(elements(old)))

    def add(self, weights: Tensors, gradients: Tensors) -> None:
        """Add the penalty's gradient to `gradients`, in place."""
        torch._foreach_addcmul_(gradients, self._stiffness, torch._foreach_sub(weights, self._old))
        spend("penalty", float(elements(weights)))


class SteadyPenalty(QuadraticPenalty):
    """A quadratic penalty, with shorter steps for weights whose penalty is too large for the learning rate."""

    def __init__(self, importance: Tensors, old: Tensors, strength: float, rate: float) -> None:
        """Prepare the penalty; `rate` is the highest learning rate that the optimiser will use."""
        super().__init__(importance, old, strength)
        self._shorter = torch._foreach_reciprocal(
            torch._foreach_clamp_min(torch._foreach_mul(self._stiffness, rate), 1.0)
        )
        torch._foreach_clamp_max_(self._stiffness, 1 / max(rate, TINY))
        spend("penalty", 2.0 * elements(old))

    def add(self, weights: Tensors, gradients: Tensors) -> None:
        torch._foreach_mul_(gradients, self._shorter)
        super().add(weights, gradients)
        spend("penalty", float(elements(weights)))


class RegularisedLearner(Trainer):
    """Keeps an importance of every weight, and penalises changes from the weights after the last task."""

    method: Settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weights: Tensors = list(self.network.shared().values())
        self.importance: Tensors = []
        """Importance of every weight over all tasks so far; empty before the first."""
        self._penalty: QuadraticPenalty | None = None

    def penalty_terms(self) -> tuple[Tensors, Tensors]:
        """Return the importances over all old tasks, and the weights around which the penalty is centred."""
        return self.importance, self.copies()

    def before_task(self, task: BaselineTask) -> None:
        self._penalty = None
        if self.known > 1:
            terms = (*self.penalty_terms(), self.method.strength)
            steady = self.method.steps == "steady"
            self._penalty = SteadyPenalty(*terms, self.method.rate) if steady else QuadraticPenalty(*terms)

    def after_backward(self) -> None:
        if self._penalty is not None:
            with torch.no_grad():
                self._penalty.add(self.weights, self.gradients())

    def gradients(self) -> Tensors:
        """Return the gradients of the weights that the optimiser will use."""
        for weight in self.weights:
            if weight.grad is None:  # a part of the body that the loss does not depend on
                weight.grad = torch.zeros_like(weight)
        return [weight.grad for weight in self.weights if weight.grad is not None]

    def copies(self) -> Tensors:
        return [weight.detach().clone() for weight in self.weights]

    def mean_over_images(
        self,
        examples: BaselineExamples,
        score: Score,
        beside: torch.Tensor,
        size: Callable[[torch.Tensor], torch.Tensor],
    ) -> Tensors:
        """Return the mean, over images, of `size` of the gradient of an image's score under the newest head."""
        position = self.known - 1
        weights = {f"body.{name}": weight.detach() for name, weight in self.network.shared().items()}

        def scored(weights: dict[str, torch.Tensor], image: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            return score(functional_call(self.network, weights, (image[None], position))[0], number)

        gradients_of = vmap(grad(scored), in_dims=(None, 0, 0))
        mean = [torch.zeros_like(weight) for weight in weights.values()]
        with torch.no_grad(), warnings.catch_warnings():  # no second derivatives are needed
            warnings.filterwarnings("ignore", "There is a performance drop")  # of pooling: too small to matter
            for images, numbers in zip(
                torch.split(examples.x, self._chunk), torch.split(beside, self._chunk), strict=True
            ):
                gradients = gradients_of(weights, images, numbers)
                torch._foreach_add_(mean, [size(gradient).sum(0) for gradient in gradients.values()])
        torch._foreach_div_(mean, len(examples))
        self._spend_images(len(examples))
        return mean

    def _spend_images(self, images: int) -> None:
        """Count forward and backward passes; the head's own weights need no gradient."""
        forward, back = self.network.macs
        head = self.network.features * self.network.spans[-1]
        spend("importance", float(images) * (forward + back + 2 * head))

    def sample(self, examples: BaselineExamples, most: int) -> BaselineExamples:
        """Return at most `most` examples, drawn by the seed; whole chunks, if there are enough for one."""
        order = torch.randperm(len(examples), generator=self.chance(self.known - 1, "importance"))
        count, chunk = min(most, len(examples)), self._chunk
        return examples[order[: count - count % chunk if count > chunk else count].to(self.device)]

    @property
    def _chunk(self) -> int:
        return CHUNKS.get(self.device.type, CHUNKS["cpu"])

    def kept_bytes(self) -> dict[str, int]:
        """Count the importances too; the old weights are those of the network when the next task begins."""
        return super().kept_bytes() | {"importance": bytes_of(self.importance)}

    def own_state(self) -> dict[str, Any]:
        return {"importance": self.importance}

    def restore_own(self, own: dict[str, Any]) -> None:
        self.importance = self.on_device(own["importance"])

    def on_device(self, tensors: Tensors) -> Tensors:
        return [tensor.to(self.device) for tensor in tensors]


def elements(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors)
