"""What EWC, SI and MAS share: some weights mattered for old tasks, and a spring holds each where it was.

The loss of a new task gets `strength / 2 · Σ importance · (weight − old weight)²` over the weights of the body (a
head belongs to one task: no other task moves it). The methods differ only in what they call important. The
spring's force is written down, not differentiated: it is added to the gradients of the loss.

A stiff spring is a trap for steps of a fixed length: where rate · strength · importance is above 1, a step goes
past the old weight, and above 2 further each time. So the papers' methods, with `steps = "plain"`, bear only
springs that are soft for the most important weight of all. With `steps = "steady"`, which is ours, a weight
whose product is above 1 takes steps shorter by that very factor: without momentum the spring alone brings it
back in one, with it in some that die down. Where the whole gradient vanishes stays the same: what is sought is
still the minimum of the loss above. Weights with softer springs move as by plain SGD, to the last bit.
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
    from skillmesh_challenge.baselines.settings.regularised import Pulled as Settings

Tensors = list[torch.Tensor]
"""One for each weight of the body, in their order."""
Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of an image's logits and a number that comes with the image."""

TINY = 1e-12
CHUNKS = {"cuda": 16, "cpu": 4}
"""Images whose gradients are in memory together, each as large as the body: a GPU wants many, a CPU few."""


class Pull:
    """A spring on each weight."""

    def __init__(self, importance: Tensors, old: Tensors, strength: float) -> None:
        self._old = old
        self._stiffness = torch._foreach_mul(importance, strength)
        torch._foreach_clamp_min_(self._stiffness, 0.0)  # SI's importances can be negative: no spring pushes
        spend("penalty", float(elements(old)))

    def add(self, weights: Tensors, gradients: Tensors) -> None:
        """Add the force to the gradients, in place."""
        torch._foreach_addcmul_(gradients, self._stiffness, torch._foreach_sub(weights, self._old))
        spend("penalty", float(elements(weights)))


class SteadyPull(Pull):
    """A spring on each weight, and shorter steps where it is stiff."""

    def __init__(self, importance: Tensors, old: Tensors, strength: float, rate: float) -> None:
        """`rate` is the highest that the optimiser will use."""
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


class PulledLearner(Trainer):
    """Keeps an importance of every weight, and holds the weights where the last task left them."""

    method: Settings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weights: Tensors = list(self.network.shared().values())
        self.importance: Tensors = []
        """Of all tasks so far; empty before the first."""
        self._pull: Pull | None = None

    def springs(self) -> tuple[Tensors, Tensors]:
        """Importances of all old tasks together, and the weights that they pull to."""
        return self.importance, self.copies()

    def before_task(self, task: BaselineTask) -> None:
        self._pull = None
        if self.known > 1:
            springs = (*self.springs(), self.method.strength)
            steady = self.method.steps == "steady"
            self._pull = SteadyPull(*springs, self.method.rate) if steady else Pull(*springs)

    def after_backward(self) -> None:
        if self._pull is not None:
            with torch.no_grad():
                self._pull.add(self.weights, self.gradients())

    def gradients(self) -> Tensors:
        """Of the weights, as the optimiser will find them."""
        for weight in self.weights:
            if weight.grad is None:  # a part of the body that the loss does not reach
                weight.grad = torch.zeros_like(weight)
        return [weight.grad for weight in self.weights if weight.grad is not None]

    def copies(self) -> Tensors:
        return [weight.detach().clone() for weight in self.weights]

    def image_by_image(
        self,
        examples: BaselineExamples,
        score: Score,
        beside: torch.Tensor,
        size: Callable[[torch.Tensor], torch.Tensor],
    ) -> Tensors:
        """The mean over images of the size of each image's own gradient of its score under the newest head."""
        position = self.known - 1
        weights = {f"body.{name}": weight.detach() for name, weight in self.network.shared().items()}

        def of_one(weights: dict[str, torch.Tensor], image: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            return score(functional_call(self.network, weights, (image[None], position))[0], number)

        each = vmap(grad(of_one), in_dims=(None, 0, 0))
        mean = [torch.zeros_like(weight) for weight in weights.values()]
        with torch.no_grad(), warnings.catch_warnings():  # no_grad: nothing is differentiated twice
            warnings.filterwarnings("ignore", "There is a performance drop")  # of pooling, too small to matter
            for images, numbers in zip(
                torch.split(examples.x, self._chunk), torch.split(beside, self._chunk), strict=True
            ):
                gradients = each(weights, images, numbers)
                torch._foreach_add_(mean, [size(gradient).sum(0) for gradient in gradients.values()])
        torch._foreach_div_(mean, len(examples))
        self._spend_images(len(examples))
        return mean

    def _spend_images(self, images: int) -> None:
        """Passes forwards and backwards; to the head's own weights no gradient is needed."""
        forward, back = self.network.macs
        head = self.network.features * self.network.spans[-1]
        spend("importance", float(images) * (forward + back + 2 * head))

    def some(self, examples: BaselineExamples, most: int) -> BaselineExamples:
        """At most so many, drawn by the seed; in whole chunks, where there are enough for one."""
        order = torch.randperm(len(examples), generator=self.chance(self.known - 1, "importance"))
        count, chunk = min(most, len(examples)), self._chunk
        return examples[order[: count - count % chunk if count > chunk else count].to(self.device)]

    @property
    def _chunk(self) -> int:
        return CHUNKS.get(self.device.type, CHUNKS["cpu"])

    def kept_bytes(self) -> dict[str, int]:
        """The old weights are those that the network has when the next task begins."""
        return super().kept_bytes() | {"importance": bytes_of(self.importance)}

    def own_state(self) -> dict[str, Any]:
        return {"importance": self.importance}

    def restore_own(self, own: dict[str, Any]) -> None:
        self.importance = self.here(own["importance"])

    def here(self, tensors: Tensors) -> Tensors:
        return [tensor.to(self.device) for tensor in tensors]


def elements(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors)
