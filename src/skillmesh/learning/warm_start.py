"""How a new head begins: cold, or warm with what the bank knows of classes like its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skillmesh.common.choices import WarmForm
from skillmesh.learning.class_names.encoders import name_encoder
from skillmesh.learning.head import (
    DEFAULT_STRENGTH,
    ROUNDS,
    STRENGTHS,
    Fit,
    Head,
    Labels,
    calibrate,
    fit_head,
    fit_path,
    losses,
    road,
)
from skillmesh.learning.rows import (
    EpochSettings,
    Norm,
    RowSource,
    centre_of,
    find_sources,
    started_rows,
    train_rows,
)
from skillmesh.module import Module
from skillmesh.module.card import Space, WarmRecord
from skillmesh.module.teachers import Signed, claimed
from skillmesh.numerics.arrays import Floats

# Warm start: a new class begins with what is known of a class like it.
#
# A start does not move the optimum of a regularised convex head, so the row of a matched class becomes the centre
# of its prior: the head pays for its distance from that row instead of from zero. How far the old rows are to be
# believed is first read off the new images, which their teacher never saw, and whether they help at all is decided
# where every choice of ours is: on images that the head was not trained on.

WARM_STRENGTHS = (1.0, *STRENGTHS)
"""Strongest first. At 1 a head hardly leaves the centre, which is what few images of well-known classes want."""
FOLDS = 5
"""Where there are no validation images, each part of the training images is held back once."""


@dataclass(frozen=True)
class WarmFit:
    """A head, and whether what was known before had a part in it."""

    fit: Fit
    pull: float
    """By how much the old rows were multiplied to be the centre; 0: nothing was taken over, the head is cold."""
    loss: float | None = None
    """Log-loss on held-back images, where some could be."""

    @property
    def head(self) -> Head:
        return self.fit.head


@dataclass(frozen=True)
class _Candidate:
    """How a head might be fitted."""

    strength: float
    warm: bool


@dataclass(frozen=True)
class _Known:
    """What was known before, how long a head may move away from it, and how surely it must help."""

    centre: Floats
    bias: Floats | None
    rounds: int
    margin: float

    def fit(
        self, x: Floats, labels: Labels, strengths: Sequence[float], spent: bool = False
    ) -> tuple[list[Head], np.float32]:
        """Heads with a prior around the old rows, as loud as these images want them, and how loud that is."""
        pull = trust(x, labels, self.centre, self.bias)
        bias = None if self.bias is None else self.bias * pull
        heads = fit_path(x, labels, len(self.centre), strengths, self.centre * pull, bias, self.rounds, spent)
        return heads, pull

    def tells_apart(self, x: Floats, labels: Labels) -> bool:
        """Whether the old rows alone know these images; of a single row they say too little."""
        rows = int(self.centre.any(axis=1).sum())
        return rows > 1 and (not self.margin or evidence(x, labels, self.centre, self.bias) > self.margin)


def fit_warm(
    x: Floats,
    labels: Labels,
    val_x: Floats,
    val_labels: Labels,
    centre: Floats,
    bias: Floats | None = None,
    rounds: int = ROUNDS,
    margin: float = 1.0,
) -> WarmFit:
    """Fit a head whose prior lies around `centre`, or `fit_head`'s own unless that is worse on held-back images.

    Without validation images each part of the training images is held back once. Where a class has a single image
    nothing can be held back: the centre is then taken, as strong as these images say, if it tells them apart, and
    if it has more than one row, about which they say too little. `bias` is the centre's own, where all of its rows
    come from one head. `margin` is by how many standard errors the centre must win: 0 where it is no stranger.
    """
    cold = fit_head(x, labels, val_x, val_labels, len(centre), rounds)
    known = _Known(centre, bias, rounds, margin)
    if not centre.any():
        return WarmFit(cold, 0.0)
    if len(val_x):
        return _chosen_on_validation(cold, (x, labels), (val_x, val_labels), known)
    if np.bincount(labels, minlength=len(centre)).min() < 2:
        best, loss = _Candidate(DEFAULT_STRENGTH, warm=known.tells_apart(x, labels)), None
    else:
        best, loss = _best_in_folds(x, labels, known)
    if not best.warm:
        return WarmFit(cold, 0.0, loss)
    (head,), pull = known.fit(x, labels, [best.strength])
    return WarmFit(Fit(head, best.strength, 1.0, None, head), float(pull), loss)


def trust(x: Floats, labels: Labels, centre: Floats, bias: Floats | None = None) -> np.float32:
    """By how much the old rows must be multiplied to be as sure of these images as they are right about them.

    Rows that tell them apart are taken as they are or made louder; rows of a class that only has the same name
    come out next to nothing. Images of classes without a match have a say too: no old row should claim them.
    """
    return np.float32(1 / calibrate(_old_logits(x, labels, centre, bias), labels)[0])


def evidence(x: Floats, labels: Labels, centre: Floats, bias: Floats | None = None) -> float:
    """How much surer than a guess old rows are of these images, in standard errors of the mean gain."""
    judged, _ = _judged(_old_logits(x, labels, centre, bias), labels)
    return ahead(np.full(len(judged), np.log(len(centre))), judged)


def ahead(ours: NDArray[np.floating], theirs: NDArray[np.floating]) -> float:
    """By how many standard errors `theirs` are smaller losses than `ours`, image by image."""
    gain = ours - theirs
    if len(gain) < 2:
        return 0.0
    return float(gain.mean() / max(float(gain.std(ddof=1)) / np.sqrt(len(gain)), 1e-12))


def _old_logits(x: Floats, labels: Labels, centre: Floats, bias: Floats | None) -> Floats:
    """Of rows whose biases belong to other tasks: the middle of the new classes is nobody's."""
    if bias is not None:
        return np.asarray(x @ centre.T + bias)
    mean = np.mean([x[labels == c].mean(axis=0) for c in np.unique(labels)], axis=0)
    return np.asarray((x - mean) @ centre.T)


