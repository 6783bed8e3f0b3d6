"""Going on with a task: more images, more classes, and the old images are gone.

What the old module says of its classes is added to what the new images say (`anchors/statistics.py`), so the
anchor loses nothing but what rounding had taken. A head cannot be added to: trained on new images alone it would
forget. So the prior lies around what the old head, a head of the new images and the merged anchor say together
(`synergy/merging/heads.py`), and old classes are played by images drawn from the old anchor, beside the real ones
that their teacher has kept for validation. Those cannot choose between heads: the old head was trained on them in
the end, and they would have it stay as it is. `docs/synergy-merge.md` has figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.anchors.statistics import Statistics, merged
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.class_names.union import Places
from skillmesh.learning.head import Fit, Head, Labels, calibrate, fit_head, fit_path
from skillmesh.numerics.tensors import Floats
from skillmesh.synergy.merging.heads import HeadPart, together

STRENGTH = 0.1
"""How strongly the head is held to what is known before."""
MOST_DRAWN = 2_000
"""Images that are drawn in the place of old ones, in all: each costs as much as a real one."""

Images = tuple[Floats, Labels]


@dataclass(frozen=True)
class Known:
    """What is left of a task: its module's parts, and the validation images that its teacher has kept."""

    head: Head
    temperature: float
    anchor: SketchAnchor
    counts: NDArray[np.float64]
    kept: Images
    """Labels count the old classes."""


@dataclass(frozen=True)
class Continued:
    """The task as it is now."""

    fit: Fit
    anchor: SketchAnchor


def go_on(
    old: Known, places: Places, train: Images, val: Images, classes: int, prior: Prior, rank: int, seed: int
) -> Continued:
    """Add new images to a task; `places` says where its old classes stand among all, labels count all."""
    statistics = merged(_statistics(old, places, train), classes)
    centre = _together(old, places, train, val, statistics, prior).weight
    known = joined(train, _drawn(old, places, seed))
    before = fit_path(*known, classes, [STRENGTH], centre)[0]
    judges = joined(val, (old.kept[0], places[old.kept[1]]))
    if not len(judges[0]):
        return Continued(Fit(before, STRENGTH, 1.0, None, before), statistics.anchor(rank))
    temperature, _ = calibrate(before.logits(judges[0]), judges[1])
    head = fit_path(*joined(known, judges), classes, [STRENGTH], centre)[0]
    return Continued(Fit(head, STRENGTH, temperature, None, before), statistics.anchor(rank))


def _statistics(old: Known, places: Places, train: Images) -> list[tuple[Statistics, Places]]:
    seen, own = np.unique(train[1], return_inverse=True)
    return [
        (Statistics.of_anchor(old.anchor, old.counts), places),
        (Statistics.of(train[0], own, len(seen)), seen.astype(np.int64)),
    ]


def _together(
    old: Known, places: Places, train: Images, val: Images, statistics: Statistics, prior: Prior
) -> Head:
    """What the old head and one of the new images alone say together, as sure as it should be."""
    parts = [HeadPart(old.head, old.temperature, places, old.counts)]
    seen = np.unique(train[1])
    if len(seen) > 1:
        mine = np.isin(val[1], seen)
        fit = fit_head(
            train[0],
            np.searchsorted(seen, train[1]),
            val[0][mine],
            np.searchsorted(seen, val[1][mine]),
            len(seen),
        )
        counts = np.bincount(train[1])[seen].astype(np.float64)
        parts.append(HeadPart(fit.before, fit.temperature, seen.astype(np.int64), counts))
    return together(parts, statistics.anchor(), prior)


def _drawn(old: Known, places: Places, seed: int) -> Images:
    """Images as the old anchor says they lie: as many of each class as there were, as far as there is room."""
    rng = np.random.default_rng(seed)
    share = min(1.0, MOST_DRAWN / float(old.counts.sum()))
    counts = np.maximum(np.rint(old.counts * share), 1).astype(np.int64)
    labels = np.repeat(np.arange(len(counts)), counts)
    scatter = old.anchor.scatter
    x = rng.standard_normal((len(labels), len(scatter.factor))) @ scatter.factor
    x += rng.standard_normal(x.shape) * np.sqrt(scatter.diagonal)
    return (old.anchor.means[labels] + x).astype(np.float32), places[labels]


def joined(some: Images, others: Images) -> Images:
    """The images of both."""
    return np.concatenate([some[0], others[0]]), np.concatenate([some[1], others[1]])
