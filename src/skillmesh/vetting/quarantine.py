"""Quarantine: a module that arrives is tried before it may answer.

By itself it must look like a task. Then it joins the agent's bank on trial (`bank_trial.py`): if the agent
does worse on what it knows for certain, on what other teachers sent along, or on images that no single task should
claim, the newcomer is held back, with figures that say why (`bank_trial.py`).

Newcomers are tried together, in one mapper that the agent then goes on with. Only a batch that fails is halved,
until the modules to blame are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, AnchorSettings
from skillmesh.anchors.gaussians import MAX_TRACE, Gaussians, pooled_precision
from skillmesh.answering.answering import Mapper
from skillmesh.backbone.calibration import Calibration, Prior
from skillmesh.common.choices import Representation
from skillmesh.learning.class_names.pairs import Places, union
from skillmesh.learning.head import Head, closed_form, read_probes
from skillmesh.module import Module, in_order
from skillmesh.numerics.arrays import Floats
from skillmesh.store.home import OwnValidation
from skillmesh.vetting.bank_trial import BankTrial, Tried, harm, own_loss

COMPARED = 64
"""Of so many classes of two parts it is seen whether they agree, or all: tasks of thousands would take minutes."""


def shared_kinds(parts: Sequence[Module]) -> list[str]:
    """Return the kinds of anchors that add up and that all parts have."""
    shared = set.intersection(*(set(part.card.anchors) for part in parts))
    return sorted(kind for kind in shared if KINDS[kind].adds_up)


def gaussians_of(parts: Sequence[Module], kind: str) -> list[Gaussians]:
    """Read anchors without an agent's settings: whoever holds the same parts makes the same of them."""
    return [KINDS[kind].read(part.tensors).gaussians(AnchorSettings()) for part in parts]


def disagreement(parts: Sequence[Module], prior: Prior) -> tuple[int, int]:
    """Of classes of one name in two parts, how many there are, and how many lie nearer to a class of another.

    Of several parts, those two count that agree the least.
    """
    worst = (0, 0)
    for seen in _compared(parts, prior).values():
        compared, astray = seen.there.size + seen.back.size, int(seen.there.sum() + seen.back.sum())
        if compared and astray * max(worst[0], 1) >= worst[1] * compared:
            worst = compared, astray
    return worst


def disputed(parts: Sequence[Module], index: int, prior: Prior) -> Places:
    """Which classes of one part lie nearer to a class of another name in any other, or others' nearer to its."""
    found = np.zeros(len(parts[index].card.classes), dtype=np.bool_)
    places = union([part.card.classes for part in parts]).places
    for (i, j), seen in _compared(parts, prior).items():
        if index in (i, j):
            found |= np.isin(places[index], seen.places[seen.there | seen.back])
    return np.flatnonzero(found)


class _Compared(NamedTuple):
    """Classes that two parts share, and which of them the second takes for another, or the first does."""

    places: Places
    there: NDArray[np.bool_]
    back: NDArray[np.bool_]


