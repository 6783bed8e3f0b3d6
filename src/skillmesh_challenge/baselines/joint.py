"""Joint training, the upper bound: for each task, train from the initial weights on all images so far.

It is replay with a buffer that keeps every image, and a network that is reset before each task.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from skillmesh_challenge.baselines.data import BaselineExamples, BaselineTask
from skillmesh_challenge.baselines.er import Replay


class JointLearner(Replay):
    """Trains on all images of all tasks so far."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._start = copy.deepcopy(self.network.body.state_dict())

    def before_task(self, task: BaselineTask) -> None:
        """Reset body and heads to their initial weights."""
        self.network.body.load_state_dict(self._start)
        spans, self.network.heads = self.network.spans, nn.ModuleList()
        for position, classes in enumerate(spans):
            self.network.add_head(classes, self.chance(position, "head"))

    def kept(self, task: BaselineTask, position: int) -> BaselineExamples:
        return task.train
