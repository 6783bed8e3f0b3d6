"""How a new head begins: cold, or with what the bank knows of its classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skillmesh.common.choices import WarmForm
from skillmesh.learning.class_names.remembered import name_encoder
from skillmesh.learning.head import Fit, Head, Labels, calibrate
from skillmesh.learning.warm_start.epochs import EpochSettings, Norm, started_rows, train_rows
from skillmesh.learning.warm_start.prior import WarmFit, centre_of, evidence, fit_warm, trust
from skillmesh.learning.warm_start.sources import RowSource, find_sources
from skillmesh.module import Module
from skillmesh.module.portable import Space
from skillmesh.module.teachers import Signed, claimed
from skillmesh.module.warm_record import WarmRecord
from skillmesh.numerics.tensors import Floats

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