def _compared(parts: Sequence[Module], prior: Prior) -> dict[tuple[int, int], _Compared]:
    """Compare all pairs; each part's closed form is made once."""
    places = union([part.card.classes for part in parts]).places
    known = gaussians_of(parts, shared_kinds(parts)[0])
    precision = pooled_precision(known, prior)
    closed = [closed_form(part.means, precision) for part in known]

    def astray(i: int, j: int, shared: Places) -> NDArray[np.bool_]:
        rows = [places[i].tolist().index(place) for place in shared]
        return np.asarray(places[j][closed[j].logits(known[i].means[rows]).argmax(axis=1)] != shared)

    found = {}
    for i, j in combinations(range(len(parts)), 2):
        shared = np.intersect1d(places[i], places[j])
        if len(shared):
            shared = shared[:: -(-len(shared) // COMPARED)]
            found[i, j] = _Compared(shared, astray(i, j, shared), astray(j, i, shared))
    return found


# What a module shows by itself, before it meets a bank: a few bounds that no honest teacher comes near.
#
# A bank pools what its modules say of themselves, so one absurd number could move all of its answers. Each check
# compares with the calibration, which every agent of a backbone has; `benchmarks/quarantine.py` measures how far
# real tasks stay below the bounds.

MAX_DISTANCE = 8.0
"""Squared distance of a mean or probe from the calibration's centre, in units of that of images on average."""
MAX_CERTAINTY = 50.0
"""Log-odds of a head's best class over its second on images that are not of its task, in the middle."""
MAX_IMAGES = 10_000_000
"""Training images of a task. Counts weigh little here (a task has one voice at most), but a lie is a lie."""


@dataclass(frozen=True)
class Figures:
    """What was measured of a module by itself."""

    kind: str
    claim: float
    """Share of the background that it says it knows, in a bank of its own."""
    distance: float
    spread: float
    """Scatter within its classes, in units of the calibration's."""
    certainty: float
    oddity: float | None
    """Novelty of its middle probe; none where it has no probes."""
    images: int
    """What it says it was learned from."""
    freedom: int | None
    """Images less classes, as its anchor has it; none where the kind stores none."""

    @property
    def complaint(self) -> str | None:
        """What is wrong with it, as a sentence, or nothing."""
        if self.distance > MAX_DISTANCE:
            return (
                f"a mean or probe lies {self.distance:.3g} times as far out as images usually do, "
                f"expected at most {MAX_DISTANCE:g}"
            )
        if self.spread > MAX_TRACE:
            return (
                f"its classes scatter {self.spread:.3g} times as much as the calibration's, "
                f"expected at most {MAX_TRACE:g}"
            )
        if self.images > MAX_IMAGES:
            return f"it claims {self.images:,} training images, expected at most {MAX_IMAGES:,}"
        if self.freedom is not None and self.freedom > self.images:
            return f"its scatter claims {self.freedom:,} images, expected at most the {self.images:,} of its card"
        if self.certainty > MAX_CERTAINTY:
            return (
                f"its head prefers one class by {self.certainty:.3g} in log-odds on images of other tasks, "
                f"expected at most {MAX_CERTAINTY:g}"
            )
        low, high = KINDS[self.kind].usual_novelty
        if self.oddity is not None and not low <= self.oddity <= high:
            return (
                f"its probes are not of its classes: their novelty is {self.oddity:.3g} in the middle, "
                f"expected {low:g} to {high:g}"
            )
        if self.claim > (most := KINDS[self.kind].most_claimed):
            return f"it claims {self.claim:.0%} of the background images as its own, expected at most {most:.0%}"
        return None


def figures_of(module: Module, kind: str, prior: Prior, background: Floats) -> Figures:
    """Measure a module in a bank of its own. Nothing of other modules takes part: they cannot cover for it."""
    anchor = KINDS[kind].read(module.tensors)
    whole = prior.within.variances.sum() + prior.between.variances.sum()
    probes = read_probes(module.tensors, module.card.dim)
    rows = np.concatenate([anchor.rows(), probes]).astype(np.float64)
    mapper = Mapper([module], kind, prior)
    return Figures(
        kind=kind,
        claim=float(np.mean(~mapper.map(background).unknown)),
        distance=float(np.square(rows - prior.centre).sum(axis=1).max() / whole),
        spread=anchor.spread() / float(prior.within.variances.sum()),
        certainty=_certainty(module, background),
        oddity=float(np.median(mapper.probed.novelty)) if len(probes) else None,
        images=sum(module.card.counts),
        freedom=anchor.images_less_classes(),
    )


def _certainty(module: Module, background: Floats) -> float:
    if module.card.head_dim != module.card.dim:  # it looks at more than descriptors
        return 0.0
    logits = np.sort(Head.read(module.tensors).logits(background) / module.card.temperature, axis=1)
    return float(np.median(logits[:, -1] - logits[:, -2]))


MET_IMAGES, MET_SHARE = 3, 0.1
"""A second teacher of a task takes so many of its images at least, and such a share of them."""
MISNAMED = 0.5
"""So many of the names that it shares with the first may be nearer to other classes of the first."""


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
    """Over `modules`, where one was built."""


class Quarantine:
    """Tries newcomers for one agent."""

    def __init__(self, prior: Prior, kind: str, background: Floats, own: Sequence[OwnValidation]) -> None:
        """Take what the agent tries modules on; `background` as `background_of` brings it into its space."""
        self._trial = BankTrial(prior, kind, background, own)
        self._max_claim = KINDS[kind].most_claimed
        self._last: Tried | None = None
        """The last bank's results; without its mapper, which is large."""

    def judge(self, live: Sequence[Module], newcomers: Sequence[Module], mapper: Mapper | None = None) -> Verdict:
        """Say which newcomers may join the live modules.

        What is live already, or older than what is live, is neither accepted nor held. A newer version is compared
        with the bank without the older one, which stays if its successor is held.

        Parameters
        ----------
        mapper
            That over the live modules in the bank's order, if it is built already.
        """
        candidates, held = self._inspected(_newest(live, newcomers))
        base = _without_replaced(live, candidates)
        before = self._before(base, mapper if len(base) == len(live) else None)
        accepted, complaints, after = self._admit(before, candidates)
        modules = in_order(_without_replaced(live, accepted) + accepted)
        if modules != after.modules:  # a successor was held: the older version is back
            after = self._trial.run(modules)
        everyone = sorted(held + complaints, key=lambda h: (h.module.content_id, h.module.id))
        self._last = replace(after, mapper=None)
        return Verdict(tuple(in_order(accepted)), tuple(everyone), modules, after.mapper)

    def _before(self, base: list[Module], mapper: Mapper | None) -> Tried:
        """How the bank did without the newcomers: as it did with the last ones, where nothing else has changed."""
        if self._last is not None and self._last.modules == base:
            return self._last
        return self._trial.run(base, mapper)

    def _inspected(self, newcomers: list[Module]) -> tuple[list[Module], list[Held]]:
        """Hold back what is absurd by itself; order the others, those that claim least of the background first.

        Whoever comes first in a batch has it easier, and that should not be the greedy.
        """
        held, fine = [], []
        for module in newcomers:
            figures = figures_of(module, self._trial.kind, self._trial.prior, self._trial.background)
            if figures.complaint:
                held.append(Held(module, figures.complaint))
            else:
                fine.append((figures.claim, module.content_id, module.id, module))
        return [module for *_, module in sorted(fine, key=lambda ranked: ranked[:3])], held

    def _admit(self, before: Tried, newcomers: list[Module]) -> tuple[list[Module], list[Held], Tried]:
        """Let all in if together they do no harm; else try the halves, the second after the first."""
        if not newcomers:
            return [], [], before
        after = self._trial.run(in_order(before.modules + newcomers))
        complaint = (
            harm(before, after, newcomers, self._max_claim)
            or self._misnamed(after, newcomers)
            or self._uncovered(before, newcomers)
        )
        if complaint is None:
            return newcomers, [], after
        if len(newcomers) == 1:
            return [], [Held(newcomers[0], complaint)], before
        middle = len(newcomers) // 2
        first, first_held, between = self._admit(before, newcomers[:middle])
        second, second_held, last = self._admit(between, newcomers[middle:])
        return first + second, first_held + second_held, last

    def _uncovered(self, before: Tried, newcomers: list[Module]) -> str | None:
        """Say how composed newcomers would harm the agent's own images if the sources before them were gone.

        A source may be withdrawn at any time, and what stood back behind it then answers untried.
        """
        sources = {source for module in newcomers for source, _ in module.card.origins} - before.own.keys()
        rest = [module for module in before.modules if module.id not in sources]
        left = [module for module in newcomers if module.id not in sources]
        if len(rest) + len(left) == len(before.modules) + len(newcomers) or not before.own:
            return None
        reason = own_loss(self._trial.run(rest), self._trial.run(in_order(rest + left)))
        return None if reason is None else f"were it not for the tasks that it is composed of: {reason}"

    def _misnamed(self, after: Tried, newcomers: list[Module]) -> str | None:
        """Say which of the agent's own tasks a newcomer teaches under the same names, put to other classes.

        Where an agent has few images, or knows few of them itself, wrong answers could be bad luck; that classes
        lie in each other's places cannot. A task whose names are the same and that looks another way (written and
        signed digits) takes no images and is not meant.
        """
        if not KINDS[self._trial.kind].adds_up:
            return None
        by_id = {module.id: module for module in after.modules}
        for (newcomer, own), images in sorted(after.met.items()):
            few = images < max(MET_IMAGES, MET_SHARE * after.own[own].images)
            if few or newcomer not in {module.id for module in newcomers}:
                continue
            compared, astray = disagreement([by_id[own], by_id[newcomer]], self._trial.prior)
            if astray > MISNAMED * compared:
                return (
                    f"it has names of the agent's own {by_id[own].card.task!r} for other classes than these: "
                    f"{astray} of {compared} lie nearer to a class of another name, expected at most "
                    f"{int(MISNAMED * compared)}"
                )
        return None


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


def _lineage(module: Module) -> tuple[str, str]:
    """What the versions of one teacher's task have in common."""
    return module.card.teacher_key, module.card.task


def _without_replaced(live: Sequence[Module], newcomers: list[Module]) -> list[Module]:
    replaced = {_lineage(m) for m in newcomers}
    return in_order([m for m in live if _lineage(m) not in replaced])


def _newest(live: Sequence[Module], newcomers: Sequence[Module]) -> list[Module]:
    """Leave out what is live already and what a newer version replaces: the bank would not take it."""
    newest = {_lineage(m): m for m in live}
    for module in sorted(newcomers, key=lambda m: (m.card.version, m.id)):
        known = newest.get(_lineage(module))
        if known is None or (known.card.version, known.id) < (module.card.version, module.id):
            newest[_lineage(module)] = module
    return in_order([m for m in newest.values() if m not in live])
