"""Warm start: a new class begins with what is known of a class like it.

A start does not move the optimum of a regularised convex head, so the row of a matched class becomes the centre of
its prior: the head pays for its distance from that row instead of from zero. How far the old rows are to be
believed is first read off the new images, which their teacher never saw, and whether they help at all is decided
where every choice of ours is: on images that the head was not trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skillmesh.learning.head import (
    DEFAULT_STRENGTH,
    ROUNDS,
    STRENGTHS,
    Fit,
    Head,
    Labels,
    calibrate,
    fit_head,
    fit_path,
    road,
)
from skillmesh.tensors import Floats

WARM_STRENGTHS = (1.0, *STRENGTHS)
"""Strongest first. At 1 a head hardly leaves the centre, which is what few images of well-known classes want."""
FOLDS = 5
"""Where there are no validation images, each part of the training images is held back once."""


@dataclass(frozen=True)
class WarmFit:
    """A head, and whether what was known before had a part in it."""

    fit: Fit
    pull: float
    """By how much the old rows were multiplied to be the centre; 0: nothing was taken over, the head is cold."""
    loss: float | None = None
    """Log-loss on held-back images, where some could be."""

    @property
    def head(self) -> Head:
        return self.fit.head


@dataclass(frozen=True)
class _Candidate:
    """How a head might be fitted."""

    strength: float
    warm: bool


@dataclass(frozen=True)
class _Known:
    """What was known before, and how long a head may move away from it."""

    centre: Floats
    bias: Floats | None
    rounds: int

    def fit(self, x: Floats, labels: Labels, strengths: Sequence[float]) -> tuple[list[Head], np.float32]:
        """Heads with a prior around the old rows, as loud as these images want them, and how loud that is."""
        pull = trust(x, labels, self.centre, self.bias)
        bias = None if self.bias is None else self.bias * pull
        heads = fit_path(x, labels, len(self.centre), strengths, self.centre * pull, bias, self.rounds)
        return heads, pull


def centre_of(classes: int, dim: int, rows: dict[int, Floats]) -> Floats:
    """A matched class has its row in the centre, any other has zeros."""
    centre: Floats = np.zeros((classes, dim), dtype=np.float32)
    for index, row in rows.items():
        centre[index] = row
    return centre


def fit_warm(
    x: Floats,
    labels: Labels,
    val_x: Floats,
    val_labels: Labels,
    centre: Floats,
    bias: Floats | None = None,
    rounds: int = ROUNDS,
) -> WarmFit:
    """Fit a head whose prior lies around `centre`, or `fit_head`'s own where that is better on held-back images.

    Without validation images each part of the training images is held back once. Where a class has a single image
    nothing can be held back: the centre is then taken, as strong as these images say, unless it has but one row,
    about which they say too little. `bias` is the centre's own, where all of its rows come from one head.
    """
    cold = fit_head(x, labels, val_x, val_labels, len(centre), rounds)
    known = _Known(centre, bias, rounds)
    matched = int(centre.any(axis=1).sum())
    if not matched:
        return WarmFit(cold, 0.0)
    if len(val_x):
        return _chosen_on_validation(cold, (x, labels), (val_x, val_labels), known)
    if np.bincount(labels, minlength=len(centre)).min() < 2:
        best, loss = _Candidate(DEFAULT_STRENGTH, warm=matched > 1), None
    else:
        best, loss = _best_in_folds(x, labels, known)
    if not best.warm:
        return WarmFit(cold, 0.0, loss)
    (head,), pull = known.fit(x, labels, [best.strength])
    return WarmFit(Fit(head, best.strength, 1.0, None, head), float(pull), loss)


def trust(x: Floats, labels: Labels, centre: Floats, bias: Floats | None = None) -> np.float32:
    """By how much the old rows must be multiplied to be as sure of these images as they are right about them.

    Rows that tell them apart are taken as they are or made louder; rows of a class that only has the same name
    come out next to nothing. Images of classes without a match have a say too: no old row should claim them.
    Without a bias of their own the rows look at images less the mean of the classes.
    """
    if bias is not None:
        return np.float32(1 / calibrate(x @ centre.T + bias, labels)[0])
    mean = np.mean([x[labels == c].mean(axis=0) for c in np.unique(labels)], axis=0)
    temperature, _ = calibrate((x - mean) @ centre.T, labels)
    return np.float32(1 / temperature)


def _chosen_on_validation(
    cold: Fit, train: tuple[Floats, Labels], val: tuple[Floats, Labels], known: _Known
) -> WarmFit:
    """As `fit_head` chooses: by log-loss, then fit once more with the validation images added."""
    loss = calibrate(cold.before.logits(val[0]), val[1])[1]
    heads, _ = known.fit(*train, WARM_STRENGTHS)
    judged = [calibrate(head.logits(val[0]), val[1]) for head in heads]
    best = min(range(len(heads)), key=lambda i: judged[i][1])
    if judged[best][1] >= loss:
        return WarmFit(cold, 0.0, loss)
    accuracy = float(np.mean(heads[best].logits(val[0]).argmax(axis=1) == val[1]))
    both = np.concatenate([train[0], val[0]]), np.concatenate([train[1], val[1]])
    (*_, head), pull = known.fit(*both, road(WARM_STRENGTHS, best, known.rounds))
    fit = Fit(head, WARM_STRENGTHS[best], judged[best][0], accuracy, heads[best])
    return WarmFit(fit, float(pull), judged[best][1])


def _best_in_folds(x: Floats, labels: Labels, known: _Known) -> tuple[_Candidate, float]:
    """The candidate of least log-loss on images held back in turn, and that; a draw is the cold head's."""
    candidates = [_Candidate(DEFAULT_STRENGTH, False), *(_Candidate(s, True) for s in WARM_STRENGTHS)]
    classes = len(known.centre)
    logits = np.empty((len(candidates), len(x), classes), dtype=np.float32)
    for held in folds(labels, FOLDS):
        kept_x, kept = x[~held], labels[~held]
        cold = fit_path(kept_x, kept, classes, [DEFAULT_STRENGTH], rounds=known.rounds)
        warm, _ = known.fit(kept_x, kept, WARM_STRENGTHS)
        for place, head in zip(logits, cold + warm, strict=True):
            place[held] = head.logits(x[held])
    losses = [calibrate(each, labels)[1] for each in logits]
    best = int(np.argmin(losses))
    return candidates[best], losses[best]


def folds(labels: Labels, most: int) -> Iterator[NDArray[np.bool_]]:
    """Parts of the images, as masks, with the images of every class dealt out in turn.

    There are as many as the rarest class has images, at most `most`, so that no class is ever held back whole.
    """
    counts = np.bincount(labels)
    parts = min(most, int(counts[counts > 0].min()))
    turn = np.empty(len(labels), dtype=np.int64)
    for c in np.flatnonzero(counts):
        turn[labels == c] = np.arange(counts[c]) % parts
    for part in range(parts):
        yield turn == part
