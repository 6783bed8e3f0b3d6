"""The trial of a bank: how well it answers the images that its agent can check, and whether newcomers harm it.

Every module brings a case: an own task its validation images, whose labels are certain; any other task its probes,
labelled by the teacher's head. The calibration's background sample comes last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmesh.answering.answering import UNANSWERED, Judged, Mapped, Mapper
from skillmesh.backbone.calibration import Prior
from skillmesh.learning.class_names.pairs import union
from skillmesh.learning.head import Head, read_probes
from skillmesh.module import Module
from skillmesh.numerics.arrays import Floats
from skillmesh.store.home import OwnValidation

Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]


class CaseAnswers(NamedTuple):
    """Counts of a module's answers to the images of a case."""

    right: int
    """Number of images with the right class name; where labels are unknown, with any class name of the task."""
    names: int
    """Number of images with any class name of the task, right or wrong."""


@dataclass(frozen=True)
class Case:
    """Images of one task and their labels."""

    module: Module
    own: bool
    x: Floats
    labels: Indices | None
    """None if they are unknown: the probes of an adapted head are not images."""

    def only(self, rows: Flags) -> Case:
        return replace(self, x=self.x[rows], labels=None if self.labels is None else self.labels[rows])

    def count_answers(self, winner: Module) -> CaseAnswers:
        """Count the answers that a module's head gives from the descriptors, and how many of them are right.

        A second teacher of `Spring_Rolls` may call the class `spring roll`. If one of the two teachers
        distinguishes `A` from `A-`, the other must too. A head for adapted features cannot be tried on plain
        descriptors: even right answers would prove nothing, so both counts are 0.
        """
        if winner.card.adapted:
            return CaseAnswers(0, 0)
        here, there = union([self.module.card.classes, winner.card.classes]).places
        answered = there[_predicted(winner, self.x)]
        names = int(np.sum(np.isin(answered, here)))
        return CaseAnswers(names if self.labels is None else int(np.sum(answered == here[self.labels])), names)

    @property
    def error(self) -> float:
        """Error rate of the task's own head, 0 to 1, from its card: it was trained on the case's images."""
        accuracy = self.module.card.validation_accuracy
        return 0.0 if accuracy is None else 1 - accuracy


@dataclass(frozen=True)
class Result:
    """A bank's results on one case."""

    images: int
    right: int
    """Number of images with the right class name from any teacher's module, with `unknown` not allowed."""
    known: int
    excused: float
    """Expected errors where another teacher of the same classes answers, with the first one's error rate."""


@dataclass
class WrongAnswers:
    """Number of other teachers' images that a teacher's modules answer wrongly, and of errors excused."""

    wrong: int = 0
    excused: float = 0.0


@dataclass(frozen=True)
class Tried:
    """A bank's results on all its cases."""

    modules: list[Module]
    mapper: Mapper | None
    own: dict[str, Result]
    """Results on the agent's own images, by module id."""
    others: dict[str, Result]
    """Results on the probes of other teachers, by module id."""
    wrong_answers: dict[tuple[str, bool], WrongAnswers]
    """Wrong answers by the teacher's key, and by whether the images are the agent's own."""
    claims: Indices
    """Index of the module that claims each background image; −1 where the image is unknown."""
    shared_names: dict[tuple[str, str], int] = field(default_factory=dict)
    """Number of images of one of the agent's own tasks that another teacher's module answers with one of the
    task's class names, right or wrong; by the module's id and the own task's id."""


