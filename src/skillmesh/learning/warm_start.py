"""The head of a new task: fitted cold, or warm from rows that the bank has for similar classes."""

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
    strengths_up_to,
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
from skillmesh.numerics.arrays import Damping, Floats

# Warm start: a new class starts from the known row of a similar class.
#
# The starting point does not change the optimum of a regularised convex problem, so the row of a matched class
# becomes the centre of its prior: the head is penalised for its distance from that row instead of from zero. The
# weight of the old rows is first estimated on the new images, which their teacher never saw. Whether they help at
# all is decided, like all such choices, on images that the head was not trained on.

WARM_STRENGTHS = (1.0, *STRENGTHS)
"""Regularisation strengths, strongest first. At 1 a head hardly leaves the centre.

That is best for few images of well-known classes."""
FOLDS = 5
"""Largest number of cross-validation folds, used where there are no validation images."""


@dataclass(frozen=True)
class WarmFit:
    """A fitted head, and how much weight the old rows had in it."""

    fit: Fit
    pull: float
    """Factor by which the old rows were multiplied to form the centre; 0 if they were not used (a cold head)."""
    loss: float | None = None
    """Log-loss on held-back images; `None` where it was not measured."""

    @property
    def head(self) -> Head:
        return self.fit.head


@dataclass(frozen=True)
class _Candidate:
    """Strength of a fit, and whether it uses the old rows."""

    strength: float
    warm: bool


@dataclass(frozen=True)
class _Known:
    """The old rows, the number of L-BFGS rounds of a fit, and the margin by which they must help."""

    centre: Floats
    bias: Floats | None
    rounds: int
    margin: float
    damping: Damping | None

    def fit(
        self, x: Floats, labels: Labels, strengths: Sequence[float], overwrite: bool = False
    ) -> tuple[list[Head], np.float32]:
        """Return heads with a prior around the old rows, scaled to suit these images, and that scale."""
        pull = best_scale(x, labels, self.centre, self.bias)
        bias = None if self.bias is None else self.bias * pull
        around = len(self.centre), strengths, self.centre * pull, bias
        return fit_path(x, labels, *around, self.rounds, overwrite, self.damping), pull

    def tells_apart(self, x: Floats, labels: Labels) -> bool:
        """Return whether the old rows alone classify these images well; a single row is too little evidence."""
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
    damping: Damping | None = None,
) -> WarmFit:
    """Fit a head with a prior around `centre`; return `fit_head`'s unless the warm one wins on held-back images.

    Without validation images, cross-validation on the training images decides. Where a class has a single image,
    nothing can be held back: the centre is then used, scaled to suit these images, if it classifies them well and
    has more than one row (a single row is too little evidence). `bias` is the centre's own, where all of its rows
    come from one head. `margin` is the number of standard errors by which the centre must win: 0 for rows that
    were composed for this task, for which any advantage is enough.
    """
    cold = fit_head(x, labels, val_x, val_labels, len(centre), rounds, damping)
    known = _Known(centre, bias, rounds, margin, damping)
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


def best_scale(x: Floats, labels: Labels, centre: Floats, bias: Floats | None = None) -> np.float32:
    """Return the factor for the old rows that calibrates their confidence on these images.

    Rows that tell the classes apart keep their size or grow; rows of a class that shares only the name shrink to
    almost nothing. Images of classes without a match count too: no old row should score high on them.
    """
    return np.float32(1 / calibrate(_old_logits(x, labels, centre, bias), labels)[0])


def evidence(x: Floats, labels: Labels, centre: Floats, bias: Floats | None = None) -> float:
    """Return how much better than guessing the old rows are on these images, in standard errors."""
    judged, _ = _judged(_old_logits(x, labels, centre, bias), labels)
    return ahead(np.full(len(judged), np.log(len(centre))), judged)


def ahead(ours: NDArray[np.floating], theirs: NDArray[np.floating]) -> float:
    """Return by how many standard errors the losses `theirs` are smaller than `ours`, compared image by image."""
    gain = ours - theirs
    if len(gain) < 2:
        return 0.0
    return float(gain.mean() / max(float(gain.std(ddof=1)) / np.sqrt(len(gain)), 1e-12))


