"""One classifier over all classes of all tasks, trained on all data together: usually an upper bound.

It is what nobody in the challenge may have: all images in one place. Nothing forces it to be better than single
heads; the report calls it a bound only where it is. A softmax by L-BFGS in single precision on the same
representation, regularised as every head is, but with fewer rounds; the strength is chosen on the validation
images, which then join the training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh.common.progress import begin
from skillmesh.learning.head import Head, fit_large
from skillmesh.numerics.costs import counted
from skillmesh.numerics.tensors import Floats
from skillmesh_challenge.entries import Bounds, TaskAtStep
from skillmesh_challenge.executors import worker_backbone
from skillmesh_challenge.record import read_record

if TYPE_CHECKING:
    from skillmesh.data.folder import TaskImages
    from skillmesh_challenge.methods import SkillMethod
    from skillmesh_challenge.stage import Stage

Labels = NDArray[np.int64]
SEEN = ("backbone", "representation", "compact")
"""What of a method decides what the classifier sees."""


@dataclass(frozen=True)
class Pooled:
    """One split of all tasks."""

    x: Floats
    labels: Labels
    """Over the classes of all tasks."""
    sizes: list[int]
    """Images of each task."""


def joint_bound(method: SkillMethod, stage: Stage) -> Bounds:
    """Train and test it, or take it from a run of the same representation and data."""
    how = _words(method)
    for folder in stage.reuse:
        earlier = read_record(folder)
        seen = [settings.method.get(name) for settings in (earlier.settings, stage.settings) for name in SEEN]
        alike = seen[: len(SEEN)] == seen[len(SEEN) :] and earlier.settings.same_images(stage.settings)
        if earlier.bounds and alike:
            return earlier.bounds
    start = time.perf_counter()
    starts = np.cumsum([0, *(len(folder.classes) for folder in stage.tasks)])
    with counted() as costs:
        train, val, test = (_pooled(method, stage, split, starts) for split in ("train", "val", "test"))
        head, strength = fit_large(train.x, train.labels, val.x, val.labels, int(starts[-1]))
    tasks = _marked(head, test, starts, stage.tasks)
    how = f"{how}, strength {strength:g}"
    return Bounds(how, tasks, dict(costs.spent), round(time.perf_counter() - start, 3))


def _words(method: SkillMethod) -> str:
    compact = ", compact" if method.compact else ""
    return f"softmax over all classes by L-BFGS on {method.backbone} {method.representation}{compact}"


def _pooled(method: SkillMethod, stage: Stage, split: str, starts: NDArray[np.int64]) -> Pooled:
    from skillmesh_challenge.agents import backbone_ref

    backbone = worker_backbone(backbone_ref(method, stage))
    advance = begin(stage.progress, f"all data together ({split})", len(stage.tasks))
    rows, labels = [], []
    for folder, first in zip(stage.tasks, starts, strict=False):
        described = backbone.describe(folder.splits[split].files)
        rows.append(backbone.represent(described.raw, method.representation, method.compact))
        labels.append(folder.splits[split].labels[described.readable] + first)
        if advance is not None:
            advance(1)
    return Pooled(np.concatenate(rows), np.concatenate(labels), [len(part) for part in rows])


def _marked(
    head: Head, test: Pooled, starts: NDArray[np.int64], folders: Sequence[TaskImages]
) -> tuple[TaskAtStep, ...]:
    """Per task: the right class among its own, the task of the best class of all, the right class of all."""
    marked, begun = [], 0
    for index, (folder, size) in enumerate(zip(folders, test.sizes, strict=True)):
        logits = head.logits(test.x[begun : begun + size])
        labels = test.labels[begun : begun + size]
        best = logits.argmax(axis=1)
        own = logits[:, starts[index] : starts[index + 1]].argmax(axis=1) + starts[index]
        found = (best >= starts[index]) & (best < starts[index + 1])
        shares = ((own == labels).mean(), found.mean(), (best == labels).mean())
        marked.append(TaskAtStep(folder.name, size, *map(float, shares)))
        begun += size
    return tuple(marked)
