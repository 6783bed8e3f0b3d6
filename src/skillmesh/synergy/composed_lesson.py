"""Lessons of composed tasks, with or without images, in the same form as those of learned tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from skillmesh.backbone.backbone import Backbone
from skillmesh.common.choices import Refining
from skillmesh.common.config import AgentConfig
from skillmesh.data.folder import TaskImages, open_task
from skillmesh.errors import AgentError, DataError, option
from skillmesh.learning.examine import Part
from skillmesh.learning.head import ROUNDS, Head, Labels, calibrate, probe_tensors
from skillmesh.learning.lesson import Lesson, ReadImages, anchor_settings, own_probes, read_images
from skillmesh.learning.rows import Norm
from skillmesh.learning.warm_start import fit_epochs
from skillmesh.numerics.arrays import Damping, Floats
from skillmesh.numerics.process import Progress, begin, one_thread
from skillmesh.synergy.composition import Composed, ComposedTask, refine

# Refining a composed task with images: the head where they improve it, the anchor by adding their statistics.
#
# The images must be new to the sources' teachers, since they judge the composed head: images that it was made from
# would favour it.

EPOCHS = 10
"""Default number of epochs of the paper's forms."""


@dataclass(frozen=True)
class Images:
    """Descriptors of images of the composed classes; labels are class indices of the new task."""

    x: Floats
    labels: Labels
    val_x: Floats
    val_labels: Labels

    @property
    def judges(self) -> tuple[Floats, Labels]:
        return (self.val_x, self.val_labels) if len(self.val_x) else (self.x, self.labels)

    def can_judge(self, form: Refining) -> bool:
        """Return whether images can judge the head; without validation images, only `prior` cross-validates."""
        return bool(len(self.val_x)) or (form == "prior" and int(np.bincount(self.labels).min()) > 1)


@dataclass(frozen=True)
class Refined:
    """The result of refining a composed head."""

    composed: Composed
    accuracy: float | None
    """Accuracy on the validation images, 0 to 1; None if there are none."""
    trial: str
    """What was tried and whether it was kept, as text for the card."""


def refine_with_images(
    composed: Composed, images: Images, form: Refining, epochs: int | None, damping: Damping | None = None
) -> Refined:
    """Refine the composed head for `epochs`; it stays unless the refined one is better on `images.judges`."""
    temperature, old = calibrate(composed.head.logits(images.judges[0]), images.judges[1])
    unchanged = Composed(composed.head, temperature), _accuracy(composed.head, images)
    tried = f"{form} form on {len(images.x)} images" + (f", {epochs} epochs" if epochs else "")
    if not images.can_judge(form):
        return Refined(*unchanged, f"{tried}: not tried, since no images are left to validate it")
    if form == "prior":
        better = _by_prior(composed, images, epochs, damping)
    else:
        better = _by_rows(composed, images, form, epochs)
    if better is None or better.loss >= old:
        return Refined(*unchanged, f"{tried}: no better, not kept")
    return Refined(better.composed, better.accuracy, f"{tried}: log-loss {old:.3f} to {better.loss:.3f}, kept")


@dataclass(frozen=True)
class _Better:
    composed: Composed
    loss: float
    accuracy: float | None


def _by_prior(composed: Composed, images: Images, epochs: int | None, damping: Damping | None) -> _Better | None:
    parts = images.x, images.labels, images.val_x, images.val_labels
    refined, fit = refine(composed, *parts, epochs or ROUNDS, damping)
    if fit is None or fit.loss is None:
        return None
    return _Better(refined, fit.loss, fit.fit.accuracy)


def _by_rows(composed: Composed, images: Images, norm: Norm, epochs: int | None) -> _Better:
    """Refine by the paper's method, as in a warm start with all rows known; validation images judge the result."""
    rows = dict(enumerate(composed.head.weight))
    train, val = (images.x, images.labels), (images.val_x, images.val_labels)
    fit = fit_epochs(train, val, len(rows), rows, norm, epochs or EPOCHS)
    _, loss = calibrate(fit.before.logits(images.val_x), images.val_labels)
    return _Better(Composed(fit.head, fit.temperature), loss, fit.accuracy)


