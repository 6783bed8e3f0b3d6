"""Extending an own task: more images or classes make a new version, without the old images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, able_kinds
from skillmesh.anchors.gaussians import Gaussians, Statistics, merged
from skillmesh.backbone.calibration import Prior
from skillmesh.data.folder import TaskImages, refuse_folder_of_tasks, refuse_too_few_classes, survey_task
from skillmesh.errors import DataError, SettingsMismatchError, UnknownTaskError, option
from skillmesh.learning.class_names.pairs import Places, union
from skillmesh.learning.examine import Part
from skillmesh.learning.head import Fit, Head, Labels, calibrate, fit_head, fit_path, probe_tensors
from skillmesh.learning.lesson import Lesson, anchor_settings, judged, own_probes, read_images
from skillmesh.module.card import refuse_unportable
from skillmesh.numerics.arrays import Floats
from skillmesh.numerics.process import Progress, begin, one_thread
from skillmesh.store.home import VALIDATION, load_validation
from skillmesh.synergy.merging import HeadPart, together

if TYPE_CHECKING:
    from skillmesh.module import Module
    from skillmesh.synergy.holder import Holder

# Extending a task with more images or more classes when the old images are gone.
#
# The old anchor's statistics and those of the new images are added (`anchors/gaussians.py`), so the anchor loses
# only what rounding had removed. Heads cannot be added, and one trained on new images alone would forget. So the
# prior is centred on a combination of the old head, a head of the new images and the merged anchor
# (`synergy/merging.py`). Images sampled from the old anchor stand in for the old classes, beside the real ones
# that their teacher has kept for validation. Those cannot choose between heads: the old head was in the end
# trained on them too, so they would favour it. `docs/appendix/synergy-merge-results.md` has figures.

STRENGTH = 0.1
"""Regularisation strength that holds the head to its prior."""
MOST_DRAWN = 2_000
"""Largest total number of images sampled in place of old ones: each costs as much as a real one."""

Images = tuple[Floats, Labels]


@dataclass(frozen=True)
class Known:
    """What is left of an old task: parts of its module, and the validation images that its teacher has kept."""

    head: Head
    temperature: float
    gaussians: Gaussians
    counts: NDArray[np.float64]
    kept: Images
    """Kept validation images; labels are indices of the old classes."""


@dataclass(frozen=True)
class Continued:
    """The extended task."""

    fit: Fit
    gaussians: Gaussians


def extend(
    old: Known, places: Places, train: Images, val: Images, classes: int, prior: Prior, rank: int, seed: int
) -> Continued:
    """Extend a task with new images; `places` has the old classes' indices among all, which the labels use."""
    statistics = merged(_statistics(old, places, train), classes)
    centre = _together(old, places, train, val, statistics, prior).weight
    known = joined(train, _drawn(old, places, seed))
    before = fit_path(*known, classes, [STRENGTH], centre, damping=prior.damping)[0]
    judges = joined(val, (old.kept[0], places[old.kept[1]]))
    if not len(judges[0]):
        return Continued(Fit(before, STRENGTH, 1.0, None, before), statistics.gaussians(rank))
    temperature, _ = calibrate(before.logits(judges[0]), judges[1])
    head = fit_path(*joined(known, judges), classes, [STRENGTH], centre, damping=prior.damping)[0]
    return Continued(Fit(head, STRENGTH, temperature, None, before), statistics.gaussians(rank))


def _statistics(old: Known, places: Places, train: Images) -> list[tuple[Statistics, Places]]:
    seen, own = np.unique(train[1], return_inverse=True)
    return [
        (Statistics.of_gaussians(old.gaussians, old.counts), places),
        (Statistics.of(train[0], own, len(seen)), seen.astype(np.int64)),
    ]


def _together(
    old: Known, places: Places, train: Images, val: Images, statistics: Statistics, prior: Prior
) -> Head:
    """Return the old head combined with a head of the new images alone, divided by its temperature."""
    parts = [HeadPart(old.head, old.temperature, places, old.counts)]
    seen = np.unique(train[1])
    if len(seen) > 1:
        own = np.isin(val[1], seen)
        fit = fit_head(
            train[0],
            np.searchsorted(seen, train[1]),
            val[0][own],
            np.searchsorted(seen, val[1][own]),
            len(seen),
            damping=prior.damping,
        )
        counts = np.bincount(train[1])[seen].astype(np.float64)
        parts.append(HeadPart(fit.before, fit.temperature, seen.astype(np.int64), counts))
    return together(parts, statistics.gaussians(), prior)


