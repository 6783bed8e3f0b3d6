"""Warm start: a new class begins with what is known of a class like it.

A start does not move the optimum of a regularised convex head, so the row of a matched class becomes the centre of
its prior: the head pays for its distance from that row instead of from zero. How far the old rows are to be
believed is first read off the new images, which their teacher never saw, and whether they help at all is decided
where every choice of ours is: on images that the head was not trained on. The old rows must win there by more than
a standard error: a draw is the cold head's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skillmesh.learning.head import (
    DEFAULT_STRENGTH,
    STRENGTHS,
    Fit,
    Head,
    Labels,
    calibrate,
    fit_head,
    fit_path,
    losses,
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


def centre_of(classes: int, dim: int, rows: dict[int, Floats]) -> Floats:
    """A matched class has its row in the centre, any other has zeros."""
    centre: Floats = np.zeros((classes, dim), dtype=np.float32)
    for index, row in rows.items():
        centre[index] = row
    return centre


def fit_warm(x: Floats, labels: Labels, val_x: Floats, val_labels: Labels, centre: Floats) -> WarmFit:
    """Fit a head whose prior lies around `centre`, or `fit_head`'s own unless that is worse on held-back images.

    Without validation images each part of the training images is held back once. Where a class has a single image
    nothing can be held back: the centre is then taken, as strong as these images say, if it tells them apart, and
    if it has more than one row, about which they say too little.
    """
    cold = fit_head(x, labels, val_x, val_labels, len(centre))
    matched = int(centre.any(axis=1).sum())
    if not matched:
        return WarmFit(cold, 0.0)
    if len(val_x):
        return _chosen_on_validation(cold, (x, labels), (val_x, val_labels), centre)
    if np.bincount(labels, minlength=len(centre)).min() < 2:
        best, loss = _Candidate(DEFAULT_STRENGTH, warm=matched > 1 and evidence(x, labels, centre) > 1), None
    else:
        best, loss = _best_in_folds(x, labels, centre)
    if not best.warm:
        return WarmFit(cold, 0.0, loss)
    pull = trust(x, labels, centre)
    head = fit_path(x, labels, len(centre), [best.strength], centre * pull)[0]
    return WarmFit(Fit(head, best.strength, 1.0, None, head), float(pull), loss)


def trust(x: Floats, labels: Labels, centre: Floats) -> np.float32:
    """By how much the old rows must be multiplied to be as sure of these images as they are right about them.

    Rows that tell them apart are taken as they are or made louder; rows of a class that only has the same name
    come out next to nothing. Images of classes without a match have a say too: no old row should claim them.
    """
    return np.float32(1 / calibrate(_old_logits(x, labels, centre), labels)[0])


def evidence(x: Floats, labels: Labels, centre: Floats) -> float:
    """How much surer than a guess old rows are of these images, in standard errors of the mean gain."""
    logits = _old_logits(x, labels, centre)
    judged = losses(logits / calibrate(logits, labels)[0], labels)
    return ahead(np.full(len(judged), np.log(len(centre))), judged)


def ahead(ours: NDArray[np.floating], theirs: NDArray[np.floating]) -> float:
    """By how many standard errors `theirs` are smaller losses than `ours`, image by image."""
    gain = ours - theirs
    if len(gain) < 2:
        return 0.0
    return float(gain.mean() / max(float(gain.std(ddof=1)) / np.sqrt(len(gain)), 1e-12))


def _old_logits(x: Floats, labels: Labels, centre: Floats) -> Floats:
    """Of rows whose biases belong to another task: the middle of the new classes is nobody's."""
    mean = np.mean([x[labels == c].mean(axis=0) for c in np.unique(labels)], axis=0)
    return np.asarray((x - mean) @ centre.T)


def _chosen_on_validation(
    cold: Fit, train: tuple[Floats, Labels], val: tuple[Floats, Labels], centre: Floats
) -> WarmFit:
    """As `fit_head` chooses: by log-loss, then fit once more with the validation images added."""
    by_cold, loss = _judged(cold.before.logits(val[0]), val[1])
    heads = fit_path(*train, len(centre), WARM_STRENGTHS, centre * trust(*train, centre))
    best, by_warm, warm_loss = _best([head.logits(val[0]) for head in heads], val[1])
    if ahead(by_cold, by_warm) <= 1:
        return WarmFit(cold, 0.0, loss)
    logits = heads[best].logits(val[0])
    both = np.concatenate([train[0], val[0]]), np.concatenate([train[1], val[1]])
    pull = trust(*both, centre)
    head = fit_path(*both, len(centre), [WARM_STRENGTHS[best]], centre * pull)[0]
    accuracy = float(np.mean(logits.argmax(axis=1) == val[1]))
    fit = Fit(head, WARM_STRENGTHS[best], calibrate(logits, val[1])[0], accuracy, heads[best])
    return WarmFit(fit, float(pull), warm_loss)


def _best_in_folds(x: Floats, labels: Labels, centre: Floats) -> tuple[_Candidate, float]:
    """The warm candidate of least log-loss on images held back in turn, or the cold one; and that loss."""
    logits = np.empty((1 + len(WARM_STRENGTHS), len(x), len(centre)), dtype=np.float32)
    for held in folds(labels, FOLDS):
        kept_x, kept = x[~held], labels[~held]
        cold = fit_path(kept_x, kept, len(centre), [DEFAULT_STRENGTH])
        warm = fit_path(kept_x, kept, len(centre), WARM_STRENGTHS, centre * trust(kept_x, kept, centre))
        for place, head in zip(logits, cold + warm, strict=True):
            place[held] = head.logits(x[held])
    by_cold, loss = _judged(logits[0], labels)
    best, by_warm, warm_loss = _best(list(logits[1:]), labels)
    if ahead(by_cold, by_warm) <= 1:
        return _Candidate(DEFAULT_STRENGTH, False), loss
    return _Candidate(WARM_STRENGTHS[best], True), warm_loss


def _judged(logits: Floats, labels: Labels) -> tuple[NDArray[np.floating], float]:
    """Each image's log-loss once the logits are as sure as they should be, and its mean."""
    temperature, mean = calibrate(logits, labels)
    return losses(logits / temperature, labels), mean


def _best(logits: list[Floats], labels: Labels) -> tuple[int, NDArray[np.floating], float]:
    """Which of several heads has the least mean log-loss, each image's, and the mean."""
    judged = [_judged(each, labels) for each in logits]
    best = min(range(len(judged)), key=lambda i: judged[i][1])
    return best, *judged[best]


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
