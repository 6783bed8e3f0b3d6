"""Quarantine: a module that arrives is tried before it may answer.

An agent has three things to try it on: its own validation images, whose labels it knows for certain; the probes
of the other modules, which say what their teachers believe; and the calibration's background sample, most of which
no single task should claim. A newcomer that makes the agent worse on them is held back, with figures that say why.

Newcomers are tried together, in one mapper that the agent then goes on with. Only a batch that fails is halved,
until the modules to blame are found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from skillmesh.backbone.calibration import Calibration, Prior
from skillmesh.learning.head import Head
from skillmesh.learning.probes import read_probes
from skillmesh.mapper import Mapper
from skillmesh.mesh.alone import MAX_CLAIM, figures_of
from skillmesh.module import Module
from skillmesh.names import Representation
from skillmesh.tensors import Floats
from skillmesh.validation import OwnValidation

Names = NDArray[np.object_]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]

LOSS = 0.01
"""A newcomer may cost so much accuracy over all of an agent's own images, and over all probes of others."""
TASK_LOSS = 0.05
"""And so much on any one task: tasks that look alike do take single images from each other."""
UNKNOWN = 0.05
"""So many more may become unknown: the threshold is every module's, and moves a little with each."""
RISK = 1e-4
"""How probable it may be that a newcomer which costs exactly that much is held back by bad luck."""


@dataclass(frozen=True)
class Held:
    """A module that is not let in, and why."""

    module: Module
    reason: str


@dataclass(frozen=True)
class Verdict:
    """What becomes of some newcomers."""

    accepted: tuple[Module, ...]
    held: tuple[Held, ...]
    modules: list[Module]
    """The live modules and the accepted ones, in the bank's order."""
    mapper: Mapper | None
    """Over `modules`; none where there are none."""


@dataclass(frozen=True)
class Exam:
    """Images of one task, and what they are called, in lower case."""

    module: Module
    x: Floats
    labels: Names

    @property
    def error(self) -> float:
        """How often the task's own head is wrong on images that it has not seen; it has seen those of the exam."""
        accuracy = self.module.card.validation_accuracy
        return 0.0 if accuracy is None else 1 - accuracy


@dataclass(frozen=True)
class Result:
    """What a bank made of an exam."""

    images: int
    right: int
    """Called by the right name, whoever taught it, if an answer must be given."""
    known: int
    excused: float
    """Errors to expect where another teacher of the same classes answers, as good as the first on new images."""


@dataclass(frozen=True)
class Sitting:
    """How a bank did in the exams of all its modules, and on the background."""

    modules: list[Module]
    mapper: Mapper | None
    results: dict[str, Result]
    """By module id."""
    claims: Indices
    """For each background image the index of the module that claims it, −1 where it is unknown."""


