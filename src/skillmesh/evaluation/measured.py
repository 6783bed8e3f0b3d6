"""What evaluation needs of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from skillmesh.answering.answer import Answer
from skillmesh.common.choices import Support, WarmStart
from skillmesh.common.progress import Progress
from skillmesh.data.folder import TaskImages
from skillmesh.data.inputs import AnyImage
from skillmesh.learning.lesson import Lesson
from skillmesh.module import Module
from skillmesh.numerics.tensors import Floats
from skillmesh.synergy.holder import Holder


class MeasurableAgent(Holder, Protocol):
    """An agent that can be measured: it learns tasks, and answers images that are described already."""

    def learn(
        self, task: TaskImages, *, warm_start: WarmStart | None = None, progress: Progress | None = None
    ) -> tuple[Module, Lesson]: ...

    def answer_described(
        self, x: Floats, images: Sequence[AnyImage], support: Support | None = None
    ) -> list[Answer]: ...
