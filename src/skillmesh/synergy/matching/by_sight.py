"""Which known class is a new one, by looking at a few of its images.

They go through the mapper and the winning task's head; if most land on one known class, that is the match. Names
and sight also go together: a name that matches stays a match unless the images speak against it, in the eyes of
the very task that has the name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from skillmesh.errors import DataError
from skillmesh.learning.class_names.pairs import Encoded, checked, pairs
from skillmesh.learning.head import Labels, softmax

if TYPE_CHECKING:
    from skillmesh.answering.mapper import Mapped
    from skillmesh.data.folder import TaskImages
    from skillmesh.data.inputs import AnyImage
    from skillmesh.learning.class_names.encoders import Encoder
    from skillmesh.module import Module
    from skillmesh.numerics.tensors import Floats
    from skillmesh.synergy.holder import Holder

IMAGES = 10
"""So many of a class's images are looked at."""
FEWEST = 3
"""With fewer images of a class nothing is said of it by sight: one or two land somewhere by chance."""
MOST = 0.5
"""More than this share of the images must land on one known class."""


@dataclass(frozen=True)
class Sighting:
    """A known class and the new class that it is like."""

    learned: str
    learned_task: str
    teacher: str
    target: str
    target_task: str
    images: int
    share: float
    """Of the images, how many the bank took for the known class; those that it does not know count for none."""
    agreement: float
    """The mean probability that the known task's head gives the known class, no mapper asked."""
    even: float
    """What an even share of that would be: one by the known task's classes."""
    name: float | None = None
    """The similarity of the names, where they were compared."""
    module: str = ""
    """The known task's id: names of tasks and teachers may be anybody's."""


@dataclass(frozen=True)
class BankView:
    """A few images of new classes, as an agent's bank sees them."""

    agent: Holder
    task: str
    classes: tuple[str, ...]
    x: Floats
    images: Sequence[AnyImage]
    labels: Labels
    modules: list[Module]
    mapped: Mapped

    @classmethod
    def of(cls, agent: Holder, folder: TaskImages, each: int = IMAGES) -> BankView:
        """Look at some training images of every class of a task."""
        split = folder.splits["train"]
        rows = _some(split.labels, each, agent.config.seed)
        described = agent.backbone.describe([split.files[row] for row in rows])
        x = agent.backbone.represent(described.raw, agent.config.representation, agent.config.compact)
        kept = rows[described.readable]
        modules, mapper = agent.mapper()
        files = [split.files[row] for row in kept]
        return cls(agent, folder.name, folder.classes, x, files, split.labels[kept], modules, mapper.map(x))

    def looked_at(self, target: int) -> int:
        return int(np.sum(self.labels == target))

    @cached_property
    def said(self) -> Labels:
        """The class that the winning task's head names, image by image."""
        said = np.empty(len(self.x), dtype=np.int64)
        for index in np.unique(self.mapped.task):
            rows = np.flatnonzero(self.mapped.task == index)
            said[rows] = self._given(self.modules[index], rows).argmax(axis=1)
        return said

    def landed(self, target: int) -> Counter[tuple[int, int]]:
        """How many images of a new class were taken for which known one, as places of module and class."""
        rows = np.flatnonzero((self.labels == target) & ~self.mapped.unknown)
        return Counter((int(self.mapped.task[row]), int(self.said[row])) for row in rows)

    def agreement(self, module: Module, target: int) -> Floats:
        """The mean probability of each of a module's classes over the images of a new class."""
        mean: Floats = self._given(module, np.flatnonzero(self.labels == target)).mean(axis=0)
        return mean

    def _given(self, module: Module, rows: Labels) -> Floats:
        seen = self.agent.seen_by(module, self.x[rows], [self.images[int(row)] for row in rows])
        return softmax(self.agent.head(module).logits(seen) / module.card.temperature)

    def sighting(self, place: int, known: int, target: int, name: float | None = None) -> Sighting:
        module, count = self.modules[place], self.looked_at(target)
        classes = module.card.classes
        share = self.landed(target)[place, known] / count
        agreement = float(self.agreement(module, target)[known])
        teacher = self.agent.teachers.of(module)
        ends = (classes[known], module.card.task, teacher, self.classes[target], self.task)
        return Sighting(*ends, count, share, agreement, 1 / len(classes), name, module.id)


def by_sight(view: BankView, least: float = MOST, fewest: int = FEWEST) -> list[Sighting]:
    """Return the known class on which most images of a new one land, for all new classes that have one."""
    found = []
    for target in range(len(view.classes)):
        landed, count = view.landed(target), view.looked_at(target)
        if count < fewest or not landed:
            continue
        (best, images), *_ = landed.most_common(1)
        if images / count > least:
            found.append(view.sighting(*best, target))
    return sorted(found, key=lambda s: (-s.share, s.target, s.learned_task, s.learned))


def by_both(
    view: BankView, encoder: Encoder, threshold: float | None = None, fewest: int = FEWEST
) -> list[Sighting]:
    """Return the matches by name that the images do not speak against, the surest first.

    They speak against a match where the known task's own head gives the class less than an even share: a signed
    digit is no written one, whatever it is called. Too few images say nothing, and the name decides.
    """
    new, least = Encoded.of(view.classes, encoder), checked(encoder, threshold)
    found = []
    for place, module in enumerate(view.modules):
        for known, target, score in pairs(Encoded.of(module.card.classes, encoder), new, least):
            if not view.looked_at(target):
                continue
            sighting = view.sighting(place, known, target, score)
            if sighting.images < fewest or sighting.agreement >= sighting.even:
                found.append(sighting)
    return sorted(found, key=lambda s: (-(s.name or 0), s.learned_task, s.learned, s.target))


def _some(labels: Labels, each: int, seed: int) -> Labels:
    """Rows of so many images of each class, at random."""
    if each < 1:
        raise DataError(f"{each} images of each class are to be looked at; expected one or more")
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(labels == c))[:each] for c in np.unique(labels)]
    return np.sort(np.concatenate(rows)) if rows else np.zeros(0, dtype=np.int64)