class BankTrial:
    """Runs one agent's bank on its cases and marks the answers."""

    def __init__(
        self,
        prior: Prior,
        kind: str,
        background: Floats,
        own: Sequence[OwnValidation],
        unanswered: float = UNANSWERED,
    ) -> None:
        self.prior = prior
        self.kind = kind
        self._unanswered = unanswered
        self.background = background
        self._own = {kept.module.id: kept for kept in own if len(kept.x)}

    def run(self, modules: list[Module], mapper: Mapper | None = None) -> Tried:
        """Return a bank's results on all its cases; `mapper` is the bank's mapper, if it has been built."""
        if not modules:
            return Tried([], None, {}, {}, {}, np.full(len(self.background), -1))
        mapper = mapper or Mapper(modules, self.kind, self.prior, self._unanswered)
        cases = [self._case(module) for module in modules]
        trial = mapper.on_trial()
        own = trial.map(np.concatenate([*(case.x for case in cases if case.own), self.background]))
        probed = iter(_split(trial.probed, [_probes(module) for module in modules]))
        kept = iter(_split(own, [len(case.x) for case in cases if case.own]))
        results: dict[bool, dict[str, Result]] = {True: {}, False: {}}
        wrong_answers: dict[tuple[str, bool], WrongAnswers] = defaultdict(WrongAnswers)
        shared_names: dict[tuple[str, str], int] = {}
        for case, steps_back in zip(cases, mapper.steps_back, strict=True):
            on_probes = next(probed)  # the mapper scored these when it was built
            if steps_back and not case.own:
                continue  # its probes come from its sources, which may use other class names
            won, unknown = next(kept) if case.own else on_probes
            results[case.own][case.module.id] = _marked(case, modules, won, unknown, wrong_answers, shared_names)
        claimants, unknown_background = next(kept)
        claims = np.where(unknown_background, -1, claimants)
        return Tried(modules, mapper, results[True], results[False], dict(wrong_answers), claims, shared_names)

    def own_results(self, modules: list[Module], together: Mapping[str, Indices]) -> dict[str, list[Result]]:
        """Return results on the agent's own images by module id: whole task, each class, `together` classes."""
        mapper = Mapper(modules, self.kind, self.prior, self._unanswered)
        results: dict[str, list[Result]] = {}
        wrong_answers: dict[tuple[str, bool], WrongAnswers] = defaultdict(WrongAnswers)  # not used here
        for module_id, kept in self._own.items():
            case = self._case(kept.module)
            mapped = mapper.map(case.x)
            labels = np.full(len(case.x), -1) if case.labels is None else case.labels
            groups = [np.unique(labels), *np.unique(labels), together.get(module_id, [])]
            results[module_id] = [
                _marked(case.only(rows), modules, mapped.task[rows], mapped.unanswered[rows], wrong_answers, {})
                for rows in (np.isin(labels, group) for group in groups)
            ]
        return results

    def _case(self, module: Module) -> Case:
        kept = self._own.get(module.id)
        x = kept.x if kept else read_probes(module.tensors, module.card.dim)
        labels = kept.labels if kept else None
        if labels is None and not module.card.adapted:
            labels = _predicted(module, x)
        return Case(module, kept is not None, x, labels)


def _split(mapped: Mapped | Judged, counts: Sequence[int]) -> list[tuple[Indices, Flags]]:
    """Split winners and unknown flags into consecutive groups of `counts` images; the rest is the last group."""
    ends = np.cumsum(counts)
    return list(zip(np.split(mapped.task, ends), np.split(mapped.unanswered, ends), strict=True))


def _probes(module: Module) -> int:
    return len(read_probes(module.tensors, module.card.dim))


def _marked(
    case: Case,
    modules: list[Module],
    winners: Indices,
    unknown: Flags,
    wrong_answers: dict[tuple[str, bool], WrongAnswers],
    shared_names: dict[tuple[str, str], int],
) -> Result:
    """Mark one case, and add its wrong answers to those of the teachers who gave them."""
    right, excused = 0, 0.0
    for index in np.unique(winners):
        rows, winner = winners == index, modules[index]
        count = int(rows.sum())
        if winner == case.module and winner.card.adapted:  # adapted heads are trusted only on their own case
            right += count
            continue
        hits, names = case.only(rows).count_answers(winner)
        equivalent = 0 if winner == case.module else names
        right, excused = right + hits, excused + case.error * equivalent
        if winner.card.teacher_key != case.module.card.teacher_key:
            account = wrong_answers[winner.card.teacher_key, case.own]
            account.wrong += count - hits
            account.excused += case.error * equivalent
            if case.own:
                shared_names[winner.id, case.module.id] = equivalent
    return Result(len(winners), right, int(np.sum(~unknown)), excused)


def _predicted(module: Module, x: Floats) -> Indices:
    predicted: Indices = Head.read(module.tensors).logits(x).argmax(axis=1)
    return predicted


# The rules for whether newcomers make a bank worse. Each has a tolerance, because there are few images.
#
# Thirty validation images cannot distinguish a loss of one percentage point from none: a single image is three
# points. So the number of lost images is compared with a bound that a binomial with the allowed rate hardly ever
# exceeds. Honest modules then pass even with bad luck.

LOSS = 0.01
"""Accuracy that a newcomer may cost over all of an agent's own images, and over all probes of others, 0 to 1."""
TASK_LOSS = 0.05
"""Accuracy that may be lost on one task, or to all of a teacher's modules: similar tasks do take images."""
UNKNOWN = 0.05
"""Share of images that may become unknown: all modules set the threshold, and each moves it a little."""
RISK = 1e-4
"""Probability of holding back, by bad luck, a newcomer that costs exactly the allowed accuracy."""

OWN_IMAGES = "the agent's own validation images"
PROBES = "the probes of other modules"