def _drawn(old: Known, places: Places, seed: int) -> Images:
    """Sample images from the old anchor: the old number of each class, scaled down to `MOST_DRAWN` in all."""
    rng = np.random.default_rng(seed)
    share = min(1.0, MOST_DRAWN / float(old.counts.sum()))
    counts = np.maximum(np.rint(old.counts * share), 1).astype(np.int64)
    labels = np.repeat(np.arange(len(counts)), counts)
    scatter = old.gaussians.scatter
    x = rng.standard_normal((len(labels), len(scatter.factor))) @ scatter.factor
    x += rng.standard_normal(x.shape) * np.sqrt(scatter.diagonal)
    return (old.gaussians.means[labels] + x).astype(np.float32), places[labels]


def joined(first: Images, second: Images) -> Images:
    """Concatenate two sets of images and their labels."""
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])


# A new version of an own task from more images: of its classes, of new classes, or both.


@dataclass(frozen=True)
class _Classes:
    """The old classes as they were, then the new ones."""

    names: tuple[str, ...]
    places: Places
    """Index in `names` of each class of the folder."""


def own_task(agent: Holder, task: str) -> Module:
    """Return the agent's own module for `task`; raise an error if there is none or it cannot be extended."""
    older = agent.bank.held(task, agent.identity.public_key)
    if older is None:
        own = sorted(m.card.task for m in agent.bank if m.card.teacher_key == agent.identity.public_key)
        raise UnknownTaskError(
            f"this agent has taught no task {task!r}, and can extend only tasks that it taught: "
            f"{', '.join(own) or 'none'}; learn the images as a task of your own, then use "
            f"{option('agent.merge', '`skillmesh merge`')}"
        )
    refuse_unportable(older.card)
    if not KINDS[agent.config.anchor].adds_up:
        able = " or ".join(able_kinds("adds_up"))
        raise SettingsMismatchError(
            f"this agent's anchors are {agent.config.anchor}, expected {able}: only these can be extended; learn "
            f"the task again from all images, with {option('replace=True', '--replace')}"
        )
    return older


def more_of(more: str | Path | TaskImages, task: str, seed: int, one_task: bool = False) -> TaskImages:
    """Open the new images; a single class is enough, since the task has others already."""
    if isinstance(more, TaskImages):
        folder, where = more, more.name
    else:
        folder, where = survey_task(more, name=task, seed=seed), str(more)
        if not one_task:
            refuse_folder_of_tasks(folder, where)
    if not folder.classes:
        refuse_too_few_classes(folder, where)
    return folder


def study_extension(agent: Holder, older: Module, folder: TaskImages, progress: Progress | None = None) -> Lesson:
    """Return the lesson of a new version, learned from the old module and `folder` without the old images."""
    classes = _classes(older, folder)
    _refuse_grown_composition(older, classes)
    images = len(folder.splits["train"]) + len(folder.splits["val"])
    advance = begin(progress, older.card.task, images)
    read = read_images(folder, agent.backbone, advance)
    train, val = (_described(agent, part, classes) for part in read.parts)
    counts = np.bincount(train[1], minlength=len(classes.names))
    _refuse_nothing_new(older, classes, counts)
    kept, kind = _kept(agent, older), KINDS[agent.config.anchor]
    old = Known(
        Head.read(older.tensors),
        older.card.temperature,
        kind.read(older.tensors).gaussians(anchor_settings(agent.config)),
        np.asarray(older.card.counts, dtype=np.float64),
        kept,
    )
    places = np.arange(len(older.card.classes))
    with one_thread():  # as in `lesson.study`
        extended = extend(
            old, places, train, val, len(classes.names), agent.prior, agent.config.rank, agent.config.seed
        )
        judges = _by_class(joined(val, kept))
        anchor = kind.of_gaussians(extended.gaussians)
        probes = own_probes(anchor, judges[0], agent.config.anchor, agent.prior)
    counts[: len(places)] += np.asarray(older.card.counts)
    facts = {
        "task": older.card.task,
        "classes": classes.names,
        "dim": older.card.dim,
        "anchors": (agent.config.anchor,),
        "counts": tuple(int(n) for n in counts),
        "validation_images": len(judges[0]),
        "validation_accuracy": _accuracy(older, extended, val, kept),
        "temperature": extended.fit.temperature,
        "composed": older.card.composed,
        "views": older.card.views,
        "trial": f"extended version {older.card.version} with {len(train[0])} more images",
    }
    tensors = extended.fit.head.tensors() | anchor.tensors() | probe_tensors(probes)
    outcome = judged(extended.fit, classes.names, replace(read.parts[1], labels=val[1]), val[0])
    return Lesson(
        tensors,
        facts,
        read.unreadable,
        folder.notes,
        *judges,
        read.fresh,
        findings=read.findings,
        outcome=outcome,
        training_accuracy=_share(_correct(extended.fit.before, *train), len(train[0])),
    )


