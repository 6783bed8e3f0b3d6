"""Exams: how well a bank answers what its agent can check.

Every module brings an exam: of the agent's own tasks their validation images, whose labels are certain; of other
tasks their probes, whose labels are what the teacher's head says. The calibration's background sample comes last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmesh.answering.mapper import Judged, Mapped, Mapper
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.class_names.union import union
from skillmesh.learning.head import Head
from skillmesh.learning.probes import read_probes
from skillmesh.module import Module
from skillmesh.numerics.tensors import Floats
from skillmesh.store.validation import OwnValidation

Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]


class ExamAnswers(NamedTuple):
    """What a module calls the images of an exam."""

    right: int
    """By the right name; where labels are unknown, by one of the task's names at all."""
    names: int
    """By one of the task's names, right or wrong."""


@dataclass(frozen=True)
class Exam:
    """Images of one task, and which of its classes they show."""

    module: Module
    own: bool
    x: Floats
    labels: Indices | None
    """None where nobody knows them: an adapted head's probes, which are no images."""

    def only(self, rows: Flags) -> Exam:
        return replace(self, x=self.x[rows], labels=None if self.labels is None else self.labels[rows])

    def said_by(self, winner: Module) -> ExamAnswers:
        """What a module calls the images by their descriptors, and how many of that is right.

        A second teacher of `Spring_Rolls` may call them `spring roll`; where one of the two tells `A` and `A-`
        apart, so must the other. A head that looks at an adapted pass cannot be tried on descriptors: what it
        would say of plain ones may be right and prove nothing.
        """
        if winner.card.adapted:
            return ExamAnswers(0, 0)
        here, there = union([self.module.card.classes, winner.card.classes]).places
        said = there[_said(winner, self.x)]
        names = int(np.sum(np.isin(said, here)))
        return ExamAnswers(names if self.labels is None else int(np.sum(said == here[self.labels])), names)

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


@dataclass
class Taken:
    """Images of others that a teacher's modules answer wrongly, and how many such errors are excused."""

    wrong: int = 0
    excused: float = 0.0


@dataclass(frozen=True)
class Sitting:
    """How a bank did in all its exams."""

    modules: list[Module]
    mapper: Mapper | None
    own: dict[str, Result]
    """By module id: the agent's own images."""
    others: dict[str, Result]
    """By module id: the probes of other teachers."""
    taken: dict[tuple[str, bool], Taken]
    """By a teacher's key, and whether it is taken from the agent's own images."""
    claims: Indices
    """For each background image the index of the module that claims it, −1 where it is unknown."""
    met: dict[tuple[str, str], int] = field(default_factory=dict)
    """By a module's id and that of one of the agent's own tasks: images of the task that the other module answers
    with one of the task's names, right or wrong."""


class Examiner:
    """Sets the exams of one agent's bank and marks them."""

    def __init__(self, prior: Prior, kind: str, background: Floats, own: Sequence[OwnValidation]) -> None:
        self.prior = prior
        self.kind = kind
        self.background = background
        self._own = {kept.module.id: kept for kept in own if len(kept.x)}

    def sit(self, modules: list[Module], mapper: Mapper | None = None) -> Sitting:
        """Let a bank answer all its exams in one go; `mapper` is the bank's, if it is built already."""
        if not modules:
            return Sitting([], None, {}, {}, {}, np.full(len(self.background), -1))
        mapper = mapper or Mapper(modules, self.kind, self.prior)
        exams = [self._exam(module) for module in modules]
        trial = mapper.on_trial()
        own = trial.map(np.concatenate([*(exam.x for exam in exams if exam.own), self.background]))
        probed = iter(_split(trial.probed, [_probes(module) for module in modules]))
        kept = iter(_split(own, [len(exam.x) for exam in exams if exam.own]))
        results: dict[bool, dict[str, Result]] = {True: {}, False: {}}
        taken: dict[tuple[str, bool], Taken] = defaultdict(Taken)
        met: dict[tuple[str, str], int] = {}
        for exam, steps_back in zip(exams, mapper.steps_back, strict=True):
            on_probes = next(probed)  # the mapper has been asked about these while it was built
            if steps_back and not exam.own:
                continue  # its probes are its sources', who may call them by other names
            won, unsaid = next(kept) if exam.own else on_probes
            results[exam.own][exam.module.id] = _marked(exam, modules, won, unsaid, taken, met)
        claimants, strange = next(kept)
        claims = np.where(strange, -1, claimants)
        return Sitting(modules, mapper, results[True], results[False], dict(taken), claims, met)

    def own_results(self, modules: list[Module], together: Mapping[str, Indices]) -> dict[str, list[Result]]:
        """How a bank answers the agent's own images: a task's all, each class's, some classes' together."""
        mapper = Mapper(modules, self.kind, self.prior)
        found: dict[str, list[Result]] = {}
        for module_id, kept in self._own.items():
            exam = self._exam(kept.module)
            mapped = mapper.map(exam.x)
            labels = np.full(len(exam.x), -1) if exam.labels is None else exam.labels
            groups = [np.unique(labels), *np.unique(labels), together.get(module_id, [])]
            found[module_id] = [
                _marked(exam.only(rows), modules, mapped.task[rows], mapped.unknown[rows], defaultdict(Taken), {})
                for rows in (np.isin(labels, group) for group in groups)
            ]
        return found

    def _exam(self, module: Module) -> Exam:
        kept = self._own.get(module.id)
        x = kept.x if kept else read_probes(module.tensors, module.card.dim)
        labels = kept.labels if kept else None
        if labels is None and not module.card.adapted:
            labels = _said(module, x)
        return Exam(module, kept is not None, x, labels)


def _split(mapped: Mapped | Judged, counts: Sequence[int]) -> list[tuple[Indices, Flags]]:
    """Winners and unknowns of as many images each, and of the rest."""
    ends = np.cumsum(counts)
    return list(zip(np.split(mapped.task, ends), np.split(mapped.unknown, ends), strict=True))


def _probes(module: Module) -> int:
    return len(read_probes(module.tensors, module.card.dim))


def _marked(
    exam: Exam,
    modules: list[Module],
    winners: Indices,
    unknown: Flags,
    taken: dict[tuple[str, bool], Taken],
    met: dict[tuple[str, str], int],
) -> Result:
    """Mark one exam, and put wrong answers down to the other teachers who gave them."""
    right, excused = 0, 0.0
    for index in np.unique(winners):
        rows, winner = winners == index, modules[index]
        count = int(rows.sum())
        if winner == exam.module and winner.card.adapted:  # it is believed on its own exam, and on no other
            right += count
            continue
        hits, names = exam.only(rows).said_by(winner)
        equivalent = 0 if winner == exam.module else names
        right, excused = right + hits, excused + exam.error * equivalent
        if winner.card.teacher_key != exam.module.card.teacher_key:
            account = taken[winner.card.teacher_key, exam.own]
            account.wrong += count - hits
            account.excused += exam.error * equivalent
            if exam.own:
                met[winner.id, exam.module.id] = equivalent
    return Result(len(winners), right, int(np.sum(~unknown)), excused)


def _said(module: Module, x: Floats) -> Indices:
    found: Indices = Head.read(module.tensors).logits(x).argmax(axis=1)
    return found
