"""A composed task goes on with images: the head as far as they pay, the anchor by what they add.

The images must be new to the sources' teachers: they judge the composed head, and what it was made from would
praise it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skillmesh.common.choices import Refining
from skillmesh.learning.head import ROUNDS, Head, Labels, calibrate
from skillmesh.learning.warm_start.epochs import Norm
from skillmesh.learning.warm_start.start import fit_epochs
from skillmesh.numerics.tensors import Floats
from skillmesh.synergy.composition.head import Composed, refine

EPOCHS = 10
"""Of the paper's forms, where nobody says how many."""


@dataclass(frozen=True)
class Images:
    """Described images of the composed classes, labelled as the new task counts them."""

    x: Floats
    labels: Labels
    val_x: Floats
    val_labels: Labels

    @property
    def judges(self) -> tuple[Floats, Labels]:
        return (self.val_x, self.val_labels) if len(self.val_x) else (self.x, self.labels)

    def can_judge(self, form: Refining) -> bool:
        """Whether images can be held back: without validation images `prior` does it in turn, others do not."""
        return bool(len(self.val_x)) or (form == "prior" and int(np.bincount(self.labels).min()) > 1)


@dataclass(frozen=True)
class Refined:
    """What became of the head."""

    composed: Composed
    accuracy: float | None
    """On the validation images."""
    words: str
    """What was tried and whether it was kept, for the card."""


def go_on(composed: Composed, images: Images, form: Refining, epochs: int | None) -> Refined:
    """Go on for so many epochs; the composed head stays where the images that judge find it as good."""
    temperature, old = calibrate(composed.head.logits(images.judges[0]), images.judges[1])
    stays = Composed(composed.head, temperature), _accuracy(composed.head, images)
    words = f"{form} form on {len(images.x)} images" + (f", {epochs} epochs" if epochs else "")
    if not images.can_judge(form):
        return Refined(*stays, f"{words}: nothing to judge it on, not tried")
    better = _by_prior(composed, images, epochs) if form == "prior" else _by_rows(composed, images, form, epochs)
    if better is None or better.loss >= old:
        return Refined(*stays, f"{words}: no better, not kept")
    return Refined(better.composed, better.accuracy, f"{words}: log-loss {old:.3f} to {better.loss:.3f}, kept")


@dataclass(frozen=True)
class _Better:
    composed: Composed
    loss: float
    accuracy: float | None


def _by_prior(composed: Composed, images: Images, epochs: int | None) -> _Better | None:
    found, fit = refine(composed, images.x, images.labels, images.val_x, images.val_labels, epochs or ROUNDS)
    if fit is None or fit.loss is None:
        return None
    return _Better(found, fit.loss, fit.fit.accuracy)


def _by_rows(composed: Composed, images: Images, norm: Norm, epochs: int | None) -> _Better:
    """The paper's way, as in a warm start: all rows are known, and validation images judge what comes of them."""
    rows = dict(enumerate(composed.head.weight))
    train, val = (images.x, images.labels), (images.val_x, images.val_labels)
    fit = fit_epochs(train, val, len(rows), rows, norm, epochs or EPOCHS)
    _, loss = calibrate(fit.before.logits(images.val_x), images.val_labels)
    return _Better(Composed(fit.head, fit.temperature), loss, fit.accuracy)


def _accuracy(head: Head, images: Images) -> float | None:
    if not len(images.val_x):
        return None
    return float(np.mean(head.logits(images.val_x).argmax(axis=1) == images.val_labels))