def _old_logits(x: Floats, labels: Labels, centre: Floats, bias: Floats | None) -> Floats:
    """Return the logits of the old rows.

    Where their biases belong to other tasks, these are replaced by centring: an image at the mean of the new
    classes gets equal logits.
    """
    if bias is not None:
        return np.asarray(x @ centre.T + bias)
    mean = np.mean([x[labels == c].mean(axis=0) for c in np.unique(labels)], axis=0)
    return np.asarray((x - mean) @ centre.T)


def _chosen_on_validation(
    cold: Fit, train: tuple[Floats, Labels], val: tuple[Floats, Labels], known: _Known
) -> WarmFit:
    """Choose by validation log-loss, as `fit_head` does, then fit once more with the validation images added."""
    by_cold, loss = _judged(cold.before.logits(val[0]), val[1])
    heads, _ = known.fit(*train, WARM_STRENGTHS)
    best, by_warm, warm_loss = _best([head.logits(val[0]) for head in heads], val[1])
    if ahead(by_cold, by_warm) <= known.margin:
        return WarmFit(cold, 0.0, loss)
    logits = heads[best].logits(val[0])
    both = np.concatenate([train[0], val[0]]), np.concatenate([train[1], val[1]])
    (*_, head), pull = known.fit(*both, strengths_up_to(WARM_STRENGTHS, best, known.rounds), overwrite=True)
    accuracy = float(np.mean(logits.argmax(axis=1) == val[1]))
    fit = Fit(head, WARM_STRENGTHS[best], calibrate(logits, val[1])[0], accuracy, heads[best])
    return WarmFit(fit, float(pull), warm_loss)


def _best_in_folds(x: Floats, labels: Labels, known: _Known) -> tuple[_Candidate, float]:
    """Return the best warm candidate of a cross-validation if it wins by the margin, else the cold one.

    The second value is its log-loss.
    """
    classes = len(known.centre)
    logits = np.empty((1 + len(WARM_STRENGTHS), len(x), classes), dtype=np.float32)
    for held in folds(labels, FOLDS):
        kept_x, kept = x[~held], labels[~held]
        cold = fit_path(kept_x, kept, classes, [DEFAULT_STRENGTH], rounds=known.rounds, damping=known.damping)
        warm, _ = known.fit(kept_x, kept, WARM_STRENGTHS)
        for place, head in zip(logits, cold + warm, strict=True):
            place[held] = head.logits(x[held])
    by_cold, loss = _judged(logits[0], labels)
    best, by_warm, warm_loss = _best(list(logits[1:]), labels)
    if ahead(by_cold, by_warm) <= known.margin:
        return _Candidate(DEFAULT_STRENGTH, False), loss
    return _Candidate(WARM_STRENGTHS[best], True), warm_loss


def _judged(logits: Floats, labels: Labels) -> tuple[NDArray[np.floating], float]:
    """Return each image's log-loss after calibration of the logits, and the mean."""
    temperature, mean = calibrate(logits, labels)
    return losses(logits / temperature, labels), mean


def _best(logits: list[Floats], labels: Labels) -> tuple[int, NDArray[np.floating], float]:
    """Return the index of the head of least mean log-loss, its loss on each image, and the mean."""
    judged = [_judged(each, labels) for each in logits]
    best = min(range(len(judged)), key=lambda i: judged[i][1])
    return best, *judged[best]


def folds(labels: Labels, most: int) -> Iterator[NDArray[np.bool_]]:
    """Yield cross-validation folds as masks, with the images of every class spread evenly.

    There are as many folds as the rarest class has images, at most `most`, so that no class is held back entirely.
    """
    counts = np.bincount(labels)
    parts = min(most, int(counts[counts > 0].min()))
    turn = np.empty(len(labels), dtype=np.int64)
    for c in np.flatnonzero(counts):
        turn[labels == c] = np.arange(counts[c]) % parts
    for part in range(parts):
        yield turn == part


# Starting a new head: cold, or from rows that the bank has for its classes.

Images = tuple[Floats, Labels]


@dataclass(frozen=True)
class WarmSources:
    """The modules whose rows a new head may start from, and the form of the warm start."""

    modules: tuple[Module, ...] = ()
    """Modules that the agent knows; without any the head is cold."""
    form: WarmForm = "prior"
    cache: Path | None = None
    """Folder in which encoded class names are cached."""
    name_of: Callable[[Signed], str] = claimed
    """Function that returns a teacher's name for notes."""


