"""What a teacher makes of a task: from a folder of images to the tensors and the facts of a module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, Anchor, AnchorSettings
from skillmesh.backbone.allocator import hand_back
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.calibration import Prior
from skillmesh.common.choices import Adaptation
from skillmesh.common.config import AgentConfig
from skillmesh.common.progress import Advance
from skillmesh.data.checks import Finding, check_balance, check_names, unreadable
from skillmesh.data.folder import TaskImages
from skillmesh.errors import DataError
from skillmesh.learning.advice import advise
from skillmesh.learning.examine import Part, examine
from skillmesh.learning.head import Fit, softmax
from skillmesh.learning.outcome import Outcome
from skillmesh.learning.probes import choose_probes, probe_tensors
from skillmesh.learning.trial import Material, refuse_impossible, try_adapting
from skillmesh.learning.warm_start.start import WarmSources, start_head
from skillmesh.numerics.costs import Costs
from skillmesh.numerics.tensors import Floats, Tensors
from skillmesh.numerics.threads import one_thread

if TYPE_CHECKING:
    from skillmesh.data.inputs import Unreadable

Labels = NDArray[np.int64]


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
    refuse_impossible(adaptation, backbone.network, len(task.splits["val"]))
    read = read_images(task, backbone, progress)
    train_part, val_part = read.parts
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
        space = backbone.fingerprint, config.representation, config.compact, train.shape[1]
        begun = start_head(warm_sources, task.classes, space, (train, train_labels), (val, val_labels))
        fit, views = begun.fit, (train, val)
        hand_back()
        anchor = KINDS[config.mapper].fit(train, train_labels, len(task.classes), anchor_settings(config))
        prior = backbone.calibration.prior(config.representation, config.compact)
        probes = own_probes(anchor, val, config.mapper, prior)
    tensors = anchor.tensors() | probe_tensors(probes)
    facts: dict[str, Any] = {} if begun.record is None else {"warm_start": begun.record}
    if adaptation.mode == "auto" and (fit.accuracy == 1 or not len(val)):
        facts["trial"] = f"{adaptation.kind}: not tried, since all {len(val)} validation images are right without"
    elif adaptation.mode != "none":
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
        "anchors": (config.mapper,),
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
