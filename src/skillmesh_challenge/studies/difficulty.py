"""Study of task difficulty: the error of a small net trained from scratch, against the task's size.

The paper's figure uses a ResNet-18 after a fixed number of epochs. Ours is a ResNet-8 on 32 pixels, so that a task
takes seconds on a CPU. Its errors are larger; only the order of the tasks is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skillmesh.data.inputs import read_pixels
from skillmesh.numerics.process import begin
from skillmesh_challenge.studies.study import Findings, StudySettings

if TYPE_CHECKING:
    from skillmesh.anchors.protocol import Labels
    from skillmesh.data.folder import ImageFile
    from skillmesh.data.images import Pixels
    from skillmesh.numerics.arrays import Damping
    from skillmesh_challenge.studies.tasks import StudyTask, StudyView

MOST_IMAGES = 1000
"""Largest number of images the net learns from; a larger task is subsampled."""
FEWEST_TASKS = 5
"""Smallest number of tasks for a meaningful rank correlation."""
NET, HEAD, CHANCE = "small net's error, %", "skillmesh head's error, %", "small net's error / error of guessing"
COMPARED = {
    "the number of classes": (NET, "classes"),
    "the number of images": (NET, "images"),
    "images per class": (NET, "images per class"),
    "the error of skillmesh's head": (NET, HEAD),
    "the number of classes, error relative to guessing": (CHANCE, "classes"),
    "the number of images, error relative to guessing": (CHANCE, "images"),
}


@dataclass(frozen=True)
class NetSettings:
    """Training settings of the small net, the same for all tasks."""

    size: int = 32
    epochs: int = 15
    batch: int = 32
    rate: float = 0.003
    """Highest learning rate (AdamW, one-cycle schedule)."""
    decay: float = 0.05
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Relation:
    """Rank correlation of two orders of the tasks."""

    rho: float
    """Spearman's rank correlation."""
    p: float
    """p-value: probability of such a correlation by chance."""

    def __str__(self) -> str:
        return f"{self.rho:+.2f} (p {'< 0.001' if self.p < 0.001 else f'= {self.p:.3f}'})"


def task_difficulty(settings: StudySettings) -> Findings:
    from skillmesh_challenge.studies.tasks import counted, describe_tasks, views

    backbone, tasks = describe_tasks(settings)
    chosen = NetSettings(seed=settings.seed, device=settings.device or "cpu")
    damping = backbone.calibration.prior("descriptor", compact=False).damping
    rows = [_row(view, chosen, settings, damping) for view in views(tasks, backbone, "descriptor")]
    rows.sort(key=lambda row: (row[NET], row["task"]))
    related = {what: relation(rows, *columns) for what, columns in COMPARED.items()}
    thinned = sum(row["images"] > row["images used by the small net"] for row in rows)
    notes = [
        f"{counted(tasks)}. A ResNet-8 (widths 16, 32, 64; first stride 2) on images of {chosen.size} pixels is "
        f"trained for {chosen.epochs} epochs on training and validation images, at most {MOST_IMAGES:,} "
        f"({thinned} tasks had more). Errors are those on test images.",
        "skillmesh's head uses all images, and the descriptor of a pretrained backbone.",
        "Rank correlation of the small net's error with "
        + "; ".join(f"{what}: {one or 'too few tasks to say'}" for what, one in related.items())
        + ".",
    ]
    figures = {f"rank correlation with {what}": one.rho for what, one in related.items() if one}
    return Findings("How hard tasks are for a small net", rows, notes, figures)


def _row(view: StudyView, chosen: NetSettings, settings: StudySettings, damping: Damping | None) -> dict[str, Any]:
    from skillmesh_challenge.studies.small_net import net_error, train_small_net

    task = view.task
    images = len(task.labels["train"]) + len(task.labels["val"])
    files, labels = _learned(task, chosen.seed)
    advance = begin(settings.progress, f"{task.name} (small net)", chosen.epochs * len(labels))
    net = train_small_net(_decoded(files, chosen.size), labels, task.classes, chosen, advance)
    wrong = net_error(net, _decoded(task.files["test"], chosen.size), task.labels["test"], chosen)
    return {
        "task": task.name,
        "classes": task.classes,
        "images": images,
        "images used by the small net": len(labels),
        "images per class": round(images / task.classes, 1),
        NET: round(100 * wrong, 3),
        HEAD: round(100 * head_error(view, damping), 3),
        CHANCE: round(wrong / (1 - 1 / task.classes), 4),
    }


def _learned(task: StudyTask, seed: int) -> tuple[list[ImageFile], Labels]:
    """Return the net's training images: those of skillmesh's head, or a seeded subset of them."""
    files = task.files["train"] + task.files["val"]
    labels = np.concatenate([task.labels["train"], task.labels["val"]])
    kept = np.random.default_rng(seed).permutation(len(labels))[:MOST_IMAGES]
    return [files[index] for index in kept], labels[kept]


def _decoded(files: Sequence[ImageFile], size: int) -> Pixels:
    return np.stack([read_pixels(file, size) for file in files])


def head_error(view: StudyView, damping: Damping | None) -> float:
    """Return the share of test images that skillmesh's head, as stored in its module, classifies wrongly."""
    from threadpoolctl import threadpool_limits

    from skillmesh.learning.head import Head, fit_head

    with threadpool_limits(1, "blas"):  # as when agents learn
        known = (view.seen["train"], view.labels["train"], view.seen["val"], view.labels["val"])
        head = Head.read(fit_head(*known, view.task.classes, damping=damping).head.tensors())
        return float((head.logits(view.seen["test"]).argmax(axis=1) != view.labels["test"]).mean())


def relation(rows: Sequence[dict[str, Any]], one: str, other: str) -> Relation | None:
    """Return the rank correlation of two columns; None with too few tasks, or if all values are equal."""
    from scipy.stats import spearmanr

    values = [[row[column] for row in rows] for column in (one, other)]
    if len(rows) < FEWEST_TASKS or any(len(set(column)) == 1 for column in values):
        return None
    correlation = spearmanr(*values)
    return Relation(round(float(correlation.statistic), 4), float(correlation.pvalue))
