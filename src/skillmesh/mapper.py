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
        self.threshold = _threshold(scores.novelty)

    def map(self, x: Floats) -> Mapped:
        scores = self._scorer.score(x)
        posterior = softmax(scores.task / self.temperature)
        return Mapped(posterior, scores.novelty, scores.novelty > self.threshold)


def _threshold(novelty: Floats) -> float:
    return float(np.quantile(novelty, 0.97)) if len(novelty) else float("inf")
