"""The sequential trainer. By itself it is naive fine-tuning; methods override a few of its steps."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from skillmesh.backbone.torch_network import usable_device
from skillmesh.numerics.arrays import spend
from skillmesh_challenge.baselines.data import (
    BaselineExamples,
    BaselineTask,
    Batch,
    decoded_task,
    equal_batches,
)
from skillmesh_challenge.baselines.learner import LearnerAnswers
from skillmesh_challenge.baselines.network import TaskNetwork, build_body, bytes_of

if TYPE_CHECKING:
    from skillmesh.data.folder import TaskImages
    from skillmesh.numerics.process import Progress
    from skillmesh_challenge.baselines.settings import TrainedSettings
    from skillmesh_challenge.stage import Stage


class Trainer:
    """Trains one network on one task after another."""

    def __init__(
        self, network: TaskNetwork, method: TrainedSettings, seed: int, stage: Stage | None = None
    ) -> None:
        self.network, self.method, self.seed = network, method, seed
        self.device = next(network.parameters()).device
        self._stage = stage

    @classmethod
    def of(cls, method: TrainedSettings, stage: Stage) -> Self:
        body = build_body(method, stage.settings.seed).to(usable_device(stage.device))
        network = TaskNetwork(body, body.example(), frozen_norms=method.norms == "frozen")
        return cls(network, method, stage.settings.seed, stage)

    @property
    def known(self) -> int:
        """Number of tasks begun so far."""
        return len(self.network.heads)

    def see(self, folder: TaskImages, progress: Progress | None) -> BaselineTask:
        assert self._stage is not None
        return decoded_task(folder, self.network.body.size, self._stage.cache_folder)  # type: ignore[arg-type]

    # Overridden by methods.

    def before_task(self, task: BaselineTask) -> None:
        """Prepare for a task before it is learned; its head already exists."""

    def examples(self, task: BaselineTask, before: Sequence[BaselineTask]) -> Batch:
        """Return all training images of one epoch."""
        return self.labelled(task.train, self.known - 1)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the loss to minimise."""
        return nn.functional.cross_entropy(self.network(batch.x, self.known - 1), batch.labels)

    def after_backward(self) -> None:
        """Inspect or change the gradients of the loss before a step."""

    def after_step(self) -> None:
        """Inspect the weights after a step."""

    def after_task(self, task: BaselineTask) -> None:
        """Store what later tasks will need of this task."""

    def trainable(self) -> list[dict[str, Any]]:
        """Return the optimiser's parameter groups with their learning rates."""
        return [
            {"params": list(self.network.shared().values()), "lr": self.method.rate},
            {"params": list(self.network.heads.parameters()), "lr": self.method.head_rate},
        ]

    def batches(self, examples: Batch, chance: torch.Generator) -> Iterator[Batch]:
        """Yield the batch of each step, for all epochs. All have the same size; the last is filled up.

        A GPU plans its kernels again for every new size, which takes longer than many steps.
        """
        count, batch, steps = len(examples.labels), self.method.batch, self._steps(len(examples.labels))
        orders = [torch.randperm(count, generator=chance) for _ in range(math.ceil(steps * batch / count))]
        for rows in torch.cat(orders)[: steps * batch].view(steps, batch).to(self.device):
            yield Batch(examples.x[rows], examples.labels[rows], examples.tasks[rows], rows)

    def columns_trained(self) -> int:
        """Return the number of classes, over all heads that a training image runs through."""
        return self.network.spans[-1]

    # Learning.

    def learn(self, task: BaselineTask, before: Sequence[BaselineTask]) -> None:
        position = self.known
        self.network.add_head(task.classes, self.chance(position, "head"))
        task = BaselineTask(task.name, task.classes, task.train.to(self.device), task.test)
        self.before_task(task)
        self._train(self.examples(task, before), self.chance(position, "order"))
        self.network.eval()
        self.after_task(task)

    def chance(self, position: int, what: str) -> torch.Generator:
        """Return a generator that depends only on seed, task and purpose, so resumed runs draw the same."""
        digest = hashlib.sha256(f"{self.seed} {position} {what}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def autocast(self) -> torch.autocast:
        """Return a context that uses half precision on a GPU."""
        return torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda")

    def labelled(self, examples: BaselineExamples, position: int) -> Batch:
        tasks = torch.full_like(examples.labels, position)
        return Batch(examples.x, examples.labels, tasks)

    def mixed_loss(self, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy of a batch of several tasks, each image over the classes of its own task."""
        logits = self.network.logits_of_all(batch.x)
        task_of_column, first_columns = self.network.columns
        other = task_of_column[None, :] != batch.tasks[:, None]
        labels = batch.labels + first_columns[batch.tasks]
        return nn.functional.cross_entropy(logits.masked_fill(other, -math.inf), labels)

    def _train(self, examples: Batch, chance: torch.Generator) -> None:
        method, images = self.method, 0
        optimiser = torch.optim.SGD(self.trainable(), lr=method.rate, momentum=method.momentum)
        schedule = self.schedule(optimiser, self._steps(len(examples.labels)))
        self.network.train()
        for batch in self.batches(examples, chance):
            images += len(batch.labels)
            optimiser.zero_grad(set_to_none=True)
            with self.autocast():
                loss = self.loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            self.after_backward()
            optimiser.step()
            self.after_step()
            if schedule is not None:
                schedule.step()
        self.spend_passes(images, self.columns_trained(), backward=True)

    def schedule(
        self, optimiser: torch.optim.Optimizer, steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler | None:
        """Return the learning-rate schedule over `steps` steps; None if the rate is constant."""
        if self.method.schedule == "constant":
            return None
        rates = [group["lr"] for group in optimiser.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimiser, rates, total_steps=steps, cycle_momentum=False)

    def _steps(self, count: int) -> int:
        """Return the number of steps in all epochs together."""
        return math.ceil(self.method.epochs * count / self.method.batch)

    def spend_passes(self, images: int, columns: int | None = None, *, backward: bool = False) -> None:
        """Count the MACs of images through the body and `columns` head columns (default: the newest head's)."""
        forward, back = self.network.macs
        head = self.network.features * (self.network.spans[-1] if columns is None else columns)
        spend("forward", float(images) * (forward + head))
        if backward:
            spend("backward", float(images) * (back + 2 * head))

    # Answering.

    def given(self, x: torch.Tensor, position: int) -> torch.Tensor:
        return self._logits(x, position).argmax(dim=1)

    def withheld(self, x: torch.Tensor) -> LearnerAnswers:
        """Return the most likely of all classes of all tasks, as if the heads were one."""
        best = self._all_logits(x).argmax(dim=1)
        task_of_column, first_columns = (part.cpu() for part in self.network.columns)
        tasks = task_of_column[best]
        return LearnerAnswers(tasks, best - first_columns[tasks])

    def logits(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """Return the logits of one task's classes, from that task's network."""
        logits: torch.Tensor = self.network(x, position)
        return logits

    def _all_logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._in_batches(x, self.network.logits_of_all)

    def _logits(self, x: torch.Tensor, position: int) -> torch.Tensor:
        return self._in_batches(x, lambda batch: self.logits(batch, position))

    def _in_batches(self, x: torch.Tensor, logits: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the logits of many images, which need not be on the device."""
        self.network.eval()
        with torch.no_grad(), self.autocast():
            parts = [logits(batch.to(self.device)).float().cpu() for batch in equal_batches(x)]
        return torch.cat(parts)[: len(x)]

    # Saving.

    def finite(self) -> bool:
        return all(bool(weight.isfinite().all()) for weight in self.network.parameters())

    def kept_bytes(self) -> dict[str, int]:
        weights = [*self.network.body.parameters(), *self.network.body.buffers()]
        return {"weights": bytes_of(weights), "head": bytes_of(self.network.heads.parameters())}

    def state(self) -> dict[str, Any]:
        return {"spans": self.network.spans, "network": self.network.state_dict(), "own": self.own_state()}

    def restore(self, state: dict[str, Any], before: Sequence[BaselineTask]) -> None:
        for classes in state["spans"]:
            self.network.add_head(classes, torch.Generator())
        self.network.load_state_dict(state["network"])
        self.restore_own(state["own"])

    def own_state(self) -> dict[str, Any]:
        """Return what a method stores beside the network."""
        return {}

    def restore_own(self, own: dict[str, Any]) -> None:
        """Restore what `own_state` returned."""
