"""Rows of heads reused in new tasks: which modules have them, and how the paper continues training with them."""

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
"""Largest number of sources: each is tried on all new images, which takes some tenths of a second."""
MOST_NAMES = 1000
"""Largest number of a bank's class names encoded for one lesson, since peers may send any number.

Each takes 10 to 20 ms on one core."""
LONGEST_NAME = 64
"""Largest number of letters (in plain form) of a name that is encoded.

Time grows with length: cards allow names that take a tenth of a second each."""


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
    """The known classes, by index of the new class."""

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
    """Return the modules whose rows may help, best match first, and notes on matching ones that cannot be used."""
    sources: list[RowSource] = []
    notes: list[str] = []
    same_images: list[str] = []
    for module, matches in _matching(classes, modules, encoder):
        try:
            refuse_elsewhere(module.card, space)
        except SettingsMismatchError as error:
            notes.append(f"warm start: {error}")
            continue
        if has_seen(module, images):
            same_images.append(f"{module.card.task!r} by {name_of(module.card)}")
            continue
        sources.append(_source(module, matches, name_of))
        if len(sources) == MOST_SOURCES:
            break
    if same_images:
        more = f" and {len(same_images) - 3} more" if len(same_images) > 3 else ""
        notes.append(
            f"warm start: rows of {', '.join(same_images[:3])}{more} are not used: "
            "they were learned from images of this very task"
        )
    return sources, notes


def _matching(
    classes: Sequence[str], modules: Sequence[Module], encoder: Encoder
) -> list[tuple[Module, dict[int, tuple[int, float]]]]:
    """Return modules with classes of matching names, and the matches: most and most similar first, then by id.

    A name equal to a new class's in plain form is replaced by the new spelling, which is encoded already.
    """
    new, matching = Encoded.of(classes, encoder), []
    known = {joined(name): name for name in classes}
    worth = _worth_encoding(classes, modules)
    for module in modules:
        names = [known.get(joined(name), name) for name in module.card.classes]
        places = [place for place, name in enumerate(names) if joined(name) in known or plain(name) in worth]
        matches = one_to_one(Encoded.of([names[place] for place in places], encoder), new, encoder.threshold)
        if matches:
            matching.append((module, {j: (places[i], score) for j, (i, score) in matches.items()}))
    return sorted(matching, key=lambda pair: (-sum(score for _, score in pair[1].values()), pair[0].id))


def _worth_encoding(classes: Sequence[str], modules: Sequence[Module]) -> set[str]:
    """Return plain forms of up to `MOST_NAMES` names that equal no new class but may be similar to one.

    Names that share a word with a new class come first. Then all modules' first names come before their second
    ones, so that a module of many classes does not crowd out the others; then alphabetical order decides.
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


def has_seen(module: Module, images: Floats) -> bool:
    """Return whether one of the module's probes is among these images."""
    probes = read_probes(module.tensors, module.card.dim)
    scales = module.tensors.get("probe.scale", ())
    # A stored probe is off by half a step of its scale at most; a little more for another machine's rounding.
    return any(
        bool((np.abs(images - probe).max(axis=1, initial=0.0) <= 0.6 * scale).any())
        for probe, scale in zip(probes, scales, strict=True)
    )


def one_to_one(old: Encoded, new: Encoded, threshold: float) -> dict[int, tuple[int, float]]:
    """Return new class → (old class, similarity), most similar pairs first; no old class is used twice."""
    candidates = sorted(pairs(old, new, threshold), key=lambda pair: (-pair[2], pair[0], pair[1]))
    matches: dict[int, tuple[int, float]] = {}
    used: set[int] = set()
    for i, j, score in candidates:
        if j not in matches and i not in used:
            matches[j] = i, score
            used.add(i)
    return matches


