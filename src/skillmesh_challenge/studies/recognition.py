"""Measure how well one kind of anchor, with given settings, recognises the tasks of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from skillmesh.numerics.arrays import counted

if TYPE_CHECKING:
    from skillmesh.anchors.protocol import Anchor, AnchorSettings
    from skillmesh.backbone.calibration import Prior
    from skillmesh.common.choices import AnchorKind
    from skillmesh.numerics.process import Advance
    from skillmesh_challenge.studies.tasks import StudyView


@dataclass(frozen=True)
class Fitted:
    """The anchors of all tasks, as stored in their modules, and the cost of fitting them."""

    anchors: list[Anchor]
    bytes: int
    """Size of all tensors of all tasks, in bytes."""
    macs: float

    @property
    def kilobytes_per_task(self) -> float:
        return self.bytes / 1000 / len(self.anchors)


def fit_anchors(
    tasks: Sequence[StudyView], kind: AnchorKind, settings: AnchorSettings, advance: Advance | None = None
) -> Fitted:
    """Fit every task's anchor and read it back from its tensors, as a student receives it."""
    from threadpoolctl import threadpool_limits

    from skillmesh.anchors import KINDS

    anchors, size = [], 0
    with threadpool_limits(1, "blas"), counted() as costs:  # one thread, as when agents learn
        for task in tasks:
            fitted = KINDS[kind].fit(task.seen["train"], task.labels["train"], task.task.classes, settings)
            tensors = fitted.tensors()
            anchors.append(KINDS[kind].read(tensors))
            size += sum(tensor.nbytes for tensor in tensors.values())
            if advance is not None:
                advance(1)
    return Fitted(anchors, size, costs.total)


def recognise(
    tasks: Sequence[StudyView],
    anchors: Sequence[Anchor],
    kind: AnchorKind,
    prior: Prior,
    splits: Sequence[str] = ("test",),
) -> dict[str, list[float]]:
    """Return by split the share of each task's images that are assigned to the right task."""
    from threadpoolctl import threadpool_limits

    from skillmesh.anchors import KINDS

    with threadpool_limits(1, "blas"):
        scorer = KINDS[kind].pool(anchors, prior)
        return {
            split: [
                float((scorer.score(task.seen[split]).task.argmax(axis=1) == index).mean())
                for index, task in enumerate(tasks)
            ]
            for split in splits
        }


def percent(shares: Sequence[float]) -> float:
    """Return the average over tasks, in percent."""
    return round(100 * fmean(shares), 3)
