"""Composition: a task made only of known classes needs no image.

Rows of several heads cannot simply stand beside each other. Each head was taught to tell its own classes apart:
what it says of another task's images is chance, and how loud it says it depends on how it was trained. The tasks'
anchors were made to be compared: their means and pooled scatter give a closed-form head over all chosen classes.
It knows which task an image is of, and each head knows its own classes better; `blend` takes from both:

    logit of class c of task t = mean of t's closed logits + ½ (closed + κ · head), both less their mean over t,

where κ brings t's head to the scale of the closed form, read off t's own class means. All of it is linear in the
image: the result is a plain head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from skillmesh.anchors.sketch import SketchAnchor, pooled_precision
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.closed_form import closed_form
from skillmesh.learning.head import ROUNDS, Head, Labels, calibrate
from skillmesh.learning.warm_start.prior import WarmFit, fit_warm
from skillmesh.numerics.tensors import Floats

Form = Literal["blend", "stitch", "closed", "rows"]
FORMS: tuple[Form, ...] = ("blend", "stitch", "closed", "rows")
HEADS_SHARE: dict[Form, float] = {"blend": 0.5, "stitch": 1.0, "closed": 0.0}
"""What part of telling a task's own classes apart is its head's."""


@dataclass(frozen=True)
class ComposedSource:
    """A task from which classes are taken: what its module carries, and which of its classes."""

    head: Head
    temperature: float
    anchor: SketchAnchor
    chosen: tuple[int, ...]

    @property
    def rows(self) -> list[int]:
        return list(self.chosen)


@dataclass(frozen=True)
class Composed:
    """A head over the chosen classes, source by source in the order given."""

    head: Head
    temperature: float = 1.0
    """Divides the logits. Without an image to find it on it is 1: they are as sure as the sources' were right."""


def compose(sources: Sequence[ComposedSource], prior: Prior, form: Form = "blend") -> Composed:
    """Put a head together from classes of any number of tasks, without an image."""
    if form == "rows":
        return compose_rows(sources)
    precision = pooled_precision([source.anchor for source in sources], prior)
    parts, loudness = [], []
    for source in sources:
        closed = closed_form(source.anchor.means, precision)
        scale = _scale(source, closed)
        loudness.append(scale * source.temperature)
        parts.append(_mixed(source, closed, scale, HEADS_SHARE[form]))
    return Composed(_joined(parts, np.float32(np.exp(-np.mean(np.log(loudness))))))


def refine(
    composed: Composed,
    x: Floats,
    labels: Labels,
    val_x: Floats,
    val_labels: Labels,
    rounds: int = ROUNDS,
) -> tuple[Composed, WarmFit | None]:
    """Go on with images, as far as they pay: the composed head is the centre of the next one's prior.

    The images must be new to the sources: they judge the composed head, and what it was made from would praise it.
    It stays as it is where the images that others are judged on say so, and where a class has but one image, which
    is too little to better it; the fit is `None` then.
    """
    judges = (val_x, val_labels) if len(val_x) else (x, labels)
    warm = fit_warm(x, labels, val_x, val_labels, composed.head.weight, composed.head.bias, rounds, margin=0)
    temperature, loss = calibrate(composed.head.logits(judges[0]), judges[1])
    if warm.loss is None or loss <= warm.loss:
        return Composed(composed.head, temperature), None
    return Composed(warm.head, warm.fit.temperature), warm


def compose_rows(sources: Sequence[ComposedSource]) -> Composed:
    """Rows and biases as they are, only each head as sure as it was on its own: the plain way, to compare with."""
    parts = [
        Head(
            source.head.weight[source.rows] / np.float32(source.temperature),
            source.head.bias[source.rows] / np.float32(source.temperature),
        )
        for source in sources
    ]
    return Composed(_joined(parts))


def _scale(source: ComposedSource, closed: Head) -> float:
    """κ: by how much the head must be multiplied to be nearest to the closed form at the task's class means."""
    ours, theirs = (_centred(head.logits(source.anchor.means)) for head in (source.head, closed))
    loud = float(np.vdot(ours, ours))
    agreed = float(np.vdot(ours, theirs))
    # A head that contradicts its own anchor has nothing to add; a trace of it keeps the temperature defined.
    return max(agreed / loud, 1e-6) if loud else 1.0


def _mixed(source: ComposedSource, closed: Head, scale: float, share: float) -> Head:
    """The closed form's mean over the chosen classes, and around it what both say about one against another."""
    rows = source.rows
    weight, bias = closed.weight[rows], closed.bias[rows]
    own_weight = scale * (source.head.weight[rows] - source.head.weight[rows].mean(axis=0))
    own_bias = scale * (source.head.bias[rows] - source.head.bias[rows].mean())
    return Head(
        np.asarray((1 - share) * weight + share * (weight.mean(axis=0) + own_weight), dtype=np.float32),
        np.asarray((1 - share) * bias + share * (bias.mean() + own_bias), dtype=np.float32),
    )


def _centred(logits: Floats) -> Floats:
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))


def _joined(parts: Sequence[Head], scale: np.float32 | float = 1.0) -> Head:
    weight, bias = (np.concatenate(rows) for rows in zip(*((p.weight, p.bias) for p in parts), strict=True))
    return Head(weight * np.float32(scale), bias * np.float32(scale))