def _chosen_on_validation(
    cold: Fit, train: tuple[Floats, Labels], val: tuple[Floats, Labels], known: _Known
) -> WarmFit:
    """As `fit_head` chooses: by log-loss, then fit once more with the validation images added."""
    by_cold, loss = _judged(cold.before.logits(val[0]), val[1])
    heads, _ = known.fit(*train, WARM_STRENGTHS)
    best, by_warm, warm_loss = _best([head.logits(val[0]) for head in heads], val[1])
    if ahead(by_cold, by_warm) <= known.margin:
        return WarmFit(cold, 0.0, loss)
    logits = heads[best].logits(val[0])
    both = np.concatenate([train[0], val[0]]), np.concatenate([train[1], val[1]])
    (*_, head), pull = known.fit(*both, road(WARM_STRENGTHS, best, known.rounds), spent=True)
    accuracy = float(np.mean(logits.argmax(axis=1) == val[1]))
    fit = Fit(head, WARM_STRENGTHS[best], calibrate(logits, val[1])[0], accuracy, heads[best])
    return WarmFit(fit, float(pull), warm_loss)


def _best_in_folds(x: Floats, labels: Labels, known: _Known) -> tuple[_Candidate, float]:
    """The warm candidate of least log-loss on images held back in turn, or the cold one; and that loss."""
    classes = len(known.centre)
    logits = np.empty((1 + len(WARM_STRENGTHS), len(x), classes), dtype=np.float32)
    for held in folds(labels, FOLDS):
        kept_x, kept = x[~held], labels[~held]
        cold = fit_path(kept_x, kept, classes, [DEFAULT_STRENGTH], rounds=known.rounds)
        warm, _ = known.fit(kept_x, kept, WARM_STRENGTHS)
        for place, head in zip(logits, cold + warm, strict=True):
            place[held] = head.logits(x[held])
    by_cold, loss = _judged(logits[0], labels)
    best, by_warm, warm_loss = _best(list(logits[1:]), labels)
    if ahead(by_cold, by_warm) <= known.margin:
        return _Candidate(DEFAULT_STRENGTH, False), loss
    return _Candidate(WARM_STRENGTHS[best], True), warm_loss


