"""Heads of several teachers as one: each class is judged by all who know it, as much as they have seen of it.

A head tells its own classes apart, and how loud it is depends on how it was trained; of classes that it never saw
it says nothing. The merged anchor gives a closed-form head over all classes, whose levels can be compared. So each
head is first brought to its scale and level over the head's own classes; then, for every class c,

    logit = ½ closed + ½ Σ wₚ (κₚ · headₚ less its mean over p's classes + mean of closed over p's classes),

with wₚ the part's share of the images of c. All of it is linear in the image: the result is a plain head. Why
half: `docs/synergy-merge.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors.sketch import SketchAnchor, pooled_precision
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.closed_form import closed_form
from skillmesh.learning.head import Head
from skillmesh.numerics.tensors import Floats

HEADS_SHARE = 0.5
"""What part of a logit is the heads'; the rest is the closed form's."""
SILENT = 0.0
"""How loud a head is that contradicts the anchors of all teachers: it has nothing to add."""


@dataclass(frozen=True)
class HeadPart:
    """A teacher's head, and how much it rests on."""

    head: Head
    temperature: float
    places: NDArray[np.int64]
    """Where its classes stand among all."""
    evidence: NDArray[np.float64]
    """Images of each of its classes."""


def combined(
    parts: Sequence[HeadPart], closed: Head, means: Floats, share: float = HEADS_SHARE
) -> tuple[Head, float]:
    """The head over all classes, and its temperature: it is as sure as the heads were on average."""
    seen = np.zeros(len(means))
    for part in parts:
        seen[part.places] += part.evidence
    weight = (1 - share) * closed.weight.astype(np.float64)
    bias = (1 - share) * closed.bias.astype(np.float64)
    loudness = []
    for part in parts:
        rows = Head(closed.weight[part.places], closed.bias[part.places])
        scale = _scale(part, rows, means[part.places])
        voice = share * part.evidence / seen[part.places]
        weight[part.places] += voice[:, None] * _levelled(part.head.weight, rows.weight, scale)
        bias[part.places] += voice * _levelled(part.head.bias, rows.bias, scale)
        loudness += [np.log(scale * part.temperature)] if scale > SILENT else []
    temperature = float(np.exp(np.mean(loudness))) if loudness else 1.0
    return Head(weight.astype(np.float32), bias.astype(np.float32)), temperature


def together(parts: Sequence[HeadPart], anchor: SketchAnchor, prior: Prior) -> Head:
    """`combined` around the closed form of an anchor, already divided by its temperature."""
    closed = closed_form(anchor.means, pooled_precision([anchor], prior))
    head, temperature = combined(parts, closed, anchor.means)
    return Head(head.weight / np.float32(temperature), head.bias / np.float32(temperature))


def _levelled(own: Floats, closed: Floats, scale: float) -> NDArray[np.float64]:
    """A head's rows or biases, as loud as the closed form's and around the same middle."""
    ours, theirs = own.astype(np.float64), closed.astype(np.float64)
    return np.asarray(scale * (ours - ours.mean(axis=0)) + theirs.mean(axis=0))


def _scale(part: HeadPart, closed: Head, means: Floats) -> float:
    """κ: by how much the head must be multiplied to be nearest to the closed form at its own classes' means."""
    ours, theirs = (_centred(head.logits(means)) for head in (part.head, closed))
    loud = float(np.vdot(ours, ours))
    return max(float(np.vdot(ours, theirs)) / loud, SILENT) if loud else SILENT


def _centred(logits: Floats) -> NDArray[np.float64]:
    found = logits.astype(np.float64)
    return np.asarray(found - found.mean(axis=1, keepdims=True))
