"""The tasks that a study measures on: their images by split, described once by the backbone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from skillmesh.data.folder import ImageFile, TaskImages, find_tasks, open_task
from skillmesh.errors import DataError
from skillmesh.numerics.process import begin

if TYPE_CHECKING:
    from skillmesh.anchors.protocol import Labels
    from skillmesh.backbone.backbone import Backbone
    from skillmesh.backbone.calibration import Raw
    from skillmesh.common.choices import Representation
    from skillmesh.numerics.arrays import Floats
    from skillmesh_challenge.studies.study import StudySettings


@dataclass(frozen=True)
class StudyTask:
    """The described images of a task; unreadable images are left out."""

    folder: TaskImages
    files: dict[str, list[ImageFile]]
    """Files by split; the fields below are by split too."""
    raw: dict[str, Raw]
    labels: dict[str, Labels]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def classes(self) -> int:
        return len(self.folder.classes)


@dataclass(frozen=True)
class StudyView:
    """A task's images in one representation."""

    task: StudyTask
    seen: dict[str, Floats]

    @property
    def labels(self) -> dict[str, Labels]:
        return self.task.labels


def describe_tasks(settings: StudySettings) -> tuple[Backbone, list[StudyTask]]:
    """Describe all images of the tasks that the user named; tasks are checked before torch is loaded."""
    from skillmesh.backbone.backbone import Backbone, default_folder

    folders = _opened(settings)
    chosen = (settings.backbone, settings.weights, settings.calibration, settings.device)
    backbone = Backbone.load(*chosen, cache_folder=default_folder())
    return backbone, [_described(folder, backbone, settings) for folder in folders]


def _opened(settings: StudySettings) -> list[TaskImages]:
    """Open the tasks that the user named, with their own test images or a held-out share, as `eval` does."""
    if not settings.folders:
        raise DataError(
            "this study measures on tasks, but none were given; add them after its name: "
            "`skillmesh challenge study NAME TASKS`, where TASKS are tasks or folders of tasks"
        )
    paths = find_tasks(settings.folders)
    folders = [open_task(path, hold_out=("val", "test"), seed=settings.seed, one_task=True) for path in paths]
    if without := [folder.name for folder in folders if not len(folder.splits["test"])]:
        raise DataError(
            f"no test images in {', '.join(without[:5])}; add images or a test folder, or leave the task out"
        )
    return folders


def _described(folder: TaskImages, backbone: Backbone, settings: StudySettings) -> StudyTask:
    advance = begin(settings.progress, folder.name, sum(map(len, folder.splits.values())))
    described = {name: backbone.describe(split.files, advance) for name, split in folder.splits.items()}
    labels = {name: folder.splits[name].labels[each.readable] for name, each in described.items()}
    counts = np.bincount(labels["train"], minlength=len(folder.classes))
    if not counts.all() or not len(labels["test"]):
        raise DataError(
            f"{folder.name!r} has a class without readable training images, or no readable test images; "
            "`skillmesh challenge data check` lists the unreadable files"
        )
    files = {name: [folder.splits[name].files[i] for i in each.readable] for name, each in described.items()}
    return StudyTask(folder, files, {name: each.raw for name, each in described.items()}, labels)


def views(tasks: Sequence[StudyTask], backbone: Backbone, representation: Representation) -> list[StudyView]:
    return [
        StudyView(task, {split: backbone.represent(raw, representation) for split, raw in task.raw.items()})
        for task in tasks
    ]


def counted(tasks: Sequence[StudyTask]) -> str:
    classes, images = sum(task.classes for task in tasks), sum(len(task.labels["train"]) for task in tasks)
    return f"{len(tasks):,} tasks, {classes:,} classes, {images:,} training images"