def tolerance(images: int, rate: float, excused: float = 0.0) -> int:
    """Return how many of `images` may be lost: at a true loss of `rate`, more has probability `RISK` at most.

    `excused` is the number of further errors to expect.

    >>> tolerance(30, 0.01), tolerance(200, 0.01), tolerance(4, 0.05), tolerance(200, 0.01, excused=20)
    (4, 9, 3, 40)
    """
    expected = rate + max(excused, 0.0) / max(images, 1)
    if expected >= 1:
        return images
    return int(np.argmax(_more_than_each(images, expected) <= RISK))


def _more_than_each(images: int, rate: float) -> NDArray[np.float64]:
    """Return the probabilities that a binomial exceeds 0, 1, … `images`; scipy would cost a node 16 MB."""
    steps = np.arange(1, images + 1)
    ratios = np.log((images - steps + 1) / steps * rate / (1 - rate))
    exactly = np.exp(images * np.log1p(-rate) + np.concatenate([[0.0], np.cumsum(ratios)]))
    at_least = np.cumsum(exactly[::-1])[::-1]
    return np.append(at_least[1:], 0.0)


def harm(before: Tried, after: Tried, newcomers: list[Module], max_claim: float) -> str | None:
    """Return a sentence with figures on how newcomers make a bank worse, or None if they do not."""
    known = dict(before.others)
    if len(newcomers) > 1:  # no newcomer may take another newcomer's images
        known |= {m.id: _undisturbed(after.others[m.id]) for m in newcomers if m.id in after.others}
    return (
        _loss(before.own, after, OWN_IMAGES)
        or _loss(known, after, PROBES)
        or _claim(before, after, newcomers, max_claim)
        or _wrong_by_teacher(before, after, newcomers)
    )


def own_loss(before: Tried, after: Tried) -> str | None:
    """Return a sentence on how the results on the agent's own images got worse, or None."""
    return _loss(before.own, after, OWN_IMAGES)


def _undisturbed(result: Result) -> Result:
    """Return the result of a newcomer's case as it would be if no other module answered its images."""
    return replace(result, right=result.images, excused=0.0)


def _loss(before: dict[str, Result], after: Tried, what: str) -> str | None:
    """Return a complaint if results got worse, over all tasks together or for any one task."""
    later = after.own | after.others
    examined = [m for m in after.modules if m.id in before and m.id in later]
    if not examined:
        return None
    old, new = ([results[m.id] for m in examined] for results in (before, later))
    complaint = worse(_summed(old), _summed(new), LOSS, what)
    for module in examined:
        task = f"{what} of {module.card.task!r}"
        complaint = complaint or worse(before[module.id], later[module.id], TASK_LOSS, task)
    return complaint


def _summed(results: Iterable[Result]) -> Result:
    return Result(*map(sum, zip(*map(astuple, results), strict=True)))


def worse(before: Result, after: Result, rate: float, what: str) -> str | None:
    """Return a complaint if too many answers to one case became wrong or unknown; `rate` is the allowed loss."""
    images = after.images
    allowed = tolerance(images, rate, after.excused - before.excused)
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


def _claim(before: Tried, after: Tried, newcomers: list[Module], max_claim: float) -> str | None:
    """Check the background images that newcomers claim, and those that older modules claim only since then."""
    images, places = len(after.claims), [after.modules.index(m) for m in newcomers]
    most = max(int(np.sum(after.claims == place)) for place in places)
    opened = int(np.sum((before.claims < 0) & (after.claims >= 0) & ~np.isin(after.claims, places)))
    allowed = int(max_claim * images)
    if most > allowed:
        return f"it claims {most} of {images} background images, expected at most {allowed}"
    if opened > allowed:
        return (
            f"with it other modules claim {opened} of {images} background images that were unknown before, "
            f"expected at most {allowed}"
        )
    return None


def _wrong_by_teacher(before: Tried, after: Tried, newcomers: list[Module]) -> str | None:
    """Check all modules of a teacher together: many must not take bit by bit what a single one may not."""
    for teacher in sorted({m.card.teacher_key for m in newcomers}):
        count = sum(m.card.teacher_key == teacher for m in after.modules)
        for own, what in ((True, OWN_IMAGES), (False, PROBES)):
            old, new = (tried.wrong_answers.get((teacher, own), WrongAnswers()) for tried in (before, after))
            images = _images_of_others(after, teacher, own)
            allowed = tolerance(images, min(count * LOSS, TASK_LOSS), new.excused)
            if new.wrong > max(allowed, old.wrong):
                return (
                    f"with it the {count} modules of its teacher answer {new.wrong} of {images} of {what} "
                    f"wrongly, expected at most {allowed}"
                )
    return None


def _images_of_others(tried: Tried, teacher: str, own: bool) -> int:
    """Count the images of other teachers' tasks, which a teacher's modules could take."""
    results = tried.own if own else tried.others
    return sum(results[m.id].images for m in tried.modules if m.id in results and m.card.teacher_key != teacher)
