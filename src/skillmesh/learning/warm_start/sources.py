"""Who knows classes of a new task: modules with a class of the same meaning, whose rows may move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from skillmesh.errors import SettingsMismatchError
from skillmesh.learning.class_names.encoders import Encoder
from skillmesh.learning.class_names.pairs import Encoded, pairs
from skillmesh.learning.class_names.plain import joined, plain
from skillmesh.learning.head import Head
from skillmesh.learning.probes import read_probes
from skillmesh.learning.warm_start.prior import centre_of
from skillmesh.module import Module
from skillmesh.module.portable import Space, refuse_elsewhere
from skillmesh.module.teachers import Signed, claimed
from skillmesh.numerics.tensors import Floats

MOST_SOURCES = 16
"""Each is tried on all new images, which takes some tenths of a second."""
MOST_NAMES = 1000
"""Names of a bank that are encoded for one lesson, each 10 to 20 ms on one core: peers may send any number."""
LONGEST_NAME = 64
"""Letters in plain form. Time grows with length: cards allow names that take a tenth of a second each."""


@dataclass(frozen=True)
class KnownClass:
    """A class as a source knows it."""

    name: str
    similarity: float
    row: Floats


@dataclass(frozen=True)
class RowSource:
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
    classes: Sequence[str],
    modules: Sequence[Module],
    space: Space,
    images: Floats,
    encoder: Encoder,
    name_of: Callable[[Signed], str] = claimed,
) -> tuple[list[RowSource], list[str]]:
    """The modules whose rows may help, those that know most first, and of others that match by name, why not."""
    found: list[RowSource] = []
    refused: list[str] = []
    same_images: list[str] = []
    for module, matches in _matching(classes, modules, encoder):
        try:
            refuse_elsewhere(module.card, space)
        except SettingsMismatchError as error:
            refused.append(f"warm start: {error}")
            continue
        if saw(module, images):
            same_images.append(f"{module.card.task!r} by {name_of(module.card)}")
            continue
        found.append(_source(module, matches, name_of))
        if len(found) == MOST_SOURCES:
            break
    if same_images:
        more = f" and {len(same_images) - 3} more" if len(same_images) > 3 else ""
        refused.append(
            f"warm start: not from {', '.join(same_images[:3])}{more}, taught with images of this very task"
        )
    return found, refused


def _matching(
    classes: Sequence[str], modules: Sequence[Module], encoder: Encoder
) -> list[tuple[Module, dict[int, tuple[int, float]]]]:
    """Modules with classes of the same name, the most and surest first, then by id.

    A name that is equal in plain form stands there as the new class writes it: nothing has to be encoded for it.
    """
    new, found = Encoded.of(classes, encoder), []
    known = {joined(name): name for name in classes}
    worth = _worth_encoding(classes, modules)
    for module in modules:
        names = [known.get(joined(name), name) for name in module.card.classes]
        places = [place for place, name in enumerate(names) if joined(name) in known or plain(name) in worth]
        matches = one_to_one(Encoded.of([names[place] for place in places], encoder), new, encoder.threshold)
        if matches:
            found.append((module, {j: (places[i], score) for j, (i, score) in matches.items()}))
    return sorted(found, key=lambda pair: (-sum(score for _, score in pair[1].values()), pair[0].id))


def _worth_encoding(classes: Sequence[str], modules: Sequence[Module]) -> set[str]:
    """Plain forms of the names that are no new class's own and may be like one: first those that share a word.

    Then a module's first names before any module's second ones, so that one of many classes does not crowd out the
    others, and by spelling.
    """
    words = {word for name in classes for word in plain(name).split() if len(word) > 2}
    keys, ranks = {joined(name) for name in classes}, dict[str, tuple[bool, int]]()
    for module in modules:
        for place, name in enumerate(module.card.classes):
            form = plain(name)
            if len(form) <= LONGEST_NAME and joined(name) not in keys:
                rank = words.isdisjoint(form.split()), place
                ranks[form] = min(rank, ranks.get(form, rank))
    return set(sorted(ranks, key=lambda form: (*ranks[form], form))[:MOST_NAMES])


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
    found = sorted(pairs(old, new, threshold), key=lambda pair: (-pair[2], pair[0], pair[1]))
    matches: dict[int, tuple[int, float]] = {}
    taken: set[int] = set()
    for i, j, score in found:
        if j not in matches and i not in taken:
            matches[j] = i, score
            taken.add(i)
    return matches


def _source(
    module: Module, matches: dict[int, tuple[int, float]], name_of: Callable[[Signed], str] = claimed
) -> RowSource:
    weight, card = Head.read(module.tensors).weight, module.card
    known = {j: KnownClass(card.classes[i], score, weight[i]) for j, (i, score) in sorted(matches.items())}
    return RowSource(card.task, name_of(card), module.id, known)
