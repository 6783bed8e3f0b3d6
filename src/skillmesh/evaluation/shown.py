"""A task's test images as an agent sees them, without those that would falsify a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skillmesh.answering.answer import Answer
from skillmesh.backbone.backbone import content_key
from skillmesh.common.choices import Support, WarmStart
from skillmesh.data.folder import Split, TaskImages
from skillmesh.data.images import UnreadableImageError
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import DataError
from skillmesh.learning.examine import Finding, Part, examine, unreadable
from skillmesh.learning.lesson import Lesson
from skillmesh.module import Module
from skillmesh.numerics.arrays import Floats
from skillmesh.numerics.process import Progress, begin
from skillmesh.synergy.holder import Holder


class MeasurableAgent(Holder, Protocol):
    """An agent that can be measured: it learns tasks, and answers images whose descriptors are computed."""

    def learn(
        self,
        task: TaskImages,
        *,
        warm_start: WarmStart | None = None,
        views: float | None = None,
        progress: Progress | None = None,
    ) -> tuple[Module, Lesson]: ...

    def answer_described(
        self, x: Floats, images: Sequence[AnyImage], support: Support | None = None
    ) -> list[Answer]: ...


Change = Callable[[AnyImage], AnyImage]
"""Something done to every test image before it is shown to the agent."""


@dataclass(frozen=True)
class Shown:
    """A task's readable test images, with their descriptors."""

    x: Floats
    labels: NDArray[np.int64]
    """Indices into the folder's classes."""
    images: list[AnyImage]
    seconds: float = 0.0
    """Seconds spent on computing their descriptors."""
    left_out: int = 0
    """Number of images left out because they would falsify a measurement."""

    def __len__(self) -> int:
        return len(self.x)


def show(
    agent: MeasurableAgent, folder: TaskImages, change: Change | None = None, progress: Progress | None = None
) -> Shown:
    """Describe a task's test images as `Core.answer` would."""
    started = time.perf_counter()
    part, _ = _described(agent, folder, change, progress)
    return _shown(agent, part, time.perf_counter() - started)


def show_sound(
    agent: MeasurableAgent, folder: TaskImages, learned: bool, progress: Progress | None = None
) -> tuple[Shown, tuple[Finding, ...]]:
    """Describe a task's test images and leave out those that would falsify a measurement.

    Training images that were just learned are compared by their descriptors. For others only equal files are
    searched: a check should not cost a forward pass over images that the user did not ask about.
    """
    started = time.perf_counter()
    tests, findings = _described(agent, folder, None, progress)
    seconds = time.perf_counter() - started
    others = [
        _compared(agent, name, folder.splits[name], learned) for name in ("train", "val") if name in folder.splits
    ]
    examined = examine([*others, tests], folder.classes, agent.backbone, "test")
    kept = examined.parts[-1]
    if not len(kept):
        raise DataError(
            f"no test image of {folder.name!r} is left to measure on ({examined.findings[0].text}); "
            "test on images that were not used for training, each in one class only"
        )
    return _shown(agent, kept, seconds, len(tests) - len(kept)), (*findings, *examined.findings)


def _described(
    agent: MeasurableAgent, folder: TaskImages, change: Change | None, progress: Progress | None
) -> tuple[Part, list[Finding]]:
    split, name = folder.splits["test"], folder.name
    images: Sequence[AnyImage] = split.files if change is None else [change(image) for image in split.files]
    described = agent.backbone.describe(images, begin(progress, f"{name} (test)", len(images)), thumbnails=True)
    if not len(described.raw):
        reasons = "; ".join(f"{u.name}: {u.reason}" for u in described.unreadable[:3])
        raise DataError(
            f"no test image of {name!r} can be read ({reasons}); replace the files or remove the test folder"
        )
    findings = unreadable([(bad.name, bad.reason) for bad in described.unreadable])
    return Part.of("test", images, split.labels, described), findings


def _shown(agent: MeasurableAgent, part: Part, seconds: float, left_out: int = 0) -> Shown:
    x = agent.backbone.represent(part.raw, agent.config.representation, agent.config.compact)
    return Shown(x, part.labels, part.images, seconds, left_out)


def _compared(agent: MeasurableAgent, name: str, split: Split, learned: bool) -> Part:
    if learned:
        return Part.of(name, split.files, split.labels, agent.backbone.describe(split.files))
    readable, keys = [], []
    for index, file in enumerate(split.files):
        with suppress(UnreadableImageError):
            keys.append(content_key(file.content()))
            readable.append(index)
    nothing = np.empty((0, 0), dtype=np.float16)
    return Part(name, [split.files[index] for index in readable], split.labels[readable], nothing, keys)
