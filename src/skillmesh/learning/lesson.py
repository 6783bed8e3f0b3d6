"""Learning a task: from a folder of images to the tensors and the card fields of a module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, Anchor, AnchorSettings, require_to_fit
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.calibration import Prior
from skillmesh.backbone.network import Described
from skillmesh.common.choices import NO_ADAPTATION, USUAL_VIEWS, Adaptation
from skillmesh.common.config import AgentConfig
from skillmesh.data.folder import TaskImages
from skillmesh.data.inputs import AnyImage
from skillmesh.data.views import LEARNED, ViewedImage
from skillmesh.errors import DataError, option
from skillmesh.learning.examine import (
    Finding,
    Part,
    check_balance,
    check_names,
    examine,
    unreadable,
)
from skillmesh.learning.head import Fit, choose_probes, fit_head, probe_tensors, softmax
from skillmesh.learning.trial import Material, refuse_impossible, try_adapting
from skillmesh.learning.warm_start import Started, WarmSources, start_head
from skillmesh.numerics.arrays import Costs, Floats, Tensors
from skillmesh.numerics.process import Advance, hand_back, one_thread

if TYPE_CHECKING:
    from skillmesh.data.inputs import Unreadable

Labels = NDArray[np.int64]

OTHER = -1
"""Guess that is a class of another task."""


@dataclass(frozen=True)
class Confusion:
    """Images of one class that were answered with another."""

    label: str
    given: str
    images: int
    of: int
    """Number of images of the class."""

    def __str__(self) -> str:
        return f"{self.label} with {self.given} ({self.images} of {self.of})"


@dataclass(frozen=True)
class Outcome:
    """The answers to images of a task's classes."""

    classes: tuple[str, ...]
    images: Sequence[AnyImage]
    """The images; empty if they came from a dataset, which is closed after learning."""
    labels: Labels
    """The right class of each image."""
    guesses: Labels
    """The class that each image was answered with, or `OTHER`."""
    confidence: Floats
    answers: tuple[str, ...] | None = None
    """The answer to each image, where it may be a class of another task."""

    @classmethod
    def nothing(cls, classes: tuple[str, ...]) -> Outcome:
        """Return an outcome without images."""
        none = np.empty(0, dtype=np.int64)
        return cls(classes, (), none, none, np.empty(0, dtype=np.float32))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def accuracy(self) -> float | None:
        return float(np.mean(self.guesses == self.labels)) if len(self) else None

    def answer(self, index: int) -> str:
        """Return the class name that an image was answered with."""
        return self.answers[index] if self.answers is not None else self.classes[self.guesses[index]]

    def matrix(self) -> NDArray[np.int64]:
        """Return counts of images by right class (row) and answered class (column; the last is `OTHER`)."""
        counts = np.zeros((len(self.classes), len(self.classes) + 1), dtype=np.int64)
        np.add.at(counts, (self.labels, self.guesses), 1)
        return counts

    def recall(self) -> list[float | None]:
        """Return the share of each class's images that were answered correctly; `None` where it has no images."""
        counts = self.matrix()
        images = counts.sum(axis=1)
        return [float(counts[c, c] / images[c]) if images[c] else None for c in range(len(self.classes))]

    def confusions(self) -> list[Confusion]:
        """Return all pairs of classes that were confused, most images first."""
        counts = self.matrix()
        images = counts.sum(axis=1)
        pairs = [
            Confusion(self.classes[a], self.classes[b], int(counts[a, b]), int(images[a]))
            for a, b in np.argwhere(counts[:, :-1])
            if a != b
        ]
        return sorted(pairs, key=lambda pair: (-pair.images, -pair.images / pair.of, pair.label, pair.given))

    def wrong(self) -> list[int]:
        """Return the positions of wrong answers, class by class, the most confident first."""
        wrong = np.flatnonzero(self.guesses != self.labels)
        return [int(i) for i in sorted(wrong, key=lambda i: (self.labels[i], -self.confidence[i]))]

    def class_facts(self) -> list[dict[str, Any]]:
        """Return each class's images, recall and answers as a JSON-compatible list."""
        counts, recall = self.matrix(), self.recall()
        return [
            {
                "class": name,
                "images": int(counts[c].sum()),
                "recall": None if recall[c] is None else round(recall[c] or 0.0, 6),
                "given": {self.classes[g]: int(counts[c, g]) for g in np.flatnonzero(counts[c, :-1])},
                "given_other_task": int(counts[c, -1]),
            }
            for c, name in enumerate(self.classes)
        ]


# Advice: one sentence on what would improve a task's accuracy, based on measurements on real tasks.