def _judged(logits: Floats, labels: Labels) -> tuple[NDArray[np.floating], float]:
    """Each image's log-loss once the logits are as sure as they should be, and its mean."""
    temperature, mean = calibrate(logits, labels)
    return losses(logits / temperature, labels), mean


def _best(logits: list[Floats], labels: Labels) -> tuple[int, NDArray[np.floating], float]:
    """Which of several heads has the least mean log-loss, each image's, and the mean."""
    judged = [_judged(each, labels) for each in logits]
    best = min(range(len(judged)), key=lambda i: judged[i][1])
    return best, *judged[best]


def folds(labels: Labels, most: int) -> Iterator[NDArray[np.bool_]]:
    """Parts of the images, as masks, with the images of every class dealt out in turn.

    There are as many as the rarest class has images, at most `most`, so that no class is ever held back whole.
    """
    counts = np.bincount(labels)
    parts = min(most, int(counts[counts > 0].min()))
    turn = np.empty(len(labels), dtype=np.int64)
    for c in np.flatnonzero(counts):
        turn[labels == c] = np.arange(counts[c]) % parts
    for part in range(parts):
        yield turn == part


# How a new head begins: cold, or with what the bank knows of its classes.

Images = tuple[Floats, Labels]


@dataclass(frozen=True)
class WarmSources:
    """Whose rows a new head may begin with, and how."""

    modules: tuple[Module, ...] = ()
    """What the agent knows; none: the head is cold."""
    form: WarmForm = "prior"
    cache: Path | None = None
    """Where encoded names are kept."""
    name_of: Callable[[Signed], str] = claimed
    """How teachers are called in notes."""


@dataclass(frozen=True)
class Started:
    """A fitted head, and what it took from where."""

    fit: Fit
    record: WarmRecord | None = None
    notes: tuple[str, ...] = ()
    """Rows that were taken, and those that could not be."""


@dataclass(frozen=True)
class ChosenRows:
    """The source of each matched class, and by how much each source's rows are multiplied at first."""

    sources: tuple[RowSource, ...]
    scales: tuple[float, ...]
    of: dict[int, int]
    """Class → index of its source."""

    def rows(self) -> dict[int, Floats]:
        return {
            index: self.sources[at].known[index].row * np.float32(self.scales[at]) for index, at in self.of.items()
        }

    def record(self, form: WarmForm, pull: float = 1.0) -> WarmRecord:
        """For the card; rows that are divided by their norm have no pull."""
        pulls = [float(f"{scale * pull:.4g}") if form == "prior" else 1.0 for scale in self.scales]
        sources = tuple((s.task, s.module, taken) for s, taken in zip(self.sources, pulls, strict=True))
        known = {index: self.sources[at].known[index] for index, at in self.of.items()}
        rows = tuple((i, self.of[i], k.name, round(k.similarity, 4)) for i, k in sorted(known.items()))
        return WarmRecord(form=form, rows=rows, sources=sources)


def start_head(start: WarmSources, classes: Sequence[str], space: Space, train: Images, val: Images) -> Started:
    """Fit the head of a new task. Where nobody knows its classes, this is `fit_head` to the bit."""
    sources: list[RowSource] = []
    notes: list[str] = []
    if start.modules:
        sources, notes = find_sources(
            *(classes, start.modules, space, np.concatenate([train[0], val[0]])),
            *(name_encoder(start.cache), start.name_of),
        )
    if start.form != "prior":
        chosen = choose(sources, train, len(classes), least=-np.inf)
        fit = fit_epochs(train, val, len(classes), chosen.rows(), start.form)
        return Started(fit, chosen.record(start.form), (*notes, *_words(chosen, len(classes))))
    warm, chosen = fit_from(sources, train, val, len(classes))
    if not warm.pull:
        return Started(warm.fit, None, (*notes, *map(_no_help, sources)))
    return Started(warm.fit, chosen.record("prior", warm.pull), (*notes, *_words(chosen, len(classes))))


