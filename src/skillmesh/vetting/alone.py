"""What a module shows by itself, before it meets a bank: a few bounds that no honest teacher comes near.

A bank pools what its modules say of themselves, so one absurd number could move all of its answers. Each check
compares with the calibration, which every agent of a backbone has; `benchmarks/quarantine.py` measures how far
real tasks stay below the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skillmesh.anchors import KINDS
from skillmesh.anchors.sketch import MAX_TRACE
from skillmesh.answering.mapper import Mapper
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.head import Head
from skillmesh.learning.probes import read_probes
from skillmesh.module import Module
from skillmesh.numerics.tensors import Floats

MAX_DISTANCE = 8.0
"""Squared distance of a mean or probe from the calibration's centre, in units of that of images on average."""
MAX_CERTAINTY = 50.0
"""Log-odds of a head's best class over its second on images that are not of its task, in the middle."""
MAX_IMAGES = 10_000_000
"""Training images of a task. Counts weigh little here (a task has one voice at most), but a lie is a lie."""


@dataclass(frozen=True)
class Figures:
    """What was measured of a module by itself."""

    kind: str
    claim: float
    """Share of the background that it says it knows, in a bank of its own."""
    distance: float
    spread: float
    """Scatter within its classes, in units of the calibration's."""
    certainty: float
    oddity: float | None
    """Novelty of its middle probe; none where it has no probes."""
    images: int
    """What it says it was learned from."""
    freedom: int | None
    """Images less classes, as its anchor has it; none where the kind stores none."""

    @property
    def complaint(self) -> str | None:
        """What is wrong with it, as a sentence, or nothing."""
        if self.distance > MAX_DISTANCE:
            return (
                f"a mean or probe lies {self.distance:.3g} times as far out as images usually do, "
                f"expected at most {MAX_DISTANCE:g}"
            )
        if self.spread > MAX_TRACE:
            return (
                f"its classes scatter {self.spread:.3g} times as much as the calibration's, "
                f"expected at most {MAX_TRACE:g}"
            )
        if self.images > MAX_IMAGES:
            return f"it claims {self.images:,} training images, expected at most {MAX_IMAGES:,}"
        if self.freedom is not None and self.freedom > self.images:
            return f"its scatter claims {self.freedom:,} images, expected at most the {self.images:,} of its card"
        if self.certainty > MAX_CERTAINTY:
            return (
                f"its head prefers one class by {self.certainty:.3g} in log-odds on images of other tasks, "
                f"expected at most {MAX_CERTAINTY:g}"
            )
        low, high = KINDS[self.kind].usual_novelty
        if self.oddity is not None and not low <= self.oddity <= high:
            return (
                f"its probes are not of its classes: their novelty is {self.oddity:.3g} in the middle, "
                f"expected {low:g} to {high:g}"
            )
        if self.claim > (most := KINDS[self.kind].most_claimed):
            return f"it claims {self.claim:.0%} of the background images as its own, expected at most {most:.0%}"
        return None


def figures_of(module: Module, kind: str, prior: Prior, background: Floats) -> Figures:
    """Measure a module in a bank of its own. Nothing of other modules takes part: they cannot cover for it."""
    anchor = KINDS[kind].read(module.tensors)
    whole = prior.within.variances.sum() + prior.between.variances.sum()
    probes = read_probes(module.tensors, module.card.dim)
    rows = np.concatenate([anchor.rows(), probes]).astype(np.float64)
    mapper = Mapper([module], kind, prior)
    return Figures(
        kind=kind,
        claim=float(np.mean(~mapper.map(background).unknown)),
        distance=float(np.square(rows - prior.centre).sum(axis=1).max() / whole),
        spread=anchor.spread() / float(prior.within.variances.sum()),
        certainty=_certainty(module, background),
        oddity=float(np.median(mapper.probed.novelty)) if len(probes) else None,
        images=sum(module.card.counts),
        freedom=anchor.images_less_classes(),
    )


def _certainty(module: Module, background: Floats) -> float:
    if module.card.head_dim != module.card.dim:  # it looks at more than descriptors
        return 0.0
    logits = np.sort(Head.read(module.tensors).logits(background) / module.card.temperature, axis=1)
    return float(np.median(logits[:, -1] - logits[:, -2]))