FEW_TO_JUDGE = 20
"""Number of validation images below which the accuracy is too uncertain.

At this number it is off by up to 22 points, 95 % of the time."""
TO_JUDGE_A_CLASS = 20
WEAK = 0.98
"""Validation accuracy below which advice is given."""
FEW_PER_CLASS = 30
"""Number of training images per class up to which more of them help most."""
ENOUGH_TO_ADAPT = 800
"""Number of training images from which biases were kept.

Only one task with fewer was tried, and there they were not kept."""


@dataclass(frozen=True)
class Measured:
    """A measured gain: the number of real tasks, and the mean gain in points of accuracy."""

    tasks: int
    points: float


MORE_OF_FEW = Measured(11, 6.9)
"""Gain from the second half of the training images, on tasks with up to `FEW_PER_CLASS` per class.

See docs/learning.md."""
MORE_OF_MANY = Measured(29, 0.9)
"""The same on tasks with more images per class."""
ADAPTING_TASKS = 16
ADAPTING = Measured(9, 3.7)
"""Gain from biases, on those of the `ADAPTING_TASKS` where `--adapt auto` kept them."""


def advise(
    outcome: Outcome, counts: Sequence[int], training_accuracy: float | None, adapting_tried: bool
) -> str | None:
    """Return a sentence on what would help most, or `None` where little can be gained.

    Parameters
    ----------
    outcome
        Answers to the validation images by a head that was not trained on them.
    counts
        Number of training images of each class.
    training_accuracy
        Accuracy of the same head on its training images. If it is no better than on the validation images, more
        images do not help.
    """
    accuracy = outcome.accuracy
    if accuracy is None or len(outcome) < FEW_TO_JUDGE:
        return _too_few_to_judge(outcome)
    if accuracy >= WEAK:
        return None
    weakest = _weakest(outcome)
    few = counts[weakest] <= FEW_PER_CLASS
    if not few and not adapting_tried and sum(counts) >= ENOUGH_TO_ADAPT:
        adapt = option("adaptation=Adaptation()", "--adapt auto")
        return (
            f"{adapt} may help: on {ADAPTING.tasks} of {ADAPTING_TASKS} real tasks it did, by {ADAPTING.points} "
            "points of accuracy on average; on the others it kept the plain head"
        )
    if training_accuracy is not None and training_accuracy <= accuracy:
        return _not_separable(outcome)
    gain = MORE_OF_FEW if few else MORE_OF_MANY
    name, images = outcome.classes[weakest], counts[weakest]
    return (
        f"more images of {name!r} (it has {images:,}) help {'most' if few else 'a little'}: on {gain.tasks} real "
        f"tasks with {'up to' if few else 'over'} {FEW_PER_CLASS} per class, the second half of the images "
        f"raised the accuracy by {gain.points} points"
    )


def _not_separable(outcome: Outcome) -> str | None:
    """Return the advice for a head that is no better on its training images; `None` without confusions."""
    confusions = outcome.confusions()
    if not confusions:
        return None
    return (
        f"the head confuses {confusions[0]} and is no better on its own training images, so more of the same will "
        "not help; check whether these classes can be told apart in the images, or make them one class"
    )


def _too_few_to_judge(outcome: Outcome) -> str:
    images = len(outcome)
    if not images:
        return f"no validation images: accuracy unknown; {TO_JUDGE_A_CLASS} per class are enough to judge it"
    off = 100 * 1.96 * math.sqrt(0.25 / images)
    return (
        f"only {images} validation image{'s' if images > 1 else ''}: the accuracy is uncertain (it may be off by "
        f"{min(off, 100):.0f} points); {TO_JUDGE_A_CLASS} per class are enough to judge it"
    )


def _weakest(outcome: Outcome) -> int:
    """Return the class with the most errors: its images answered wrongly, and others answered with it."""
    counts = outcome.matrix()[:, :-1]
    wrong = counts.sum(axis=1) + counts.sum(axis=0) - 2 * np.diagonal(counts)
    return int(np.argmax(wrong))


COLD = WarmSources()
"""No modules to start a head from."""


