"""Base class of learners on a frozen backbone.

Each processes an image once, with the same backbone (and cache) that skillmesh uses, adds it to running sums, and
answers from a closed form of those sums. They are class-incremental: all classes of all tasks compete, and no task
label is needed. With a task label, only that task's classes compete.

A learner keeps only what is in `kept`; `prepare` computes from it what answers need. The backbone is not counted,
as it is not part of our modules either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
import torch

from skillmesh.errors import DataError
from skillmesh.numerics.arrays import spend
from skillmesh.numerics.process import begin
from skillmesh_challenge.baselines.data import BaselineExamples, BaselineTask, read_task
from skillmesh_challenge.baselines.learner import LearnerAnswers
from skillmesh_challenge.baselines.network import bytes_of
from skillmesh_challenge.baselines.settings import Frozen

if TYPE_CHECKING:
    from skillmesh.backbone.backbone import Backbone
    from skillmesh.data.folder import Split, TaskImages
    from skillmesh.numerics.process import Progress
    from skillmesh_challenge.stage import Stage

SCORED_AT_ONCE = 1024
"""Number of images whose scores for all classes are in memory together."""
Settings = TypeVar("Settings", bound=Frozen)


class FrozenLearner(ABC, Generic[Settings]):
    """Learns one task after another; subclasses define what they accumulate and how they score."""

    def __init__(self, method: Settings, seed: int = 0, backbone: Backbone | None = None) -> None:
        self.method, self.seed, self._backbone = method, seed, backbone
        self.device = torch.device("cpu") if backbone is None else backbone.torch_network.device
        self.spans: list[int] = []
        """Number of classes of each task."""
        self.kept: dict[str, torch.Tensor] = {}

    @classmethod
    def of(cls, method: Settings, stage: Stage) -> Self:
        from skillmesh_challenge.agents import backbone_ref
        from skillmesh_challenge.executors import worker_backbone

        return cls(method, stage.settings.seed, worker_backbone(backbone_ref(method, stage)))

    # Overridden by methods.

    @abstractmethod
    def take_in(self, x: torch.Tensor, labels: torch.Tensor, classes: int) -> None:
        """Add a task's images to what is kept."""

    def prepare(self) -> None:
        """Compute what answers need from what is kept."""

    @abstractmethod
    def scores(self, x: torch.Tensor, columns: slice) -> torch.Tensor:
        """Return the scores of these classes, a column each; the highest is the best."""

    # Learning.

    def see(self, folder: TaskImages, progress: Progress | None) -> BaselineTask:
        backbone = self._backbone
        assert backbone is not None
        advance = begin(progress, f"{folder.name} (images)", sum(map(len, folder.splits.values())))

        def described(splits: Sequence[Split]) -> BaselineExamples:
            descriptions = backbone.describe([file for split in splits for file in split.files], advance)
            labels = np.concatenate([split.labels for split in splits])[descriptions.readable]
            x = backbone.represent(descriptions.raw, self.method.representation)
            return BaselineExamples(torch.from_numpy(x), torch.from_numpy(labels))

        return read_task(folder, described)

    def learn(self, task: BaselineTask, before: Sequence[BaselineTask]) -> None:
        counts = torch.bincount(task.train.labels, minlength=task.classes)
        if not counts.all():
            raise DataError(
                f"{int((counts == 0).sum())} of {task.classes} classes of {task.name!r} have no readable image; "
                "expected one or more each; repair their files or remove these classes"
            )
        if self._backbone is not None:
            spend("forward", len(task.train) * float(self._backbone.network.forward_macs))
        self.take_in(task.train.x.to(self.device), task.train.labels.to(self.device), task.classes)
        self.spans.append(task.classes)
        self.prepare()

    def append(self, name: str, rows: torch.Tensor) -> None:
        """Append rows to a kept tensor, in single precision."""
        rows = rows.float()
        self.kept[name] = torch.cat([self.kept[name], rows]) if name in self.kept else rows

    def add(self, name: str, values: torch.Tensor) -> None:
        """Add to a kept sum, in single precision."""
        self.kept[name] = (self.kept[name] + values if name in self.kept else values).float()

    # Answering.

    def given(self, x: torch.Tensor, position: int) -> torch.Tensor:
        start = sum(self.spans[:position])
        return self._best(x, slice(start, start + self.spans[position]))

    def withheld(self, x: torch.Tensor) -> LearnerAnswers:
        best = self._best(x, slice(0, sum(self.spans)))
        spans = torch.tensor(self.spans)
        ends = spans.cumsum(0)
        tasks = torch.searchsorted(ends, best, right=True)
        return LearnerAnswers(tasks, best - (ends - spans)[tasks])

    def _best(self, x: torch.Tensor, columns: slice) -> torch.Tensor:
        """Return the best class of each image; `x` need not be on the device."""
        parts = [
            self.scores(batch.to(self.device), columns).argmax(dim=1) for batch in torch.split(x, SCORED_AT_ONCE)
        ]
        return torch.cat(parts).cpu()

    # Saving.

    def finite(self) -> bool:
        return all(bool(tensor.isfinite().all()) for tensor in self.kept.values())

    def kept_bytes(self) -> dict[str, int]:
        return {name: bytes_of([tensor]) for name, tensor in self.kept.items()}

    def state(self) -> dict[str, Any]:
        return {"spans": list(self.spans), "kept": dict(self.kept)}

    def restore(self, state: dict[str, Any], before: Sequence[BaselineTask]) -> None:
        self.spans = list(state["spans"])
        self.kept = {name: tensor.to(self.device) for name, tensor in state["kept"].items()}
        self.prepare()


def class_means(x: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Return the mean of each class, in double precision."""
    spend("means", float(x.numel()))
    return torch.stack([x[labels == c].double().mean(dim=0) for c in range(classes)])


def powered(x: torch.Tensor, power: float) -> torch.Tensor:
    """Apply Tukey's transform, which makes skewed features more Gaussian; negative numbers keep their sign."""
    return x if power == 1 else x.sign() * x.abs().pow(power)