def filled_from(older: Module, **fields: Any) -> dict[str, Any]:
    """Return fields of a card (licence, note, tags), with the old card's values where no new value is given."""
    return {name: value or getattr(older.card, name) for name, value in fields.items()}


def _classes(older: Module, folder: TaskImages) -> _Classes:
    both = union([older.card.classes, folder.classes])
    known = len(older.card.classes)
    new = {int(place): name for name, place in zip(folder.classes, both.places[1], strict=True) if place >= known}
    return _Classes((*older.card.classes, *(new[place] for place in sorted(new))), both.places[1])


def _described(agent: Holder, part: Part, classes: _Classes) -> Images:
    x = agent.backbone.represent(part.raw, agent.config.representation, agent.config.compact)
    return x, classes.places[part.labels]


def _refuse_grown_composition(older: Module, classes: _Classes) -> None:
    """Refuse new classes in a composed task: its card must name a source, to give way to, for each class."""
    if older.card.composed is not None and len(classes.names) > len(older.card.classes):
        added = ", ".join(map(repr, classes.names[len(older.card.classes) :][:5]))
        raise DataError(
            f"{older.card.task!r} was composed of classes of other tasks, without {added}; learn the "
            "new classes as a task, then compose again with "
            + option("images=… and replace=True", "`skillmesh compose --images FOLDER --replace`")
        )


def _refuse_nothing_new(older: Module, classes: _Classes, counts: Places) -> None:
    empty = [classes.names[c] for c in range(len(older.card.classes), len(classes.names)) if not counts[c]]
    if empty or not counts.sum():
        what = f"of {', '.join(map(repr, empty[:5]))}" if empty else "at all"
        raise DataError(f"no training image {what} can be read; repair or remove the class folder(s)")


def _kept(agent: Holder, older: Module) -> Images:
    """Return the old task's validation images that the agent still has, with certain labels."""
    (own,) = load_validation(agent.home / VALIDATION, [older])
    if own.labels is None:
        return np.empty((0, older.card.dim), dtype=np.float32), np.empty(0, dtype=np.int64)
    return own.x, own.labels


def _by_class(images: Images) -> Images:
    """Sort images by class, as validation images are stored."""
    order = np.argsort(images[1], kind="stable")
    return images[0][order], images[1][order]


def _accuracy(older: Module, extended: Continued, val: Images, kept: Images) -> float | None:
    """Return the accuracy on validation images, before they joined the training; None without images.

    The old head was trained on the old ones, so their accuracy is limited to that on the old card.
    """
    new, old = (_correct(extended.fit.before, *images) for images in (val, kept))
    if older.card.validation_accuracy is not None:
        old = min(old, older.card.validation_accuracy * len(kept[0]))
    images = len(val[0]) + len(kept[0])
    return _share(new + old, images)


def _share(correct: float, images: int) -> float | None:
    return correct / images if images else None


def _correct(head: Head, x: Floats, labels: Places) -> float:
    return float(np.sum(head.logits(x).argmax(axis=1) == labels))
