"""The interface between a run and a learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from skillmesh.data.folder import TaskImages
from skillmesh.numerics.process import Progress
from skillmesh_challenge.baselines.data import BaselineTask


class LearnerAnswers(NamedTuple):
    """Predicted task and class of each image."""

    tasks: torch.Tensor
    classes: torch.Tensor
    """Index of the class within the task."""


class Learner(Protocol):
    """Learns one task after another and classifies images of all of them."""

    def see(self, folder: TaskImages, progress: Progress | None) -> BaselineTask:
        """Return the images of a task in the form that this learner uses."""
        ...

    def learn(self, task: BaselineTask, before: Sequence[BaselineTask]) -> None:
        """Learn one more task, and count its multiplications with `spend`.

        `before` are the earlier tasks. A method may use only what it counts as kept: replay its buffer, joint
        training everything, the others nothing.
        """
        ...

    def given(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """Return the class of each image, given the position of its task."""
        ...

    def withheld(self, x: torch.Tensor) -> LearnerAnswers:
        """Return task and class of each image, without a task label."""
        ...

    def finite(self) -> bool:
        """Return whether all values used for answers are finite."""
        ...

    def kept_bytes(self) -> dict[str, int]:
        """Return the bytes it must keep to continue learning and answering, by part; all tasks so far together."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the whole state, in types that `torch.load` reads with `weights_only=True`."""
        ...

    def restore(self, state: dict[str, Any], before: Sequence[BaselineTask]) -> None:
        """Restore a state that was saved after learning the tasks `before`."""
        ...
