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
from skillmesh.anchors.maha import MahaAnchor
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.calibration import Prior
from skillmesh.errors import SettingsMismatchError
from skillmesh.learning.head import Head
from skillmesh.learning.probes import SHARES, probe_weights, read_probes
from skillmesh.lowrank import thinned
from skillmesh.module import Module, in_order
from skillmesh.synergy.composition.head import Composed, Source, compose
from skillmesh.synergy.composition.picking import Picked
from skillmesh.synergy.rows.portable import refuse_strangers
from skillmesh.tensors import Floats
from skillmesh.threads import one_thread


@dataclass(frozen=True)
class Part:
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
class Task:
    """A composed task that is not signed yet."""

    composed: Composed
    anchor: Anchor
    probes: Floats
    validation_images: int
    """Those of the sources, of the chosen classes as far as counts can tell, that the probes stand for."""
    facts: dict[str, Any]
    """The card's fields that come from the sources."""


def composed_task(picked: Sequence[Picked], kind: str, prior: Prior, settings: AnchorSettings) -> Task:
    """Make a task of the classes, which come in the order given."""
    parts = _parts(picked)
    refuse_strangers([part.module.card for part in parts])
    if kind == "gmmc":
        raise SettingsMismatchError(
            "classes cannot be taken out of gmmc anchors: their clusters are of a whole task, not of a class; "
            "expected sketch or maha anchors; compose with an agent of another mapper"
        )
    with one_thread():  # as tasks are learned: the same whatever the number of threads
        sources = [_source(part, kind, settings) for part in parts]
        composed = compose(sources, prior)
        order = np.argsort([place for part in parts for place in part.places])
        head = Head(composed.head.weight[order], composed.head.bias[order])
        anchor = _anchor(parts, sources, kind, order, settings)
        probes, validation_images = _probes(parts, kind, anchor, prior)
    facts = {
        "classes": tuple(each.name for each in picked),
        "counts": tuple(each.module.card.counts[each.index] for each in picked),
        "composed": tuple(each.origin for each in picked),
        "licence": _licence(parts),
    }
    return Task(Composed(head, composed.temperature), anchor, probes, validation_images, facts)


def _parts(picked: Sequence[Picked]) -> list[Part]:
    """By module, in the bank's order: in whatever order classes are named, sums are the same."""
    modules = in_order({each.module.id: each.module for each in picked}.values())
    places = {
        m.id: sorted((each.index, i) for i, each in enumerate(picked) if each.module.id == m.id) for m in modules
    }
    return [Part(m, tuple(c for c, _ in places[m.id]), tuple(i for _, i in places[m.id])) for m in modules]


def _source(part: Part, kind: str, settings: AnchorSettings) -> Source:
    head, temperature = Head.read(part.module.tensors), part.module.card.temperature
    if kind == "sketch":
        return Source(head, temperature, SketchAnchor.read(part.module.tensors), part.chosen)
    samples = MahaAnchor.read(part.module.tensors)
    labels = np.repeat(np.arange(len(samples.counts)), samples.counts)
    scatter = SketchAnchor.fit(samples.samples, labels, len(samples.counts), settings)
    return Source(head, temperature, SketchAnchor(samples.means, scatter.scatter, scatter.freedom), part.chosen)


def _anchor(
    parts: Sequence[Part], sources: Sequence[Source], kind: str, order: NDArray[np.int64], settings: AnchorSettings
) -> Anchor:
    """As a reader of the module will have it."""
    if kind == "maha":
        return _maha(parts, order)
    means = np.concatenate([source.anchor.means[source.rows] for source in sources])[order]
    freedoms = [int(source.anchor.freedom * part.share) for source, part in zip(sources, parts, strict=True)]
    weights = freedoms if any(freedoms) else [1] * len(freedoms)
    scatters = [s.anchor.scatter.scaled(w / sum(weights)) for s, w in zip(sources, weights, strict=True)]
    made = SketchAnchor(means, thinned(scatters, settings.rank), sum(freedoms))
    return SketchAnchor.read(made.tensors())


def _maha(parts: Sequence[Part], order: NDArray[np.int64]) -> MahaAnchor:
    """The chosen classes' means and samples, in the new order."""
    means, samples = [], []
    for part in parts:
        anchor = MahaAnchor.read(part.module.tensors)
        own = np.split(anchor.samples, np.cumsum(anchor.counts, dtype=np.int64)[:-1])
        means += [anchor.means[index] for index in part.chosen]
        samples += [own[index] for index in part.chosen]
    counts = np.array([len(samples[i]) for i in order], dtype=np.uint8)
    return MahaAnchor(np.stack([means[i] for i in order]), np.concatenate([samples[i] for i in order]), counts)


def _probes(parts: Sequence[Part], kind: str, anchor: Anchor, prior: Prior) -> tuple[Floats, int]:
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


def _licence(parts: Sequence[Part]) -> str | None:
    """What the sources' images may be used for; all of it, where it can be said in a line."""
    known = " / ".join(dict.fromkeys(part.module.card.licence for part in parts if part.module.card.licence))
    if not known:
        return None
    return known if len(known) <= 200 else "several: those of the modules that it was composed of"
