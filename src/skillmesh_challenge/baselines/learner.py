"""What a run asks of a learner, whatever it does inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from skillmesh.data.folder import TaskImages
from skillmesh.numerics.process import Progress
from skillmesh_challenge.baselines.data import BaselineTask


class LearnerAnswers(NamedTuple):
    """For each image."""

    tasks: torch.Tensor
    classes: torch.Tensor
    """Within the task."""


class Learner(Protocol):
    """Learns task after task and answers for all of them."""

    def see(self, folder: TaskImages, progress: Progress | None) -> BaselineTask:
        """Bring a task's images to what this learner looks at."""
        ...

    def learn(self, task: BaselineTask, before: Sequence[BaselineTask]) -> None:
        """Learn one more task, and `spend` what that multiplies.

        `before` are the earlier ones, of which a method may use what it says it keeps: replay a buffer, joint
        training everything, the others nothing.
        """
        ...

    def given(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """The class of each image, its task told."""
        ...

    def withheld(self, x: torch.Tensor) -> LearnerAnswers:
        """Task and class of each image, nothing told."""
        ...

    def finite(self) -> bool:
        """Whether all that answers are made with are numbers."""
        ...

    def kept_bytes(self) -> dict[str, int]:
        """What it must keep to go on learning and answering, by what it is; all tasks so far together."""
        ...

    def state(self) -> dict[str, Any]:
        """All of it, as `torch.save` writes it and reads back without running code."""
        ...

    def restore(self, state: dict[str, Any], before: Sequence[BaselineTask]) -> None:
        """Become the learner that gave this state after the tasks `before`."""
        ...