@dataclass(frozen=True)
class Lesson:
    """A learned task that is not yet signed."""

    tensors: Tensors
    facts: dict[str, Any]
    """The card's fields that come from the data."""
    unreadable: list[Unreadable]
    notes: tuple[str, ...]
    validation: Floats
    """Descriptors of the validation images, which the teacher keeps for the vetting of other agents' modules."""
    validation_labels: Labels
    fresh: int = 0
    """Number of images whose descriptors were not in the cache."""
    costs: Costs = field(default_factory=Costs)
    """Cost of learning, if it was counted."""
    findings: tuple[Finding, ...] = ()
    """Findings of the image checks."""
    outcome: Outcome | None = None
    """Answers to the validation images before these were added to the training; `None` for a composed task."""
    training_accuracy: float | None = None
    """Accuracy of the head on its training images before the validation images were added to them."""

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Findings of the image checks, and the images that cannot be read."""
        return (*unreadable([(bad.name, bad.reason) for bad in self.unreadable]), *self.findings)

    @property
    def advice(self) -> str | None:
        """One sentence on what would improve the result; `None` if there is nothing to advise."""
        if self.outcome is None:
            return None
        return advise(self.outcome, self.facts["counts"], self.training_accuracy, "trial" in self.facts)

    def without_images(self) -> Lesson:
        """Return the lesson without references to its images, so that they can be freed."""
        return self if self.outcome is None else replace(self, outcome=replace(self.outcome, images=()))

    @property
    def images(self) -> int:
        """Number of training and validation images that could be read."""
        return int(sum(self.facts["counts"])) + len(self.validation)


def study(
    task: TaskImages,
    backbone: Backbone,
    config: AgentConfig,
    progress: Advance | None = None,
    adaptation: Adaptation = NO_ADAPTATION,
    checkpoint: Path | None = None,
    training: Callable[[int], Advance | None] = lambda _: None,
    warm_sources: WarmSources = COLD,
    views: float | None = None,
) -> Lesson:
    """Learn head, anchor and probes from the training and validation images. Test images are never opened.

    `adaptation` is tried in addition to the plain head. Its training resumes from the file `checkpoint` after a
    kill; `training` is called with the number of images that it will process, and returns where to report
    progress. Classes that the modules in `warm_sources` know start from their rows, but not in a head on an
    adapted backbone. `views` is the share of the training images that are learned from a view instead of
    themselves or, from 1, the number of views of each that are learned from too. `None` is `USUAL_VIEWS`, or none
    with an adaptation, which allows none.
    """
    require_to_fit(config.anchor)
    adapting = adaptation.mode != "none"
    if views is None:
        views = 0 if adapting else USUAL_VIEWS
    if adapting:
        refuse_impossible(adaptation, backbone.network, len(task.splits["val"]))
    read = read_images(task, backbone, progress, views if views < 1 else 0, config.seed)
    train_part, val_part = read.parts
    if adapting:
        refuse_impossible(adaptation, backbone.network, len(val_part))  # now without twins of training images
    train_labels, val_labels = train_part.labels, val_part.labels
    train, val = (backbone.represent(part.raw, config.representation, config.compact) for part in read.parts)
    taught, taught_labels = (train, train_labels)
    if views >= 1:
        taught, taught_labels, more = with_views(train_part, train, int(views), backbone, config, progress)
        read = replace(read, unreadable=[*read.unreadable, *more.unreadable], fresh=read.fresh + more.fresh)
    train_part, val_part = train_part.without_raw(), val_part.without_raw()
    read = replace(read, parts=(train_part, val_part))  # the representations alone take twice the memory
    hand_back()
    counts = np.bincount(train_labels, minlength=len(task.classes))
    _refuse_empty_classes(task, counts, read)
    prior = backbone.calibration.prior(config.representation, config.compact)
    # One BLAS thread: the products are many and small, and a second thread costs more than it saves (2 to 6 × on
    # two cores). It also makes modules independent of the number of threads.
    with one_thread():
        if warm_sources.modules or warm_sources.form != "prior":
            space = backbone.fingerprint, config.representation, config.compact, train.shape[1]
            parts = (taught, taught_labels), (val, val_labels)
            started = start_head(warm_sources, task.classes, space, *parts, prior.damping)
        else:
            classes = len(task.classes)
            started = Started(fit_head(taught, taught_labels, val, val_labels, classes, damping=prior.damping))
        fit, inputs = started.fit, (train, val)
        hand_back()
        settings = anchor_settings(config)
        anchor = KINDS[config.anchor].fit(taught, taught_labels, len(task.classes), settings, len(train))
        probes = own_probes(anchor, val, config.anchor, prior)
    tensors = anchor.tensors() | probe_tensors(probes)
    facts: dict[str, Any] = {} if started.record is None else {"warm_start": started.record}
    if views >= 1 or read.viewed:
        facts["views"] = float(views)
    if adaptation.mode == "auto" and (fit.accuracy == 1 or not len(val)):
        facts["trial"] = f"{adaptation.kind}: not tried, since all {len(val)} validation images are right without"
    elif adapting:
        material = Material((train_part.images, val_part.images), inputs, (train_labels, val_labels), fit)
        adapted, kept = try_adapting(adaptation, backbone, config, material, checkpoint, training)
        facts["trial"] = adapted.words
        if kept:
            fit, inputs, tensors = adapted.fit, adapted.inputs, tensors | adapted.tensors
            facts = {"trial": adapted.words} | adapted.facts
    return Lesson(
        fit.head.tensors() | tensors,
        facts | _card_facts(task, config, counts, val, fit),
        read.unreadable,
        (*task.notes, *started.notes),
        val,
        val_labels,
        read.fresh,
        findings=read.findings,
        outcome=judged(fit, task.classes, val_part, inputs[1]),
        training_accuracy=float(np.mean(fit.before.logits(inputs[0]).argmax(axis=1) == train_labels)),
    )


def _card_facts(
    task: TaskImages, config: AgentConfig, counts: NDArray[np.int64], val: Floats, fit: Fit
) -> dict[str, Any]:
    return {
        "task": task.name,
        "classes": task.classes,
        "dim": val.shape[1],
        "anchors": (config.anchor,),
        "counts": tuple(int(n) for n in counts),
        "validation_images": len(val),
        "validation_accuracy": fit.accuracy,
        "temperature": fit.temperature,
    }


@dataclass(frozen=True)
class ReadImages:
    """A task's training and validation images, without those that would distort measurements."""

    parts: tuple[Part, ...]
    unreadable: list[Unreadable]
    findings: tuple[Finding, ...]
    fresh: int
    """Number of images whose descriptors were not in the cache."""
    viewed: int = 0
    """Number of training images that were described as a view."""