class Quarantine:
    """Tries newcomers for one agent."""

    def __init__(self, prior: Prior, kind: str, background: Floats, own: Sequence[OwnValidation]) -> None:
        """Take what the agent tries modules on; `background` as `background_of` brings it into its space."""
        self._prior = prior
        self._kind = kind
        self._background = background
        self._own = {kept.module.id: kept for kept in own if len(kept.x)}

    def judge(self, live: Sequence[Module], newcomers: Sequence[Module], mapper: Mapper | None = None) -> Verdict:
        """Say which newcomers may join the live modules. `mapper` is the live modules', if it is built already."""
        candidates, held = self._inspected(_newest(live, newcomers))
        replaced = {_lineage(m) for m in candidates}
        base = _ordered([m for m in live if _lineage(m) not in replaced])
        before = self._sit(base, mapper if len(base) == len(live) else None)
        accepted, complaints, after = self._admit(before, candidates)
        held += complaints
        modules = _ordered([m for m in live if _lineage(m) not in {_lineage(a) for a in accepted}] + accepted)
        if modules != after.modules:  # a replacement was held back: the older version stays
            after = self._sit(modules)
        order = sorted(held, key=lambda h: (h.module.content_id, h.module.id))
        return Verdict(tuple(_ordered(accepted)), tuple(order), modules, after.mapper)

    def _inspected(self, newcomers: list[Module]) -> tuple[list[Module], list[Held]]:
        """Hold back what is absurd by itself; order the others, those that claim least of the background first."""
        figures = [figures_of(m, self._kind, self._prior, self._background) for m in newcomers]
        held = [Held(m, f.complaint) for m, f in zip(newcomers, figures, strict=True) if f.complaint]
        fine = [(f.claim, m) for m, f in zip(newcomers, figures, strict=True) if not f.complaint]
        return [m for _, m in sorted(fine, key=lambda pair: (pair[0], pair[1].content_id, pair[1].id))], held

    def _admit(self, before: Sitting, newcomers: list[Module]) -> tuple[list[Module], list[Held], Sitting]:
        """Let all in if together they do no harm; else try the halves, the second after the first."""
        if not newcomers:
            return [], [], before
        after = self._sit(_ordered(before.modules + newcomers))
        complaint = self._harm(before, after, newcomers)
        if complaint is None:
            return newcomers, [], after
        if len(newcomers) == 1:
            return [], [Held(newcomers[0], complaint)], before
        middle = len(newcomers) // 2
        first, first_held, between = self._admit(before, newcomers[:middle])
        second, second_held, last = self._admit(between, newcomers[middle:])
        return first + second, first_held + second_held, last

    def _sit(self, modules: list[Module], mapper: Mapper | None = None) -> Sitting:
        """Let a bank answer the exams of all its modules, and the background, in one go."""
        if not modules:
            return Sitting([], None, {}, np.full(len(self._background), -1))
        mapper = mapper or Mapper(modules, self._kind, self._prior)
        exams = [self._exam(module) for module in modules]
        ends = np.cumsum([len(exam.x) for exam in exams])
        mapped = mapper.map(np.concatenate([exam.x for exam in exams] + [self._background]))
        winners, unknown = np.split(mapped.task, ends), np.split(mapped.unknown, ends)
        results = {exam.module.id: _marked(exam, modules, winners[i], unknown[i]) for i, exam in enumerate(exams)}
        return Sitting(modules, mapper, results, np.where(unknown[-1], -1, winners[-1]))

    def _exam(self, module: Module) -> Exam:
        """The agent's own images of a task, or the task's probes; its own head labels what has no label."""
        own = self._own.get(module.id)
        x = own.x if own else read_probes(module.tensors, module.card.dim)
        labels = (
            own.labels if own and own.labels is not None else Head.read(module.tensors).logits(x).argmax(axis=1)
        )
        return Exam(module, x, _names(module)[labels])

    def _harm(self, before: Sitting, after: Sitting, newcomers: list[Module]) -> str | None:
        """Say how a bank is worse for its newcomers, or nothing."""
        changes = {m: (before.results[m.id], after.results[m.id]) for m in before.modules}
        own = {m: change for m, change in changes.items() if m.id in self._own}
        others = {m: change for m, change in changes.items() if m.id not in self._own}
        if len(newcomers) > 1:  # nor may they call by another name what one of them brings
            others |= {m: (_ideal(after.results[m.id]), after.results[m.id]) for m in newcomers}
        return (
            _loss(own, "the agent's own validation images")
            or _loss(others, "the probes of other modules")
            or _claim(before, after, newcomers, MAX_CLAIM[self._kind])
        )


def tolerance(images: int, rate: float) -> int:
    """How many of so many images may be lost: more are improbable (`RISK`) where the true loss is `rate`.

    >>> tolerance(30, 0.01), tolerance(200, 0.01), tolerance(4, 0.05)
    (4, 9, 3)
    """
    return int(np.argmax(bdtrc(np.arange(images + 1), images, rate) <= RISK))


def background_of(calibration: Calibration, representation: Representation, compact: bool) -> Floats:
    """Bring the calibration's background sample into an agent's representation.

    It is stored as standardised descriptors. Undoing that gives the features again, but for what was clipped.
    """
    if compact:
        return calibration.background @ calibration.basis.T
    if representation == "descriptor":
        return calibration.background
    width = calibration.features
    rooted: Floats = calibration.background[:, :width] * calibration.std[:width] + calibration.mean[:width]
    rooted = np.maximum(rooted, np.float32(0))
    return np.square(rooted) if representation == "features" else rooted


