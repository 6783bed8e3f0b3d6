"""Who knows classes of a new task: modules with a class of the same meaning, whose rows may move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skillmesh.errors import SettingsMismatchError
from skillmesh.learning.head import Head
from skillmesh.learning.probes import read_probes
from skillmesh.module import Module
from skillmesh.synergy.encoders import Encoder
from skillmesh.synergy.matching import Encoded, similarity
from skillmesh.synergy.portable import Space, refuse_elsewhere
from skillmesh.synergy.warm import centre_of
from skillmesh.tensors import Floats


@dataclass(frozen=True)
class KnownClass:
    """A class as a source knows it."""

    name: str
    similarity: float
    row: Floats


@dataclass(frozen=True)
class Source:
    """A head that knows some of the new classes."""

    task: str
    teacher: str
    module: str
    """The module's id."""
    known: dict[int, KnownClass]
    """By the new class's index."""

    def centre(self, classes: int) -> Floats:
        rows = {index: known.row for index, known in self.known.items()}
        return centre_of(classes, len(next(iter(rows.values()))), rows)


def find_sources(
    classes: Sequence[str], modules: Sequence[Module], space: Space, images: Floats, encoder: Encoder
) -> tuple[list[Source], list[str]]:
    """The modules whose rows may help, by id, and of those that match by name but may not, why."""
    found, refused = [], []
    new = Encoded.of(classes, encoder)
    for module in sorted(modules, key=lambda module: module.id):
        matches = one_to_one(Encoded.of(module.card.classes, encoder), new, encoder.threshold)
        if not matches:
            continue
        try:
            refuse_elsewhere(module.card, space)
        except SettingsMismatchError as error:
            refused.append(f"warm start: {error}")
            continue
        if saw(module, images):
            refused.append(
                f"warm start: the rows of {module.card.task!r} by {module.card.teacher} are left alone: it was "
                "taught with images of this very task, which cannot say what its rows are worth"
            )
            continue
        found.append(_source(module, matches))
    return found, refused


def saw(module: Module, images: Floats) -> bool:
    """Whether one of the validation images that travel with the module is among these."""
    probes = read_probes(module.tensors, module.card.dim)
    scales = module.tensors.get("probe.scale", ())
    # A stored probe is off by half a step of its scale at most; a little more for another machine's rounding.
    return any(
        bool((np.abs(images - probe).max(axis=1, initial=0.0) <= 0.6 * scale).any())
        for probe, scale in zip(probes, scales, strict=True)
    )


def one_to_one(old: Encoded, new: Encoded, threshold: float) -> dict[int, tuple[int, float]]:
    """New class → old class and similarity, the surest first: no row is taken twice."""
    scores = similarity(old, new)
    pairs = sorted(((float(scores[i, j]), int(i), int(j)) for i, j in np.argwhere(scores >= threshold)),
                   key=lambda pair: (-pair[0], pair[1:]))  # fmt: skip
    matches: dict[int, tuple[int, float]] = {}
    taken: set[int] = set()
    for score, i, j in pairs:
        if j not in matches and i not in taken:
            matches[j] = i, score
            taken.add(i)
    return matches


def _source(module: Module, matches: dict[int, tuple[int, float]]) -> Source:
    weight, card = Head.read(module.tensors).weight, module.card
    known = {j: KnownClass(card.classes[i], score, weight[i]) for j, (i, score) in sorted(matches.items())}
    return Source(card.task, card.teacher, module.id, known)