def _source(
    module: Module, matches: dict[int, tuple[int, float]], name_of: Callable[[Signed], str] = claimed
) -> RowSource:
    weight, card = Head.read(module.tensors).weight, module.card
    known = {j: KnownClass(card.classes[i], score, weight[i]) for j, (i, score) in sorted(matches.items())}
    return RowSource(card.task, name_of(card), module.id, known)


def centre_of(classes: int, dim: int, rows: dict[int, Floats]) -> Floats:
    """Return the centre of the prior: the row of each matched class, zeros for the others."""
    centre: Floats = np.zeros((classes, dim), dtype=np.float32)
    for index, row in rows.items():
        centre[index] = row
    return centre


# Warm start as in the paper: epochs of gradient descent that start from the rows of known classes.
#
# In its section 6 a head has no bias and is trained with W′x in the forward pass, where each class's row is
# divided by its p-norm, so that rows of several tasks can be combined. With the 2-norm all rows have the same
# length; with the infinity norm (the paper's choice) each row's largest weight is 1. `plain` does not divide.
# The paper states no optimiser for this; we use Adam with the rate of 0.001 that it states for Head2Toe.

Norm = Literal["plain", "two", "infinity"]
NORMS: tuple[Norm, ...] = ("plain", "two", "infinity")

Watch = Callable[[int, Floats], None]
"""Callback that gets the epoch (0 before the first) and the normalised weights W′ at that point."""


@dataclass(frozen=True)
class EpochSettings:
    """Settings of the training of rows."""

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
        """Update `weight` in place. The gradient is overwritten, since memory access takes most of the time."""
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
    """Return random rows, uniform in ±1/√dim, as torch initialises a linear layer."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (classes, dim)).astype(np.float32) / np.float32(np.sqrt(dim))


def started_rows(classes: int, dim: int, rows: dict[int, Floats], seed: int) -> Floats:
    """Return the rows to start from: those of matched classes, random ones for the others."""
    weight = random_rows(classes, dim, seed)
    for index, row in rows.items():
        weight[index] = row
    return weight


def normed(weight: Floats, norm: Norm) -> Floats:
    """Return W′: each row divided by its norm."""
    return np.asarray(weight / _lengths(weight, norm)[:, None], dtype=np.float32)


def train_rows(
    x: Floats, labels: Labels, start: Floats, settings: EpochSettings, watch: Watch | None = None
) -> Floats:
    """Train for a fixed number of epochs and return W′ after the last one, even if an earlier one was better."""
    weight, adam = start.astype(np.float32), _Adam(settings.rate)  # a copy
    rng = np.random.default_rng(settings.seed)
    for epoch in range(settings.epochs + 1):
        if watch is not None:
            watch(epoch, normed(weight, settings.norm))
        if epoch == settings.epochs:
            break
        for batch in _batches(len(x), settings.batch, rng):
            adam.step(weight, row_gradient(weight, x[batch], labels[batch], settings.norm))
    spend("head", head_macs(len(x), x.shape[1], len(start), settings.epochs))
    return normed(weight, settings.norm)


def row_gradient(weight: Floats, x: Floats, labels: Labels, norm: Norm) -> Floats:
    """Return the gradient of the mean log-loss of W′x with respect to W.

    With w′ = w/‖w‖ and g the gradient with respect to w′, it is (g − (g·w′)∂‖w‖)/‖w‖.
    """
    lengths = _lengths(weight, norm)[:, None]
    normalised: Floats = weight / lengths
    share = softmax(x @ normalised.T)
    share[np.arange(len(labels)), labels] -= 1
    share /= np.float32(len(labels))
    gradient: Floats = np.asarray(share.T @ x, dtype=np.float32)
    if norm == "plain":
        return gradient
    along = np.einsum("ij,ij->i", gradient, normalised)
    if norm == "two":  # the norm's derivative is the row itself
        gradient -= along[:, None] * normalised
    else:  # it is the sign at the row's largest weight
        largest = np.arange(len(normalised)), np.abs(normalised).argmax(axis=1)
        gradient[largest] -= along * np.sign(normalised[largest])
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
