"""What a teacher makes of a task: from a folder of images to the tensors and the facts of a module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, Anchor, AnchorSettings
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.calibration import Prior
from skillmesh.common.choices import Adaptation
from skillmesh.common.config import AgentConfig
from skillmesh.data.folder import TaskImages
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import DataError, option
from skillmesh.learning.examine import Finding, Part, check_balance, check_names, examine, unreadable
from skillmesh.learning.head import Fit, choose_probes, fit_head, probe_tensors, softmax
from skillmesh.learning.trial import Material, refuse_impossible, try_adapting
from skillmesh.learning.warm_start import Started, WarmSources, start_head
from skillmesh.numerics.arrays import Costs, Floats, Tensors
from skillmesh.numerics.process import Advance, hand_back, one_thread

if TYPE_CHECKING:
    from skillmesh.data.inputs import Unreadable

Labels = NDArray[np.int64]

OTHER = -1
"""Answer that is none of the task's classes: a class of another task."""


@dataclass(frozen=True)
class Confusion:
    """Images of one class that were given another."""

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
    """None where they were a dataset's, which is closed once it is learned."""
    labels: Labels
    """The right class of each image."""
    guesses: Labels
    """The class that each was given, or `OTHER`."""
    confidence: Floats
    answers: tuple[str, ...] | None = None
    """What was said of each, where an answer may be a class of another task."""

    @classmethod
    def nothing(cls, classes: tuple[str, ...]) -> Outcome:
        """Make the outcome of no image."""
        none = np.empty(0, dtype=np.int64)
        return cls(classes, (), none, none, np.empty(0, dtype=np.float32))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def accuracy(self) -> float | None:
        return float(np.mean(self.guesses == self.labels)) if len(self) else None

    def answer(self, index: int) -> str:
        """Name what was said of an image."""
        return self.answers[index] if self.answers is not None else self.classes[self.guesses[index]]

    def matrix(self) -> NDArray[np.int64]:
        """Count images by their class (row) and the class they were given (column; the last one is `OTHER`)."""
        counts = np.zeros((len(self.classes), len(self.classes) + 1), dtype=np.int64)
        np.add.at(counts, (self.labels, self.guesses), 1)
        return counts

    def recall(self) -> list[float | None]:
        """Return the share of each class's images that were given it; `None` where it has no image."""
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
        """Return the positions of wrong answers, class by class, the surest ones first."""
        wrong = np.flatnonzero(self.guesses != self.labels)
        return [int(i) for i in sorted(wrong, key=lambda i: (self.labels[i], -self.confidence[i]))]

    def class_facts(self) -> list[dict[str, Any]]:
        """Return images and recall of each class, and what its images were given instead, as JSON has it."""
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


# One sentence on what would help a task that was learned less than perfectly, from measurements on real tasks.

FEW_TO_JUDGE = 20
"""Validation images below which the accuracy says little: 95 % of the time it is off by up to 22 points."""
TO_JUDGE_A_CLASS = 20
WEAK = 0.98
"""Validation accuracy below which there is something to gain."""
FEW_PER_CLASS = 30
"""Training images per class up to which more of them help most."""
ENOUGH_TO_ADAPT = 800
"""Training images from which biases were kept; fewer were tried on one task only, where they were not."""


@dataclass(frozen=True)
class Measured:
    """What something was worth on real tasks: their number, and the points of accuracy on average."""

    tasks: int
    points: float


MORE_OF_FEW = Measured(11, 6.9)
"""The second half of the training images, on tasks with up to `FEW_PER_CLASS` of a class (docs/learning.md)."""
MORE_OF_MANY = Measured(29, 0.9)
"""The same on tasks with more."""
ADAPTING_TASKS = 16
ADAPTING = Measured(9, 3.7)
"""Biases, on those of the `ADAPTING_TASKS` where `--adapt auto` kept them."""


