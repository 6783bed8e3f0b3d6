"""A whole module from classes of others, without an image: head, anchor, probes, counts and facts.

The head is `head.py`'s. The anchor keeps the chosen classes' means as they are. How images scatter around them
is known by task only, so the new task's scatter is the average of its sources', each weighed by how many of its
images were of the chosen classes. Probes are those of the sources that show a chosen class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, Anchor, AnchorSettings
from skillmesh.anchors.protocol import TakenClasses
from skillmesh.backbone.calibration import Prior
from skillmesh.errors import SettingsMismatchError
from skillmesh.learning.head import Head
from skillmesh.learning.probes import SHARES, probe_weights, read_probes
from skillmesh.module import Module, in_order
from skillmesh.module.portable import refuse_strangers
from skillmesh.numerics.tensors import Floats
from skillmesh.numerics.threads import one_thread
from skillmesh.synergy.composition.head import Composed, ComposedSource, compose
from skillmesh.synergy.composition.picking import Picked


@dataclass(frozen=True)
class ComposedPart:
    """A module from which classes are taken, and where they stand in the new task."""

    module: Module
    chosen: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def images(self) -> int:
        """Training images of the chosen classes."""
        return sum(self.module.card.counts[index] for index in self.chosen)

    @property
    def share(self) -> float:
        """What part of the task's images that is."""
        return self.images / sum(self.module.card.counts)


@dataclass(frozen=True)
class ComposedTask:
    """A composed task that is not signed yet."""

    composed: Composed
    anchor: Anchor
    probes: Floats
    validation_images: int
    """Those of the sources, of the chosen classes as far as counts can tell, that the probes stand for."""
    facts: dict[str, Any]
    """The card's fields that come from the sources."""


def composed_task(picked: Sequence[Picked], kind: str, prior: Prior, settings: AnchorSettings) -> ComposedTask:
    """Make a task of the classes, which come in the order given."""
    parts = _parts(picked)
    refuse_strangers([part.module.card for part in parts])
    with one_thread():  # as tasks are learned: the same whatever the number of threads
        sources = [_source(part, kind, settings) for part in parts]
        composed = compose(sources, prior)
        order = np.argsort([place for part in parts for place in part.places])
        head = Head(composed.head.weight[order], composed.head.bias[order])
        anchor = KINDS[kind].composed(
            [TakenClasses(KINDS[kind].read(p.module.tensors), p.chosen, p.share) for p in parts], order, settings
        )
        if anchor is None:
            raise _whole(kind)
        probes, validation_images = _probes(parts, kind, anchor, prior)
    facts = {
        "classes": tuple(each.name for each in picked),
        "counts": tuple(each.module.card.counts[each.index] for each in picked),
        "composed": tuple(each.origin for each in picked),
        "licence": _licence(parts),
    }
    return ComposedTask(Composed(head, composed.temperature), anchor, probes, validation_images, facts)


def _parts(picked: Sequence[Picked]) -> list[ComposedPart]:
    """By module, in the bank's order: in whatever order classes are named, sums are the same."""
    modules = in_order({each.module.id: each.module for each in picked}.values())
    places = {
        m.id: sorted((each.index, i) for i, each in enumerate(picked) if each.module.id == m.id) for m in modules
    }
    return [ComposedPart(m, tuple(c for c, _ in places[m.id]), tuple(i for _, i in places[m.id])) for m in modules]


def _source(part: ComposedPart, kind: str, settings: AnchorSettings) -> ComposedSource:
    sketch = KINDS[kind].read(part.module.tensors).sketch(settings)
    if sketch is None:
        raise _whole(kind)
    return ComposedSource(Head.read(part.module.tensors), part.module.card.temperature, sketch, part.chosen)


def _whole(kind: str) -> SettingsMismatchError:
    return SettingsMismatchError(
        f"classes cannot be taken out of {kind} anchors: what these have is of a whole task, not of a class; "
        "expected sketch or maha anchors; compose with an agent of another mapper"
    )


def _probes(parts: Sequence[ComposedPart], kind: str, anchor: Anchor, prior: Prior) -> tuple[Floats, int]:
    """Of the sources' probes that show a chosen class, the most usual to the oddest, as a task's own are chosen.

    Each stands for a part of its task's images. Where there are too few to stand for so many, they stand for
    themselves.
    """
    found, weights = [], []
    for part in parts:
        probes = read_probes(part.module.tensors, part.module.card.dim)
        shown = np.isin(Head.read(part.module.tensors).logits(probes).argmax(axis=1), part.chosen)
        found.append(probes[shown])
        weights.append(part.images * probe_weights(part.module.card.validation_images)[shown])
    x, weight = np.concatenate(found), np.concatenate(weights)
    behind = sum(round(part.module.card.validation_images * part.share) for part in parts)
    if len(x) < len(SHARES) or behind <= len(SHARES):
        return x[: len(SHARES)], min(len(x), len(SHARES))
    novelty = KINDS[kind].pool([anchor], prior).score(x).novelty
    return x[_layers(novelty, weight)], behind


def _layers(novelty: Floats, weights: NDArray[np.float64]) -> list[int]:
    """Of weighed images the middle ones of the layers that probes stand for, each another."""
    order = np.argsort(novelty, kind="stable")
    heights = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    chosen: list[int] = []
    for middle in np.cumsum(SHARES) - np.array(SHARES) / 2:
        nearest = np.argsort(np.abs(heights - middle), kind="stable")
        chosen.append(next(int(i) for i in nearest if int(i) not in chosen))
    return [int(order[i]) for i in sorted(chosen)]


def _licence(parts: Sequence[ComposedPart]) -> str | None:
    """What the sources' images may be used for; all of it, where it can be said in a line."""
    known = " / ".join(dict.fromkeys(part.module.card.licence for part in parts if part.module.card.licence))
    if not known:
        return None
    return known if len(known) <= 200 else "several: those of the modules that it was composed of"