@dataclass(frozen=True)
class Started:
    """A fitted head, and the record of the rows that it started from."""

    fit: Fit
    record: WarmRecord | None = None
    notes: tuple[str, ...] = ()
    """Notes on the rows that were used, and on those that could not be."""


@dataclass(frozen=True)
class ChosenRows:
    """The source of each matched class, and the initial factor for each source's rows."""

    sources: tuple[RowSource, ...]
    scales: tuple[float, ...]
    of: dict[int, int]
    """Index of each class's source."""

    def rows(self) -> dict[int, Floats]:
        return {
            index: self.sources[at].known[index].row * np.float32(self.scales[at]) for index, at in self.of.items()
        }

    def record(self, form: WarmForm, pull: float = 1.0) -> WarmRecord:
        """Return the card's record; rows that are divided by their norm have no pull, recorded as 1."""
        pulls = [float(f"{scale * pull:.4g}") if form == "prior" else 1.0 for scale in self.scales]
        sources = tuple((s.task, s.module, factor) for s, factor in zip(self.sources, pulls, strict=True))
        known = {index: self.sources[at].known[index] for index, at in self.of.items()}
        rows = tuple((i, self.of[i], k.name, round(k.similarity, 4)) for i, k in sorted(known.items()))
        return WarmRecord(form=form, rows=rows, sources=sources)


def start_head(
    start: WarmSources,
    classes: Sequence[str],
    space: Space,
    train: Images,
    val: Images,
    damping: Damping | None = None,
) -> Started:
    """Fit the head of a new task. Without rows for its classes the result equals `fit_head`'s, bit for bit."""
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
    warm, chosen = fit_from(sources, train, val, len(classes), damping)
    if not warm.pull:
        return Started(warm.fit, None, (*notes, *map(_no_help, sources)))
    return Started(warm.fit, chosen.record("prior", warm.pull), (*notes, *_words(chosen, len(classes))))


def fit_from(
    sources: Sequence[RowSource], train: Images, val: Images, classes: int, damping: Damping | None = None
) -> tuple[WarmFit, ChosenRows]:
    """Fit a head with the sources' rows as the centre of its prior, if that wins on held-back images."""
    chosen = choose(sources, train, classes)
    centre = centre_of(classes, train[0].shape[1], chosen.rows())
    return fit_warm(*train, *val, centre, damping=damping), chosen


def choose(sources: Sequence[RowSource], train: Images, classes: int, least: float = 1.0) -> ChosenRows:
    """Choose each class's most similar match; equal ones by the source's evidence on the new images.

    Sources with an evidence of at most `least` standard errors share only names with the new classes and are left
    out. Rows of one head were trained against each other, so equal matches are decided by source, not by class.
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
    scales = [float(best_scale(*train, source.centre(classes))) if len(kept) > 1 else 1.0 for source in kept]
    return ChosenRows(tuple(kept), tuple(scales), {index: used.index(at) for index, at in best.items()})


def fit_epochs(
    train: Images,
    val: Images,
    classes: int,
    rows: dict[int, Floats],
    norm: Norm,
    epochs: int = EpochSettings.epochs,
) -> Fit:
    """Train a head as in the paper: epochs from old rows and random ones, with W′x in the forward pass.

    As for `fit_head`, validation images give temperature and accuracy, and are then added to the training.
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
    """Scale rows to the size of random ones: W′ ignores the size, but a step changes a smaller row more."""
    return {
        index: np.asarray(row / (np.abs(row).max() or 1) / np.sqrt(len(row)), dtype=np.float32)
        for index, row in rows.items()
    }


def plain_head(weight: Floats) -> Head:
    """Return a head of these rows with zero biases."""
    return Head(weight, np.zeros(len(weight), dtype=np.float32))


def _words(chosen: ChosenRows, classes: int) -> list[str]:
    names = ", ".join(f"{source.task!r} by {source.teacher}" for source in chosen.sources)
    return [f"warm start: {len(chosen.of)} of {classes} classes begin with rows of {names}"] if chosen.of else []


def _no_help(source: RowSource) -> str:
    names = ", ".join(repr(known.name) for known in list(source.known.values())[:3])
    more = f" and {len(source.known) - 3} more" if len(source.known) > 3 else ""
    return (
        f"warm start: {source.task!r} by {source.teacher} also has {names}{more}, but its rows are not used: "
        "on these images they are no clear improvement over a cold start"
    )