def _accuracy(head: Head, images: Images) -> float | None:
    if not len(images.val_x):
        return None
    return float(np.mean(head.logits(images.val_x).argmax(axis=1) == images.val_labels))


# The lesson of a composed task, to be signed and shared like that of a learned task.


@dataclass(frozen=True)
class Further:
    """The images that refine a composed task, and the method."""

    folder: TaskImages
    form: Refining = "prior"
    epochs: int | None = None

    @classmethod
    def opened(cls, path: str | Path | TaskImages, classes: tuple[str, ...], seed: int, **options: Any) -> Further:
        folder = path if isinstance(path, TaskImages) else open_task(path, seed=seed, one_task=True)
        missing, extra = sorted(set(classes) - set(folder.classes)), sorted(set(folder.classes) - set(classes))
        if missing or extra:
            raise DataError(
                f"the image folders do not match the classes: {_listed(missing)} missing, {_listed(extra)} "
                "unexpected; expected one folder for each composed class, with its new name, and no other"
            )
        if options.get("epochs") is not None and options["epochs"] < 1:
            raise AgentError(
                f"found {options['epochs']} epochs, expected 1 or more; to compose without training, leave out "
                + option("images", "--images")
            )
        return cls(folder, **options)


def lesson_of(name: str, task: ComposedTask, kind: str) -> Lesson:
    """Return the lesson of a composed task without images."""
    dim = task.composed.head.weight.shape[1]
    facts = {
        "task": name,
        "dim": dim,
        "anchors": (kind,),
        "validation_images": task.validation_images,
        "temperature": task.composed.temperature,
    }
    tensors = task.composed.head.tensors() | task.anchor.tensors() | probe_tensors(task.probes)
    no_images: Floats = np.empty((0, dim), dtype=np.float32)
    return Lesson(tensors, task.facts | facts, [], (), no_images, np.empty(0, dtype=np.int64))


def lesson_with_images(
    name: str,
    task: ComposedTask,
    further: Further,
    backbone: Backbone,
    config: AgentConfig,
    progress: Progress | None,
) -> Lesson:
    """Return the lesson of a composed task, refined with images of its classes."""
    folder, settings = further.folder, anchor_settings(config)
    advance = begin(progress, name, len(folder.splits["train"]) + len(folder.splits["val"]))
    read = read_images(folder, backbone, advance)
    images = _images(task.facts["classes"], folder, read, backbone, config)
    with one_thread():
        prior = backbone.calibration.prior(config.representation, config.compact)
        refined = refine_with_images(task.composed, images, further.form, further.epochs, prior.damping)
        anchor = task.anchor.widened(task.facts["counts"], images.x, images.labels, settings)
        grown = replace(task, composed=refined.composed, anchor=anchor)
        if len(images.val_x):
            grown = replace(grown, probes=own_probes(anchor, images.val_x, config.anchor, prior))
    new = np.bincount(images.labels, minlength=len(task.facts["counts"]))
    lesson = lesson_of(name, grown, config.anchor)
    facts = {
        "counts": tuple(int(n + more) for n, more in zip(task.facts["counts"], new, strict=True)),
        "validation_images": len(images.val_x) or task.validation_images,
        "validation_accuracy": refined.accuracy,
        "trial": refined.trial,
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
    """Return descriptors and new labels; raise `DataError` if a class has no readable training image."""
    places = np.array([classes.index(label) for label in folder.classes])

    def described(part: Part) -> tuple[Floats, Any]:
        return backbone.represent(part.raw, config.representation, config.compact), places[part.labels]

    train, val = map(described, read.parts)
    images = Images(*train, *val)
    counts = np.bincount(images.labels, minlength=len(classes))
    if not counts.all():
        empty = [classes[i] for i in np.flatnonzero(counts == 0)]
        raise DataError(
            f"no training image of {_listed(empty)} can be read; repair the folder(s), or leave out "
            + option("images", "--images")
        )
    return images


def _listed(names: list[str]) -> str:
    if not names:
        return "none"
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
