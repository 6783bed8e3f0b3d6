"""What an agent makes of known classes: a lesson like that of a learned task, to be signed and shared as one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from skillmesh.backbone.backbone import Backbone
from skillmesh.common.choices import Refining
from skillmesh.common.config import AgentConfig
from skillmesh.common.progress import Progress, begin
from skillmesh.data.folder import TaskImages, open_task
from skillmesh.errors import AgentError, DataError
from skillmesh.learning.examine import Part
from skillmesh.learning.lesson import Lesson, ReadImages, anchor_settings, own_probes, read_images
from skillmesh.learning.probes import probe_tensors
from skillmesh.numerics.tensors import Floats
from skillmesh.numerics.threads import one_thread
from skillmesh.synergy.composition.further import Images, go_on
from skillmesh.synergy.composition.task import ComposedTask


@dataclass(frozen=True)
class Further:
    """With which images a composed task goes on, and how."""

    folder: TaskImages
    form: Refining = "prior"
    epochs: int | None = None

    @classmethod
    def opened(cls, path: str | Path | TaskImages, classes: tuple[str, ...], seed: int, **how: Any) -> Further:
        folder = path if isinstance(path, TaskImages) else open_task(path, seed=seed, one_task=True)
        missing, strange = sorted(set(classes) - set(folder.classes)), sorted(set(folder.classes) - set(classes))
        if missing or strange:
            raise DataError(
                f"the images are of other classes: {_some(missing)} missing, {_some(strange)} unexpected; "
                "expected a folder for each composed class, by its new name, and no other"
            )
        if how.get("epochs") is not None and how["epochs"] < 1:
            raise AgentError(f"found {how['epochs']} epochs, expected 1 or more; without images there is none")
        return cls(folder, **how)


def lesson_of(name: str, task: ComposedTask, kind: str) -> Lesson:
    """A composed task as it is, without an image."""
    dim = task.composed.head.weight.shape[1]
    facts = {
        "task": name,
        "dim": dim,
        "anchors": (kind,),
        "validation_images": task.validation_images,
        "temperature": task.composed.temperature,
    }
    tensors = task.composed.head.tensors() | task.anchor.tensors() | probe_tensors(task.probes)
    nothing: Floats = np.empty((0, dim), dtype=np.float32)
    return Lesson(tensors, task.facts | facts, [], (), nothing, np.empty(0, dtype=np.int64))


def lesson_with_images(
    name: str,
    task: ComposedTask,
    further: Further,
    backbone: Backbone,
    config: AgentConfig,
    progress: Progress | None,
) -> Lesson:
    """A composed task that went on with images of its classes."""
    folder, settings = further.folder, anchor_settings(config)
    advance = begin(progress, name, len(folder.splits["train"]) + len(folder.splits["val"]))
    read = read_images(folder, backbone, advance)
    images = _images(task.facts["classes"], folder, read, backbone, config)
    with one_thread():
        refined = go_on(task.composed, images, further.form, further.epochs)
        anchor = task.anchor.widened(task.facts["counts"], images.x, images.labels, settings)
        grown = replace(task, composed=refined.composed, anchor=anchor)
        if len(images.val_x):
            prior = backbone.calibration.prior(config.representation, config.compact)
            grown = replace(grown, probes=own_probes(anchor, images.val_x, config.mapper, prior))
    new = np.bincount(images.labels, minlength=len(task.facts["counts"]))
    lesson = lesson_of(name, grown, config.mapper)
    facts = {
        "counts": tuple(int(n + more) for n, more in zip(task.facts["counts"], new, strict=True)),
        "validation_images": len(images.val_x) or task.validation_images,
        "validation_accuracy": refined.accuracy,
        "trial": refined.words,
    }
    return replace(
        lesson,
        facts=lesson.facts | facts,
        unreadable=read.unreadable,
        notes=folder.notes,
        validation=images.val_x,
        validation_labels=images.val_labels,
        fresh=read.fresh,
        findings=read.findings,
    )


def _images(
    classes: tuple[str, ...],
    folder: TaskImages,
    read: ReadImages,
    backbone: Backbone,
    config: AgentConfig,
) -> Images:
    """Described images with the new task's labels; each class must have one to train on that can be read."""
    places = np.array([classes.index(label) for label in folder.classes])

    def described(part: Part) -> tuple[Floats, Any]:
        return backbone.represent(part.raw, config.representation, config.compact), places[part.labels]

    train, val = map(described, read.parts)
    images = Images(*train, *val)
    counts = np.bincount(images.labels, minlength=len(classes))
    if not counts.all():
        empty = [classes[i] for i in np.flatnonzero(counts == 0)]
        raise DataError(
            f"no training image of {_some(empty)} can be read; mend the folder(s), or go without images"
        )
    return images


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