def _marked(exam: Exam, modules: list[Module], winners: Indices, unknown: Flags) -> Result:
    """Mark the answers to one exam."""
    said = _said(modules, winners, exam.x)
    others = np.array([modules[winner] != exam.module for winner in winners], dtype=bool)
    equivalent = others & np.isin(said.astype(str), _names(exam.module).astype(str))
    excused = exam.error * int(equivalent.sum())
    return Result(len(said), int(np.sum(said == exam.labels)), int(np.sum(~unknown)), excused)


def _ideal(result: Result) -> Result:
    """What a newcomer's exam would be if no other module interfered."""
    return replace(result, right=result.images, excused=0.0)


def _loss(changes: Mapping[Module, tuple[Result, Result]], what: str) -> str | None:
    """Compare results before and after, over all tasks and for each."""
    if not changes:
        return None
    befores, afters = zip(*changes.values(), strict=True)
    complaint = _worse(_summed(befores), _summed(afters), LOSS, what)
    for module, (before, after) in changes.items():
        complaint = complaint or _worse(before, after, TASK_LOSS, f"{what} of {module.card.task!r}")
    return complaint


def _summed(results: Sequence[Result]) -> Result:
    columns = zip(*map(astuple, results), strict=True)
    return Result(*map(sum, columns))


def _worse(before: Result, after: Result, rate: float, what: str) -> str | None:
    images = after.images
    excused = max(after.excused - before.excused, 0)
    allowed = tolerance(images, min(rate + excused / max(images, 1), 1))
    if before.right - after.right > allowed:
        return (
            f"with it {after.right} instead of {before.right} of {images} answers to {what} are right, "
            f"expected at most {allowed} fewer"
        )
    allowed = tolerance(images, UNKNOWN)
    if before.known - after.known > allowed:
        return (
            f"with it {after.known} instead of {before.known} of {images} of {what} are known, "
            f"expected at most {allowed} fewer"
        )
    return None


def _claim(before: Sitting, after: Sitting, newcomers: list[Module], share: float) -> str | None:
    """Look at the background: what newcomers claim, and what older modules know only since they came."""
    images, places = len(after.claims), [after.modules.index(m) for m in newcomers]
    most = max(int(np.sum(after.claims == place)) for place in places)
    opened = int(np.sum((before.claims < 0) & (after.claims >= 0) & ~np.isin(after.claims, places)))
    allowed = int(share * images)
    if most > allowed:
        return f"it claims {most} of {images} background images, expected at most {allowed}"
    if opened > allowed:
        return (
            f"with it other modules claim {opened} of {images} background images that were unknown before, "
            f"expected at most {allowed}"
        )
    return None


def _said(modules: list[Module], winners: Indices, x: Floats) -> Names:
    """The name that each image gets from the head of the module that won it."""
    said = np.empty(len(x), dtype=np.object_)
    for index in np.unique(winners):
        rows = winners == index
        said[rows] = _names(modules[index])[Head.read(modules[index].tensors).logits(x[rows]).argmax(axis=1)]
    return said


def _names(module: Module) -> Names:
    return np.array([name.casefold() for name in module.card.classes], dtype=np.object_)


def _lineage(module: Module) -> tuple[str, str]:
    return module.card.teacher_key, module.card.task


def _ordered(modules: Sequence[Module]) -> list[Module]:
    """The bank's order."""
    return sorted(modules, key=lambda m: (m.content_id, m.id))


def _newest(live: Sequence[Module], newcomers: Sequence[Module]) -> list[Module]:
    """Leave out what is live already and what a newer version replaces: the bank would not take it."""
    newest = {_lineage(m): m for m in live}
    for module in sorted(newcomers, key=lambda m: (m.card.version, m.id)):
        known = newest.get(_lineage(module))
        if known is None or known.card.version < module.card.version:
            newest[_lineage(module)] = module
    return _ordered([m for m in newest.values() if m not in live])