def advise(
    outcome: Outcome, counts: Sequence[int], training_accuracy: float | None, adapting_tried: bool
) -> str | None:
    """Say what helps most; nothing where nothing is to be gained.

    Parameters
    ----------
    outcome
        The validation images, by a head that has not seen them.
    counts
        Training images of each class.
    training_accuracy
        That of the same head. Where it is no better, the head lacks something that more images do not give.
    """
    accuracy = outcome.accuracy
    if accuracy is None or len(outcome) < FEW_TO_JUDGE:
        return _too_few(outcome)
    if accuracy >= WEAK:
        return None
    weakest = _weakest(outcome)
    few = counts[weakest] <= FEW_PER_CLASS
    if not few and not adapting_tried and sum(counts) >= ENOUGH_TO_ADAPT:
        adapt = option("adaptation=Adaptation()", "--adapt auto")
        return (
            f"{adapt} may help: on {ADAPTING.tasks} of {ADAPTING_TASKS} real tasks it did, by {ADAPTING.points} "
            "points on average, and on the others it kept the head as it is"
        )
    if training_accuracy is not None and training_accuracy <= accuracy:
        return _alike(outcome)
    worth = MORE_OF_FEW if few else MORE_OF_MANY
    name, images = outcome.classes[weakest], counts[weakest]
    return (
        f"more images of {name!r} (it has {images:,}){'' if few else ' help a little'}: on {worth.tasks} real "
        f"tasks with {'up to' if few else 'over'} {FEW_PER_CLASS} per class, the second half of the images was "
        f"worth {worth.points} points"
    )


def _alike(outcome: Outcome) -> str | None:
    """Say that the head lacks something which more images do not give, where two classes are to blame."""
    confusions = outcome.confusions()
    if not confusions:
        return None
    return (
        f"{confusions[0]}: it is no better on its own training images, so more of the same will not help; look "
        "whether these classes can be told apart in the images, or make one of them"
    )


def _too_few(outcome: Outcome) -> str:
    images = len(outcome)
    if not images:
        return f"no validation images: how good it is cannot be said; {TO_JUDGE_A_CLASS} per class would tell"
    off = 100 * 1.96 * math.sqrt(0.25 / images)
    return (
        f"only {images} validation image{'s' if images > 1 else ''}: the figure says little (it may be off by "
        f"{min(off, 100):.0f} points); {TO_JUDGE_A_CLASS} per class would tell"
    )


def _weakest(outcome: Outcome) -> int:
    """Return the class with the most wrong answers about it, given or missed."""
    counts = outcome.matrix()[:, :-1]
    wrong = counts.sum(axis=1) + counts.sum(axis=0) - 2 * np.diagonal(counts)
    return int(np.argmax(wrong))


NO_ADAPTATION = Adaptation("none")
COLD = WarmSources()
"""No modules that a head could start from."""


