"""The mapper: which task is this image of, how sure is that, and is it of any task at all?

It is built from the anchors in a bank and from nothing else, so that equal banks have equal mappers. The scale of
its confidence and its threshold for "unknown" are found on the probes that the modules carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.head import best_temperature, softmax
from skillmesh.learning.probes import read_probes
from skillmesh.module import Module
from skillmesh.tensors import Floats

SPREADS = 1.9
"""Upper semi-deviations from the median probe to the threshold; measured on tasks that were hidden in turn."""
USUAL_SPREAD = 0.13
"""Spread of novelty relative to its median, as most banks have it."""
PSEUDO_PROBES = 4


@dataclass(frozen=True)
class Mapped:
    """What the mapper says of n images and T tasks."""

    posterior: NDArray[np.floating]
    """(n, T): how probable each task is, given that the image is of one of them."""
    novelty: Floats
    """(n,): the larger, the less the image fits any task."""
    unknown: NDArray[np.bool_]

    @property
    def task(self) -> NDArray[np.int64]:
        """The most probable task's index, whether or not the image is unknown."""
        best: NDArray[np.int64] = self.posterior.argmax(axis=1)
        return best


class Mapper:
    """The pooled anchors of some modules, in the order given, with what their probes say."""

    def __init__(self, modules: Sequence[Module], kind: str, prior: Prior) -> None:
        anchor_type = KINDS[kind]
        self._scorer = anchor_type.pool([anchor_type.read(m.tensors) for m in modules], prior)
        probes = [read_probes(m.tensors, m.card.dim) for m in modules]
        owners = np.repeat(np.arange(len(modules)), [len(p) for p in probes])
        scores = self._scorer.score(np.concatenate(probes))
        self.temperature = best_temperature(scores.task, owners) if len(owners) else 1.0
        self.threshold = _threshold(scores.novelty, self._scorer.usual_threshold)

    def map(self, x: Floats) -> Mapped:
        scores = self._scorer.score(x)
        posterior = softmax(scores.task / self.temperature)
        return Mapped(posterior, scores.novelty, scores.novelty > self.threshold)


def _threshold(novelty: Floats, default: float) -> float:
    """Where "unknown" begins: so far above the median probe that one known image in twenty-five is beyond.

    A quantile of a few probes jumps about; how far the upper half of them spreads does so much less. A few
    pseudo-probes of a usual spread keep a bank of one task sensible.
    """
    if not len(novelty):
        return default
    middle = float(np.median(novelty))
    above = novelty[novelty > middle] - middle
    usual = USUAL_SPREAD * abs(middle)
    spread = np.sqrt((np.square(above).sum() + PSEUDO_PROBES * usual**2) / (len(above) + PSEUDO_PROBES))
    return middle + SPREADS * float(spread)
