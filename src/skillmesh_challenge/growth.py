"""Growing: generate anchors of more tasks than there is data for from those of real tasks, and a bank of them.

The rule treats the real tasks as a sample of all possible tasks, and estimates how near the next one would
be. Seen from a class of one of R tasks, the nearest class of another task lies at a distance r (in units of the
pooled scatter). Were one more task drawn, it would be the nearest with probability 1/R, and then it would lie at
r·u^(1/k), with u uniform and k the dimension estimated from the distances to the nearest and second nearest task
(Facco et al., 2017). So a grown task is placed next to a real one, chosen at random: each of its classes beside a
class of that task, at such a distance, in a direction that is a random mixture of the directions to other tasks.

Images are not scattered as Gaussians: in some directions they spread more than the pooled scatter says, and real
tasks lie in these directions more often than a random mixture. `reach` corrects this: distances are multiplied by
it. It is always fitted: half of the real tasks, grown to all, must lose as much as they really do (`fit_reach`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from skillmesh.anchors.gaussians import pooled_precision
from skillmesh.anchors.protocol import Labels, first_columns
from skillmesh.anchors.sketch import SketchAnchor, SketchScorer
from skillmesh.backbone.calibration import Prior
from skillmesh.core import Core
from skillmesh.learning.head import probe_tensors, read_probes
from skillmesh.module import Card, Module
from skillmesh.numerics.arrays import Floats, Precision, Tensors

REACHES = (0.3, 3.0)
"""Smallest and largest reach that is tried."""
FITTING_STEPS = 5
FITTING_HALVES = 12


@dataclass(frozen=True)
class Family:
    """Real tasks, with the distances between their classes."""

    anchors: Sequence[SketchAnchor]
    means: Floats
    """(classes, dim): class means of all tasks."""
    owner: Labels
    nearest: Labels
    """(classes, tasks): the nearest class of each task."""
    distance: Floats
    """(classes, tasks): distance to that class; infinite for a class's own task."""
    precision: Precision

    @property
    def dimension(self) -> float:
        """Number of dimensions in which tasks spread, as seen from a class; every task has the same weight."""
        first, second = np.partition(self.distance, 1, axis=1)[:, :2].T
        weight = 1 / np.bincount(self.owner)[self.owner]
        growth = float(np.average(np.log(second / np.maximum(first, 1e-6)), weights=weight))
        return float(np.clip(1 / max(growth, 1e-6), 1, 100))


@dataclass(frozen=True)
class Grown:
    """A simulated task."""

    anchor: SketchAnchor
    donor: int
    """Index of the real task that it lies next to."""
    moved: Floats
    """(classes of the donor, dim): vector by which each class was moved."""


def related(anchors: Sequence[SketchAnchor], prior: Prior) -> Family:
    """Return the real tasks with the distances between their classes. At least three tasks are needed."""
    precision = pooled_precision(anchors, prior)
    means = np.concatenate([anchor.means for anchor in anchors])
    sizes = [len(anchor.means) for anchor in anchors]
    owner = np.repeat(np.arange(len(anchors)), sizes)
    distance = _distances(means, precision)
    distance[owner[:, None] == owner] = np.inf
    starts = first_columns(sizes)
    nearest = np.stack(
        [start + distance[:, start : start + n].argmin(axis=1) for start, n in zip(starts, sizes, strict=True)],
        axis=1,
    )
    return Family(anchors, means, owner, nearest, np.take_along_axis(distance, nearest, axis=1), precision)


def grow(
    family: Family, count: int, rng: np.random.Generator, reach: float = 1.0, classes: int | None = None
) -> Iterator[Grown]:
    """Yield simulated tasks, each next to a real one, with `classes` classes (None: as many as the real one)."""
    dimension = family.dimension
    for _ in range(count):
        donor = int(rng.integers(len(family.anchors)))
        near = reach * rng.uniform() ** (1 / dimension)
        own = np.flatnonzero(family.owner == donor)
        length = near * family.distance[own].min(axis=1)
        moved = _directions(family, own, donor, rng) * length[:, None].astype(np.float32)
        means = family.means[own] + moved
        if classes is not None:
            means = _resized(means, classes, rng)
        anchor = family.anchors[donor]
        yield Grown(SketchAnchor(means, anchor.scatter, anchor.freedom), donor, moved)


def recognised(anchors: Sequence[SketchAnchor], prior: Prior, shown: Sequence[Floats]) -> list[float]:
    """Return the share of images recognised for each of the first tasks; `shown` has their images, in order."""
    scorer = SketchScorer(list(anchors), prior)
    return [float(np.mean(scorer.score(x).task.argmax(axis=1) == task)) for task, x in enumerate(shown)]