def read_images(
    task: TaskImages, backbone: Backbone, progress: Advance | None, share: float = 0, seed: int = 0
) -> ReadImages:
    """Describe and examine the training and the validation images.

    A `share` of each class's training images is described as a view of them. Of copies that were saved again,
    about two of five are found among these.
    """
    train, val = task.splits["train"], task.splits["val"]
    shown = list(train.files)
    viewed = _chosen(train.labels, share, seed)
    for row in viewed:
        shown[row] = ViewedImage(shown[row], LEARNED, seed)
    described = [backbone.describe(images, progress, thumbnails=True) for images in (shown, val.files)]
    parts = [
        Part.of(name, task.splits[name].files, task.splits[name].labels, each)
        for name, each in zip(("train", "val"), described, strict=True)
    ]
    examined = examine(parts, task.classes, backbone)
    findings = [*check_names(task), *check_balance(task), *examined.findings]
    return ReadImages(
        examined.parts,
        [bad for each in described for bad in each.unreadable],
        tuple(findings),
        sum(each.fresh for each in described),
        len(viewed),
    )


def _chosen(labels: Labels, share: float, seed: int) -> Labels:
    """Return indices of a random share of each class's images."""
    if not share:
        return np.empty(0, dtype=np.int64)
    rng = np.random.default_rng(seed)
    of_class = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    return np.sort(np.concatenate([rows[: round(share * len(rows))] for rows in of_class]))


def with_views(
    part: Part, x: Floats, views: int, backbone: Backbone, config: AgentConfig, progress: Advance | None
) -> tuple[Floats, Labels, Described]:
    """Return the images' descriptors and labels, followed by those of this many views of each; and the views."""
    shown = [ViewedImage(image, LEARNED, config.seed + view) for view in range(views) for image in part.images]
    described = backbone.describe(shown, progress)
    labels = np.tile(part.labels, views)[described.readable]
    more = backbone.represent(described.raw, config.representation, config.compact)
    return np.concatenate([x, more]), np.concatenate([part.labels, labels]), described


def judged(fit: Fit, classes: tuple[str, ...], val: Part, inputs: Floats) -> Outcome:
    """Return the answers to the validation images by the head that was not yet trained on them."""
    logits = fit.before.logits(inputs)
    confidence = softmax(logits / fit.temperature).max(axis=1) if len(inputs) else np.empty(0)
    return Outcome(classes, val.images, val.labels, logits.argmax(axis=1), confidence.astype(np.float32))


def own_probes(anchor: Anchor, val: Floats, kind: str, prior: Prior) -> Floats:
    """Return the validation images to send as probes, chosen by the anchor alone as students read it."""
    alone = KINDS[kind].pool([KINDS[kind].read(anchor.tensors())], prior)
    return choose_probes(val, alone.score(val).novelty)


def anchor_settings(config: AgentConfig) -> AnchorSettings:
    return AnchorSettings(
        rank=config.rank,
        clusters=config.clusters,
        variance_floor=config.variance_floor,
        images_per_class=config.images_per_class,
        seed=config.seed,
    )


def _refuse_empty_classes(task: TaskImages, counts: NDArray[np.int64], read: ReadImages) -> None:
    empty = [task.classes[i] for i in np.flatnonzero(counts == 0)]
    if not empty:
        return
    names = ", ".join(map(repr, empty[:5]))
    twins = next((finding for finding in read.findings if finding.kind == "twins-across-classes"), None)
    if twins is not None and not read.unreadable:
        raise DataError(
            f"no training image of {names} in {task.name!r} is left ({twins.text}); keep each image in the one "
            "class that it belongs to"
        )
    examples = "; ".join(f"{u.name}: {u.reason}" for u in read.unreadable[:3])
    raise DataError(
        f"no training image of {names} in {task.name!r} can be read ({examples}); "
        "repair or remove the class folder(s)"
    )