@dataclass(frozen=True)
class Lesson:
    """A task, learned but not yet signed."""

    tensors: Tensors
    facts: dict[str, Any]
    """The card's fields that come from the data."""
    unreadable: list[Unreadable]
    notes: tuple[str, ...]
    validation: Floats
    """The validation descriptors, which the teacher keeps to try other agents' modules on."""
    validation_labels: Labels
    fresh: int = 0
    """Images whose descriptors were not in the cache."""
    costs: Costs = field(default_factory=Costs)
    """What learning it cost, where somebody counted."""
    findings: tuple[Finding, ...] = ()
    """What the checks of the images found."""
    outcome: Outcome | None = None
    """What was said of the validation images before these joined the training; `None` for a composed task."""
    training_accuracy: float | None = None
    """Share of the training images that the head was right about before the validation images joined them."""

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """What the checks found, and the images that cannot be read."""
        return (*unreadable([(bad.name, bad.reason) for bad in self.unreadable]), *self.findings)

    @property
    def advice(self) -> str | None:
        """One sentence on what would help, where something would."""
        if self.outcome is None:
            return None
        return advise(self.outcome, self.facts["counts"], self.training_accuracy, "trial" in self.facts)

    def without_images(self) -> Lesson:
        """Return the lesson as it is kept where its images are gone, or should not be kept alive by it."""
        return self if self.outcome is None else replace(self, outcome=replace(self.outcome, images=()))

    @property
    def images(self) -> int:
        """Training and validation images that could be read."""
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
) -> Lesson:
    """Learn head, anchor and probes from the training and validation images. Test images are never opened.

    `adaptation` is tried beside the plain head. `checkpoint` keeps what a kill would lose of it, and `training` is
    told how many images will go through the network. Where `warm_sources` has modules, classes that they know
    begin with what these know of them; a head that looks at an adapted backbone takes nothing from it.
    """
    adapts = adaptation.mode != "none"
    if adapts:
        refuse_impossible(adaptation, backbone.network, len(task.splits["val"]))
    read = read_images(task, backbone, progress)
    train_part, val_part = read.parts
    if adapts:
        refuse_impossible(adaptation, backbone.network, len(val_part))  # twins of training images are gone now
    train_labels, val_labels = train_part.labels, val_part.labels
    train, val = (backbone.represent(part.raw, config.representation, config.compact) for part in read.parts)
    train_part, val_part = train_part.without_raw(), val_part.without_raw()
    read = replace(read, parts=(train_part, val_part))  # what is represented takes twice the memory already
    hand_back()
    counts = np.bincount(train_labels, minlength=len(task.classes))
    _refuse_empty_classes(task, counts, read)
    # One BLAS thread: the products are many and small, and waking a second thread for each costs more than it
    # saves (2 to 6 × on two cores). It also makes a module the same whatever the number of threads.
    with one_thread():
        if warm_sources.modules or warm_sources.form != "prior":
            space = backbone.fingerprint, config.representation, config.compact, train.shape[1]
            begun = start_head(warm_sources, task.classes, space, (train, train_labels), (val, val_labels))
        else:
            begun = Started(fit_head(train, train_labels, val, val_labels, len(task.classes)))
        fit, views = begun.fit, (train, val)
        hand_back()
        anchor = KINDS[config.anchor].fit(train, train_labels, len(task.classes), anchor_settings(config))
        prior = backbone.calibration.prior(config.representation, config.compact)
        probes = own_probes(anchor, val, config.anchor, prior)
    tensors = anchor.tensors() | probe_tensors(probes)
    facts: dict[str, Any] = {} if begun.record is None else {"warm_start": begun.record}
    if adaptation.mode == "auto" and (fit.accuracy == 1 or not len(val)):
        facts["trial"] = f"{adaptation.kind}: not tried, since all {len(val)} validation images are right without"
    elif adapts:
        material = Material((train_part.images, val_part.images), views, (train_labels, val_labels), fit)
        adapted, kept = try_adapting(adaptation, backbone, config, material, checkpoint, training)
        facts["trial"] = adapted.words
        if kept:
            fit, views, tensors = adapted.fit, adapted.views, tensors | adapted.tensors
            facts = {"trial": adapted.words} | adapted.facts
    return Lesson(
        fit.head.tensors() | tensors,
        facts | _card_facts(task, config, counts, val, fit),
        read.unreadable,
        (*task.notes, *begun.notes),
        val,
        val_labels,
        read.fresh,
        findings=read.findings,
        outcome=judged(fit, task.classes, val_part, views[1]),
        training_accuracy=float(np.mean(fit.before.logits(views[0]).argmax(axis=1) == train_labels)),
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
    """A task's training and validation images, without those that would falsify what is measured."""

    parts: tuple[Part, ...]
    unreadable: list[Unreadable]
    findings: tuple[Finding, ...]
    fresh: int
    """Number of images whose descriptors were not in the cache."""


def read_images(task: TaskImages, backbone: Backbone, progress: Advance | None) -> ReadImages:
    """Describe and examine the training and the validation images."""
    seen = {name: backbone.describe(task.splits[name].files, progress) for name in ("train", "val")}
    parts = [Part.of(name, task.splits[name].files, task.splits[name].labels, seen[name]) for name in seen]
    examined = examine(parts, task.classes, backbone)
    return ReadImages(
        examined.parts,
        [bad for described in seen.values() for bad in described.unreadable],
        (*check_names(task), *check_balance(task), *examined.findings),
        sum(described.fresh for described in seen.values()),
    )


def judged(fit: Fit, classes: tuple[str, ...], val: Part, view: Floats) -> Outcome:
    """Say what the head, before the validation images joined its training, makes of them."""
    logits = fit.before.logits(view)
    confidence = softmax(logits / fit.temperature).max(axis=1) if len(view) else np.empty(0)
    return Outcome(classes, val.images, val.labels, logits.argmax(axis=1), confidence.astype(np.float32))


def own_probes(anchor: Anchor, val: Floats, kind: str, prior: Prior) -> Floats:
    """Of the validation images those that travel: by the anchor alone, as its readers have it."""
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
        "mend or remove the class folder(s)"
    )
