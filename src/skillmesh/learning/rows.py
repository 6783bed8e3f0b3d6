"""Rows of heads that move from task to task: who has them, and how the paper trains on with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skillmesh.errors import SettingsMismatchError
from skillmesh.learning.class_names.encoders import Encoder
from skillmesh.learning.class_names.pairs import Encoded, joined, pairs, plain
from skillmesh.learning.head import Head, Labels, read_probes, softmax
from skillmesh.module import Module
from skillmesh.module.card import Space, refuse_elsewhere
from skillmesh.module.teachers import Signed, claimed
from skillmesh.numerics.arrays import Floats, head_macs, spend

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


def centre_of(classes: int, dim: int, rows: dict[int, Floats]) -> Floats:
    """A matched class has its row in the centre, any other has zeros."""
    centre: Floats = np.zeros((classes, dim), dtype=np.float32)
    for index, row in rows.items():
        centre[index] = row
    return centre


# The paper's way to warm heads: epochs of gradient descent that begin with the rows of known classes.
#
# In its section 6 a head has no bias and is trained with W′x in the forward pass, where each class's row is
# divided by its p-norm, so that rows of several tasks can stand beside each other. With the 2-norm all rows have
# the same length; with the infinity norm (the paper's choice) each row's largest weight is 1. `plain` divides by
# nothing. The paper states no optimiser for this; we take Adam with the step of 0.001 that it states for Head2Toe.

Norm = Literal["plain", "two", "infinity"]
NORMS: tuple[Norm, ...] = ("plain", "two", "infinity")

Watch = Callable[[int, Floats], None]
"""Told the weights that act, W′, before the first epoch (0) and after each."""


@dataclass(frozen=True)
class EpochSettings:
    """How rows are trained."""

    epochs: int = 30
    rate: float = 0.001
    batch: int = 32
    norm: Norm = "infinity"
    seed: int = 0


@dataclass
class _Adam:
    """Adam as published, with its usual constants."""

    rate: float
    steps: int = 0
    first: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    second: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    def step(self, weight: Floats, gradient: Floats) -> None:
        """Move `weight` where it lies. The gradient is used up: passes over memory are most of the time."""
        if not self.steps:
            self.first, self.second = np.zeros_like(weight), np.zeros_like(weight)
        self.steps += 1
        self.first *= np.float32(0.9)
        self.first += np.float32(0.1) * gradient
        self.second *= np.float32(0.999)
        np.square(gradient, out=gradient)
        gradient *= np.float32(0.001)
        self.second += gradient
        spread = np.divide(self.second, np.float32(1 - 0.999**self.steps), out=gradient)
        np.sqrt(spread, out=spread)
        spread += np.float32(1e-8)
        np.divide(self.first, spread, out=spread)
        spread *= np.float32(self.rate / (1 - 0.9**self.steps))
        weight -= spread


def random_rows(classes: int, dim: int, seed: int) -> Floats:
    """As torch's linear layer begins: uniform in ±1/√dim."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (classes, dim)).astype(np.float32) / np.float32(np.sqrt(dim))


def started_rows(classes: int, dim: int, rows: dict[int, Floats], seed: int) -> Floats:
    """The rows of matched classes where there are any, the rest at random."""
    weight = random_rows(classes, dim, seed)
    for index, row in rows.items():
        weight[index] = row
    return weight


def normed(weight: Floats, norm: Norm) -> Floats:
    """W′: each row divided by its norm."""
    return np.asarray(weight / _lengths(weight, norm)[:, None], dtype=np.float32)


def train_rows(
    x: Floats, labels: Labels, start: Floats, settings: EpochSettings, watch: Watch | None = None
) -> Floats:
    """Train for a fixed number of epochs and return W′: the last state is taken, whatever it is worth."""
    weight, adam = start.astype(np.float32), _Adam(settings.rate)  # a copy
    rng = np.random.default_rng(settings.seed)
    for epoch in range(settings.epochs + 1):
        if watch is not None:
            watch(epoch, normed(weight, settings.norm))
        if epoch == settings.epochs:
            break
        for some in _batches(len(x), settings.batch, rng):
            adam.step(weight, row_gradient(weight, x[some], labels[some], settings.norm))
    spend("head", head_macs(len(x), x.shape[1], len(start), settings.epochs))
    return normed(weight, settings.norm)


def row_gradient(weight: Floats, x: Floats, labels: Labels, norm: Norm) -> Floats:
    """Of the mean log-loss of W′x by W. With w′ = w/‖w‖ and g the gradient by w′, it is (g − (g·w′)∂‖w‖)/‖w‖."""
    lengths = _lengths(weight, norm)[:, None]
    acting: Floats = weight / lengths
    share = softmax(x @ acting.T)
    share[np.arange(len(labels)), labels] -= 1
    share /= np.float32(len(labels))
    gradient: Floats = np.asarray(share.T @ x, dtype=np.float32)
    if norm == "plain":
        return gradient
    along = np.einsum("ij,ij->i", gradient, acting)
    if norm == "two":  # the norm's derivative is the row itself
        gradient -= along[:, None] * acting
    else:  # it is the sign at the row's largest weight
        largest = np.arange(len(acting)), np.abs(acting).argmax(axis=1)
        gradient[largest] -= along * np.sign(acting[largest])
    gradient /= lengths
    return gradient


def _lengths(weight: Floats, norm: Norm) -> Floats:
    if norm == "plain":
        return np.ones(len(weight), dtype=np.float32)
    lengths = np.linalg.norm(weight, ord=2 if norm == "two" else np.inf, axis=1)
    return np.asarray(np.maximum(lengths, 1e-12), dtype=np.float32)


def _batches(images: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    order = rng.permutation(images)
    for start in range(0, images, size):
        yield order[start : start + size]
