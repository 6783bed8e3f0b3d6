"""The mapper: which task is this image of, how sure is that, and is it of any task at all?

It is built from the anchors in a bank and from nothing else, so that equal banks have equal mappers. The scale of
its confidence and its threshold for "unknown" are found on the probes that the modules carry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, Scores
from skillmesh.answering.origins import is_copy, parts_here
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.head import best_temperature, softmax
from skillmesh.learning.probes import SHARES, probe_weights, read_probes
from skillmesh.module import Module
from skillmesh.module.joint import parts_of
from skillmesh.numerics.costs import spend
from skillmesh.numerics.tensors import Floats
from skillmesh.numerics.threads import one_thread

KNOWN = 0.975
"""Share of validation images that the threshold lets pass; of test images it is about 0.96."""
USUAL_SPREAD = 0.25
"""From the middle of novelty to the threshold, relative to the middle, as most banks have it."""
PSEUDO_PROBES = 4
"""So many probes' worth the usual spread weighs: a bank of one small task has little else."""
ASKED_MODULES = 512
"""About so many modules' probes set temperature and threshold, or all: more would tell nothing new."""
PROBES_AT_ONCE = 512
YIELD = 0.1
"""By so much, in log-odds, a composed task steps back: an image of a class that it shares with a source fits both
equally, and is the source's wherever that is. To compose a task changes nobody's answers."""
YIELD_TO_ALL = 3.0
"""The same where all its sources are here and it is seen to be a copy of them: it then knows nothing that they do
not, and should not halve their confidence either."""


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


@dataclass(frozen=True)
class Judged:
    """The short form of what the mapper says: no probabilities, of which there are images × tasks."""

    task: NDArray[np.int64]
    novelty: Floats
    unknown: NDArray[np.bool_]


class Mapper:
    """The pooled anchors of some modules, in the order given, with what their probes say."""

    def __init__(self, modules: Sequence[Module], kind: str, prior: Prior) -> None:
        # One BLAS thread: several may round otherwise, and agents with equal banks must have equal mappers.
        with one_thread():
            self._build(modules, kind, prior)

    def _build(self, modules: Sequence[Module], kind: str, prior: Prior) -> None:
        anchor_type = KINDS[kind]
        self._modules = modules
        self._yields = _steps_back(modules, kind)
        self._scorer = scorer = anchor_type.pool((anchor_type.read(m.tensors) for m in modules), prior)
        telling = [m for m, step in zip(modules, self._yields, strict=True) if step < YIELD_TO_ALL]
        if len(telling) < len(modules):  # copies of what is here must not change how sure the others are
            scorer = anchor_type.pool((anchor_type.read(m.tensors) for m in telling), prior)
        asked = range(0, len(telling), -(-len(telling) // ASKED_MODULES))
        voices = [_voices(telling[i]) for i in asked]
        owners, weights = np.repeat(asked, [len(v) for v in voices]), np.concatenate(voices)
        scores = Scores.joined([scorer.score(x) for x in _some_probes([telling[i] for i in asked])])
        spend("probes", len(owners) * scorer.macs)
        self.temperature = best_temperature(scores.task, owners, weights) if len(owners) else 1.0
        self.threshold = _threshold(scores.novelty, weights, self._scorer.usual_threshold)
        self._asked = self._judged(scores) if len(asked) == len(modules) else None

    @property
    def steps_back(self) -> NDArray[np.bool_]:
        """Which tasks stay behind what their anchors say: those composed of others, as far as can be seen."""
        return self._yields > 0

    @cached_property
    def probed(self) -> Judged:
        """What it makes of the probes of all modules, in their order."""
        if self._asked is not None:
            return self._asked
        parts = [self._judged(self._scorer.score(x)) for x in _some_probes(self._modules)]
        return Judged(*(np.concatenate(part) for part in zip(*(astuple(p) for p in parts), strict=True)))

    def _judged(self, scores: Scores) -> Judged:
        mapped = self._mapped(scores)
        return Judged(mapped.task, mapped.novelty, mapped.unknown)

    def on_trial(self) -> Mapper:
        """The same where no task stands back behind its sources: these may be withdrawn once it is let in."""
        if self._yields.max() <= YIELD:
            return self
        bold = copy(self)
        bold._yields = np.minimum(self._yields, np.float32(YIELD))
        bold.__dict__.pop("probed", None)
        return bold

    def map(self, x: Floats) -> Mapped:
        return self._mapped(self._scorer.score(x))

    def shortlist_agreement(self, x: Floats) -> float:
        """How often it finds the task that looking closely at all tasks would; 1 where it does look at all."""
        from skillmesh.anchors.shortlist import ShortlistScorer

        return self._scorer.agreement(x) if isinstance(self._scorer, ShortlistScorer) else 1.0

    def _mapped(self, scores: Scores) -> Mapped:
        posterior = softmax(scores.task / self.temperature - self._yields)
        return Mapped(posterior, scores.novelty, scores.novelty > self.threshold)


def _steps_back(modules: Sequence[Module], kind: str) -> Floats:
    """How far each task stays behind what its anchor says; one that lies about its origins, not at all."""
    here = parts_here(modules)
    steps = {None: YIELD, True: YIELD_TO_ALL, False: 0.0}
    return np.array(
        [steps[is_copy(m, here, kind)] if m.card.composed is not None else 0.0 for m in modules], dtype=np.float32
    )


def _voices(module: Module) -> NDArray[np.float64]:
    """What each of a task's probes stands for: one task one voice, of however many parts."""
    parts = parts_of(module)
    return np.concatenate([probe_weights(part.card.validation_images) for part in parts]) / len(parts)


def _some_probes(modules: Sequence[Module]) -> Iterator[Floats]:
    """The probes of all modules, as many at once as there is room for."""
    step = max(1, PROBES_AT_ONCE // len(SHARES))
    for start in range(0, len(modules), step):
        some = modules[start : start + step]
        yield np.concatenate([read_probes(m.tensors, m.card.dim) for m in some])


def _threshold(novelty: Floats, weights: NDArray[np.float64], default: float) -> float:
    """Where "unknown" begins: the novelty under which nearly all validation images of the bank's tasks lie."""
    if not len(novelty):
        return default
    order = np.argsort(novelty, kind="stable")
    heights = np.cumsum(weights[order]) - weights[order] / 2
    middle, measured = np.interp([0.5, KNOWN], heights / weights.sum(), novelty[order])
    usual = middle + USUAL_SPREAD * abs(middle)
    measured = min(measured, middle + 4 * USUAL_SPREAD * abs(middle))  # one odd teacher must not switch it off
    return float((len(novelty) * measured + PSEUDO_PROBES * usual) / (len(novelty) + PSEUDO_PROBES))