def fit_from(sources: Sequence[RowSource], train: Images, val: Images, classes: int) -> tuple[WarmFit, ChosenRows]:
    """A head with the rows of these sources as the centre of its prior, as far as held-back images say it pays."""
    chosen = choose(sources, train, classes)
    return fit_warm(*train, *val, centre_of(classes, train[0].shape[1], chosen.rows())), chosen


def choose(sources: Sequence[RowSource], train: Images, classes: int, least: float = 1.0) -> ChosenRows:
    """For each class its surest match; among equals that of the source which knows most of the new images.

    Sources that tell these apart by no more than `least` standard errors share but names with them: left out.
    A class's rivals in the new head are best those of its old one, so equals are decided by source, not by class.
    """
    judged = [(evidence(*train, source.centre(classes)), source) for source in sources]
    order = sorted((pair for pair in judged if pair[0] > least), key=lambda pair: (-pair[0], pair[1].module))
    best: dict[int, int] = {}
    for at, (_, source) in enumerate(order):
        for index, known in source.known.items():
            rival = best.get(index)
            if rival is None or round(known.similarity, 4) > round(order[rival][1].known[index].similarity, 4):
                best[index] = at
    used = sorted(set(best.values()))
    kept = [order[at][1] for at in used]
    scales = [float(trust(*train, source.centre(classes))) if len(kept) > 1 else 1.0 for source in kept]
    return ChosenRows(tuple(kept), tuple(scales), {index: used.index(at) for index, at in best.items()})


def fit_epochs(
    train: Images,
    val: Images,
    classes: int,
    rows: dict[int, Floats],
    norm: Norm,
    epochs: int = EpochSettings.epochs,
) -> Fit:
    """The paper's way: epochs from old rows, the rest at random, with W′x in the forward pass.

    As with our own head, validation images say how sure and how right it is, and then join the training.
    """
    start, settings = started_rows(classes, train[0].shape[1], level(rows), 0), EpochSettings(epochs, norm=norm)
    before = plain_head(train_rows(*train, start, settings))
    if not len(val[0]):
        return Fit(before, 0.0, 1.0, None, before)
    logits = before.logits(val[0])
    both = np.concatenate([train[0], val[0]]), np.concatenate([train[1], val[1]])
    head = plain_head(train_rows(*both, start, settings))
    accuracy = float(np.mean(logits.argmax(axis=1) == val[1]))
    return Fit(head, 0.0, calibrate(logits, val[1])[0], accuracy, before)


def level(rows: dict[int, Floats]) -> dict[int, Floats]:
    """Rows as long as random ones: W′ does not see the length, but a step moves a shorter row further."""
    return {
        index: np.asarray(row / (np.abs(row).max() or 1) / np.sqrt(len(row)), dtype=np.float32)
        for index, row in rows.items()
    }


def plain_head(weight: Floats) -> Head:
    """Rows without a bias."""
    return Head(weight, np.zeros(len(weight), dtype=np.float32))


def _words(chosen: ChosenRows, classes: int) -> list[str]:
    names = ", ".join(f"{source.task!r} by {source.teacher}" for source in chosen.sources)
    return [f"warm start: {len(chosen.of)} of {classes} classes begin with rows of {names}"] if chosen.of else []


def _no_help(source: RowSource) -> str:
    names = ", ".join(repr(known.name) for known in list(source.known.values())[:3])
    more = f" and {len(source.known) - 3} more" if len(source.known) > 3 else ""
    return (
        f"warm start: {source.task!r} by {source.teacher} has {names}{more} too, but its rows are no surer help "
        "with these images than a cold start"
    )
