"""What a teacher makes of a task: from a folder of images to the tensors and the facts of a module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, Anchor, AnchorSettings
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.calibration import Prior
from skillmesh.config import AgentConfig
from skillmesh.costs import Costs
from skillmesh.data.folder import ImageFile, Split, TaskFolder
from skillmesh.errors import DataError
from skillmesh.learning.probes import choose_probes, probe_tensors
from skillmesh.learning.trial import Adapting, Material, adapt
from skillmesh.progress import Advance
from skillmesh.synergy.rows.start import WarmStart, start_head
from skillmesh.tensors import Floats, Tensors
from skillmesh.threads import one_thread

if TYPE_CHECKING:
    from skillmesh.backbone.describe import Described
    from skillmesh.data.inputs import Unreadable

Labels = NDArray[np.int64]


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

    @property
    def images(self) -> int:
        """Training and validation images that could be read."""
        return int(sum(self.facts["counts"])) + len(self.validation)


def study(
    task: TaskFolder,
    backbone: Backbone,
    config: AgentConfig,
    progress: Advance | None = None,
    adapting: Adapting = Adapting(),  # noqa: B008  (it cannot change)
    checkpoint: Path | None = None,
    training: Callable[[int], Advance | None] = lambda _: None,
    warm_start: WarmStart = WarmStart(),  # noqa: B008
) -> Lesson:
    """Learn head, anchor and probes from the training and validation images. Test images are never opened.

    What `adapting` says is tried beside. `checkpoint` keeps what a kill would lose of that, and `training` is told
    how many images will go forth and back. Where `warm_start` has modules, classes that they know begin with what
    these know of them; a head that looks at an adapted backbone takes nothing from it.
    """
    adapting.refuse_impossible(backbone.network, len(task.splits["val"]))
    train, train_labels, train_files, seen = _represented(task.splits["train"], backbone, config, progress)
    val, val_labels, val_files, also_seen = _represented(task.splits["val"], backbone, config, progress)
    unreadable, fresh = seen.unreadable + also_seen.unreadable, seen.fresh + also_seen.fresh
    counts = np.bincount(train_labels, minlength=len(task.classes))
    _refuse_empty_classes(task, counts, unreadable)
    # One BLAS thread: the products are many and small, and waking a second thread for each costs more than it
    # saves (2 to 6 × on two cores). It also makes a module the same whatever the number of threads.
    with one_thread():
        space = backbone.fingerprint, config.representation, config.compact, train.shape[1]
        begun = start_head(warm_start, task.classes, space, (train, train_labels), (val, val_labels))
        fit = begun.fit
        anchor = KINDS[config.mapper].fit(train, train_labels, len(task.classes), anchor_settings(config))
        prior = backbone.calibration.prior(config.representation, config.compact)
        probes = own_probes(anchor, val, config.mapper, prior)
    tensors = anchor.tensors() | probe_tensors(probes)
    facts: dict[str, Any] = {} if begun.record is None else {"warm_start": begun.record}
    if adapting.mode == "auto" and (fit.accuracy == 1 or not len(val)):
        facts["trial"] = f"{adapting.kind}: not tried, since all {len(val)} validation images are right without"
    elif adapting.mode != "never":
        material = Material((train_files, val_files), (train, val), (train_labels, val_labels), fit)
        adapted = adapt(adapting, backbone, config, material, checkpoint, training)
        kept = bool(adapted.tensors) and (adapting.mode == "always" or adapted.better)
        facts["trial"] = f"{adapted.words}; {'kept' if kept else 'not kept'}"
        if kept:
            fit, tensors, facts = adapted.fit, tensors | adapted.tensors, facts | adapted.facts
            facts.pop("warm_start", None)
    facts |= {
        "task": task.name,
        "classes": task.classes,
        "dim": train.shape[1],
        "anchors": (config.mapper,),
        "counts": tuple(int(n) for n in counts),
        "validation_images": len(val),
        "validation_accuracy": fit.accuracy,
        "temperature": fit.temperature,
    }
    notes = (*task.notes, *begun.notes)
    return Lesson(fit.head.tensors() | tensors, facts, unreadable, notes, val, val_labels, fresh)


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


def _represented(
    split: Split, backbone: Backbone, config: AgentConfig, progress: Advance | None
) -> tuple[Floats, Labels, list[ImageFile], Described]:
    described = backbone.describe(split.files, progress)
    x = backbone.represent(described.raw, config.representation, config.compact)
    readable = [split.files[index] for index in described.readable]
    return x, split.labels[described.readable], readable, described


def _refuse_empty_classes(task: TaskFolder, counts: NDArray[np.int64], unreadable: list[Unreadable]) -> None:
    empty = [task.classes[i] for i in np.flatnonzero(counts == 0)]
    if empty:
        examples = "; ".join(f"{u.name}: {u.reason}" for u in unreadable[:3])
        raise DataError(
            f"no training image of {', '.join(map(repr, empty[:5]))} in {task.name!r} can be read ({examples}); "
            "mend or remove the class folder(s)"
        )