def fit_reach(
    anchors: Sequence[SketchAnchor], prior: Prior, shown: Sequence[Floats], rng: np.random.Generator
) -> float:
    """Return the reach with which half of the tasks, grown to all, lose as much as they lose among all.

    Every reach is tried with the same halves and the same random seeds, so that only the reach makes a difference.
    """
    halves = [np.sort(rng.permutation(len(anchors))[: len(anchors) // 2]) for _ in range(FITTING_HALVES)]
    seeds = rng.integers(2**31, size=len(halves))
    whole = np.array(recognised(anchors, prior, shown))
    measured = float(np.mean([whole[half].mean() for half in halves]))
    families = [related([anchors[i] for i in half], prior) for half in halves]

    def grown(reach: float) -> float:
        shares = []
        for half, family, seed in zip(halves, families, seeds, strict=True):
            more = grow(family, len(anchors) - len(half), np.random.default_rng(seed), reach)
            bank = [*family.anchors, *(g.anchor for g in more)]
            shares.append(np.mean(recognised(bank, prior, [shown[i] for i in half])))
        return float(np.mean(shares))

    return crossing(grown, measured)


def crossing(grown: Callable[[float], float], measured: float) -> float:
    """Return the reach whose accuracy, which rises with it, is `measured`; an end of the range if none is."""
    near, far = REACHES
    for _ in range(FITTING_STEPS):
        middle = float(np.sqrt(near * far))
        near, far = (near, middle) if grown(middle) > measured else (middle, far)
    return float(np.sqrt(near * far))


def _distances(means: Floats, precision: Precision) -> Floats:
    centred = means - means.mean(axis=0)
    along = precision.along(centred)
    gram = (centred * precision.diagonal.astype(np.float32)) @ centred.T - along @ along.T
    square = gram.diagonal()[:, None] + gram.diagonal() - 2 * gram
    distances: Floats = np.sqrt(np.maximum(square, 1e-6))
    return distances


def _directions(family: Family, own: Labels, donor: int, rng: np.random.Generator) -> Floats:
    """Return a unit direction for each of a task's classes: one mixture for all, so that they stay together."""
    directions = np.zeros((len(own), family.means.shape[1]), dtype=np.float32)
    for task, weight in enumerate(rng.standard_normal(len(family.anchors))):
        if task != donor:
            steps = family.means[family.nearest[own, task]] - family.means[own]
            directions += steps * (weight / family.distance[own, task])[:, None].astype(np.float32)
    along = family.precision.along(directions)
    square = np.square(directions) @ family.precision.diagonal - np.square(along).sum(axis=1)
    unit: Floats = directions / np.sqrt(np.maximum(square, 1e-9))[:, None].astype(np.float32)
    return unit


def _resized(means: Floats, classes: int, rng: np.random.Generator) -> Floats:
    """Return `classes` means: a random choice of them, or more, made from the differences between them."""
    if classes <= len(means):
        return means[np.sort(rng.permutation(len(means))[:classes])]
    centre = means.mean(axis=0)
    mixture = rng.standard_normal((classes - len(means), len(means))) / np.sqrt(max(len(means) - 1, 1))
    more = centre + mixture.astype(np.float32) @ (means - centre)
    return np.concatenate([means, more])


# A bank of real and grown modules, as an agent would have it in memory.


def grown_bank(agent: Core, tasks: int, classes: int | None, reach: float, seed: int) -> list[Module]:
    """Return the agent's own modules, then grown ones, `tasks` modules in all.

    Grown modules have every part of a real one, in separate memory. The first is really signed and written, to get
    its size in bytes; the others differ from it in numbers only and are neither signed nor checked.
    """
    real = list(agent.bank)
    anchors = [SketchAnchor.read(module.tensors) for module in real]
    family = related(anchors, agent.prior)
    rng = np.random.default_rng(seed)
    bank, sizes = list(real), dict[int, int]()
    for number, grown in enumerate(grow(family, tasks - len(real), rng, reach, classes)):
        donor = real[grown.donor]
        card, tensors = _card(donor, grown, number), _tensors(donor, anchors[grown.donor], grown)
        count = len(card.classes)
        if count not in sizes:
            sizes[count] = Module.create(_signable(card, agent), tensors, agent.identity)[0].size
        bank.append(Module(card, tensors, f"grown-{number}", f"grown-{number}", sizes[count]))
    return bank


def _card(donor: Module, grown: Grown, number: int) -> Card:
    classes = len(grown.anchor.means)
    changes = {
        "task": f"grown-{number:05}",
        "classes": tuple(f"class {index:03}" for index in range(classes)),
        "counts": tuple(donor.card.counts[index % len(donor.card.counts)] for index in range(classes)),
    }
    return donor.card.model_copy(update=changes)


def _signable(card: Card, agent: Core) -> Card:
    return card.model_copy(update={"teacher_key": agent.identity.public_key, "teacher": agent.name})


def _tensors(donor: Module, anchor: SketchAnchor, grown: Grown) -> Tensors:
    tensors = grown.anchor.tensors()
    probes = read_probes(donor.tensors, donor.card.dim)
    if len(probes):
        tensors |= probe_tensors(_moved(probes, anchor, grown))
    rows = np.arange(len(grown.anchor.means)) % len(anchor.means)
    return tensors | {name: donor.tensors[name][rows] for name in ("head.weight", "head.scale", "head.bias")}


def _moved(probes: Floats, anchor: SketchAnchor, grown: Grown) -> Floats:
    """Return the donor's probes, each moved like its nearest class."""
    square = np.square(anchor.means).sum(axis=1)
    nearest = (2 * probes @ anchor.means.T - square).argmax(axis=1)
    moved: Floats = probes + grown.moved[nearest]
    return moved
