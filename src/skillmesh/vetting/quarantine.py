"""Quarantine: the trial that a received module must pass before it may answer.

First the module is measured by itself: it must look like a task. Then it joins the agent's bank on trial
(`bank_trial.py`). It is held back, with figures that give the reason, if the agent does worse on its own
validation images, on other teachers' probes, or on background images that no single task should claim.

Newcomers are tried together, in one mapper that the agent then keeps using. Only a batch that fails is halved,
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
from skillmesh.answering.answering import UNANSWERED, Mapper
from skillmesh.backbone.calibration import Calibration, Prior
from skillmesh.common.choices import Representation
from skillmesh.learning.class_names.pairs import Places, union
from skillmesh.learning.head import Head, closed_form, read_probes
from skillmesh.module import Module, in_order
from skillmesh.numerics.arrays import Floats
from skillmesh.store.home import OwnValidation
from skillmesh.vetting.bank_trial import BankTrial, Tried, harm, own_loss

COMPARED = 64
"""Largest number of shared classes compared between two parts: all of thousands would take minutes."""


def shared_kinds(parts: Sequence[Module]) -> list[str]:
    """Return the kinds of anchors that add up and that all parts have."""
    shared = set.intersection(*(set(part.card.anchors) for part in parts))
    return sorted(kind for kind in shared if KINDS[kind].adds_up)


def gaussians_of(parts: Sequence[Module], kind: str) -> list[Gaussians]:
    """Read the parts' anchors with default settings, so that all agents get the same from the same parts."""
    return [KINDS[kind].read(part.tensors).gaussians(AnchorSettings()) for part in parts]


def disagreement(parts: Sequence[Module], prior: Prior) -> tuple[int, int]:
    """Return how many classes of one name in two parts were compared, and how many lie nearer to another class.

    Both directions of comparison count. With more than two parts, the pair that agrees the least counts.
    """
    worst = (0, 0)
    for pair in _compared(parts, prior).values():
        compared, misplaced = pair.there.size + pair.back.size, int(pair.there.sum() + pair.back.sum())
        if compared and misplaced * max(worst[0], 1) >= worst[1] * compared:
            worst = compared, misplaced
    return worst


def disputed(parts: Sequence[Module], index: int, prior: Prior) -> Places:
    """Return the classes of part `index` that, in either direction, lie nearer to a class of another name."""
    is_disputed = np.zeros(len(parts[index].card.classes), dtype=np.bool_)
    places = union([part.card.classes for part in parts]).places
    for (i, j), pair in _compared(parts, prior).items():
        if index in (i, j):
            is_disputed |= np.isin(places[index], pair.places[pair.there | pair.back])
    return np.flatnonzero(is_disputed)


class _Compared(NamedTuple):
    """Classes that two parts share; `there`: those the second part takes for another class, `back`: the first."""

    places: Places
    there: NDArray[np.bool_]
    back: NDArray[np.bool_]


def _compared(parts: Sequence[Module], prior: Prior) -> dict[tuple[int, int], _Compared]:
    """Compare all pairs of parts; each part's closed-form head is computed once."""
    places = union([part.card.classes for part in parts]).places
    gaussians = gaussians_of(parts, shared_kinds(parts)[0])
    precision = pooled_precision(gaussians, prior)
    heads = [closed_form(part.means, precision) for part in gaussians]

    def misplaced(i: int, j: int, shared: Places) -> NDArray[np.bool_]:
        rows = [places[i].tolist().index(place) for place in shared]
        return np.asarray(places[j][heads[j].logits(gaussians[i].means[rows]).argmax(axis=1)] != shared)

    comparisons = {}
    for i, j in combinations(range(len(parts)), 2):
        shared = np.intersect1d(places[i], places[j])
        if len(shared):
            shared = shared[:: -(-len(shared) // COMPARED)]
            comparisons[i, j] = _Compared(shared, misplaced(i, j, shared), misplaced(j, i, shared))
    return comparisons


# Checks of a module by itself, before it joins a bank: a few bounds that no honest teacher comes near.
#
# A bank pools the numbers in its modules, so one absurd number could change all of its answers. Each check
# compares with the calibration, which all agents with the same backbone have. `benchmarks/quarantine.py` measures
# by how much real tasks stay below the bounds.

MAX_DISTANCE = 8.0
"""Largest squared distance of a mean or probe from the calibration's centre, in units of the images' average."""
MAX_CERTAINTY = 50.0
"""Largest median log-odds of a head's best class over its second, on images that are not of its task."""
MAX_IMAGES = 10_000_000
"""Largest number of training images. Counts weigh little (one vote per task at most) but must be plausible."""


@dataclass(frozen=True)
class Figures:
    """Measurements of a module by itself."""

    kind: str
    claim: float
    """Share of the background images that it claims in a bank of its own, 0 to 1."""
    distance: float
    spread: float
    """Scatter within its classes, in units of the calibration's scatter."""
    certainty: float
    oddity: float | None
    """Median novelty of its probes; None if it has no probes."""
    images: int
    """Number of training images according to its card."""
    freedom: int | None
    """Number of images minus number of classes, as stored in its anchor; None if this kind stores none."""

    @property
    def complaint(self) -> str | None:
        """A sentence that names the first bound exceeded, or None."""
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
                f"its probes are not of its classes: their median novelty is {self.oddity:.3g}, "
                f"expected {low:g} to {high:g}"
            )
        if self.claim > (most := KINDS[self.kind].most_claimed):
            return f"it claims {self.claim:.0%} of the background images as its own, expected at most {most:.0%}"
        return None


def figures_of(module: Module, kind: str, prior: Prior, background: Floats) -> Figures:
    """Measure a module in a bank of its own, where no other module can hide its faults."""
    anchor = KINDS[kind].read(module.tensors)
    whole = prior.within.variances.sum() + prior.between.variances.sum()
    probes = read_probes(module.tensors, module.card.dim)
    rows = np.concatenate([anchor.rows(), probes]).astype(np.float64)
    mapper = Mapper([module], kind, prior)
    return Figures(
        kind=kind,
        claim=float(np.mean(~mapper.map(background).unanswered)),
        distance=float(np.square(rows - prior.centre).sum(axis=1).max() / whole),
        spread=anchor.spread() / float(prior.within.variances.sum()),
        certainty=_certainty(module, background),
        oddity=float(np.median(mapper.probed.novelty)) if len(probes) else None,
        images=sum(module.card.counts),
        freedom=anchor.images_less_classes(),
    )


def _certainty(module: Module, background: Floats) -> float:
    if module.card.head_dim != module.card.dim:  # its input is wider than descriptors
        return 0.0
    logits = np.sort(Head.read(module.tensors).logits(background) / module.card.temperature, axis=1)
    return float(np.median(logits[:, -1] - logits[:, -2]))


SAME_TASK_IMAGES, SAME_TASK_SHARE = 3, 0.1
"""Fewest images, and smallest share, of an own task that a newcomer answers to count as its second teacher."""
MISNAMED = 0.5
"""Largest share of the names both teach that may lie nearer to a class of another name, 0 to 1."""


@dataclass(frozen=True)
class Held:
    """A module that is held back, and the reason."""

    module: Module
    reason: str


@dataclass(frozen=True)
class Verdict:
    """The outcome of a trial of newcomers."""

    accepted: tuple[Module, ...]
    held: tuple[Held, ...]
    modules: list[Module]
    """The live modules and the accepted ones, in the bank's order."""
    mapper: Mapper | None
    """The mapper of `modules`, if one was built."""


class Quarantine:
    """Tries newcomers for one agent."""

    def __init__(
        self,
        prior: Prior,
        kind: str,
        background: Floats,
        own: Sequence[OwnValidation],
        unanswered: float = UNANSWERED,
    ) -> None:
        """Keep what the trials need; `background` is the output of `background_of`."""
        self._trial = BankTrial(prior, kind, background, own, unanswered)
        self._max_claim = KINDS[kind].most_claimed
        self._last: Tried | None = None
        """Results of the last bank tried, without its mapper, which is large."""

    def judge(self, live: Sequence[Module], newcomers: Sequence[Module], mapper: Mapper | None = None) -> Verdict:
        """Decide which newcomers may join the live modules.

        A newcomer that is live already, or older than the live version, is neither accepted nor held. A newer
        version is compared with the bank without the older one, which stays if the newer one is held.

        Parameters
        ----------
        mapper
            The mapper of the live modules in the bank's order, if it has been built.
        """
        candidates, held = self._inspected(_newest(live, newcomers))
        base = _without_replaced(live, candidates)
        before = self._before(base, mapper if len(base) == len(live) else None)
        accepted, complaints, after = self._admit(before, candidates)
        modules = in_order(_without_replaced(live, accepted) + accepted)
        if modules != after.modules:  # a newer version was held: the older one stays
            after = self._trial.run(modules)
        all_held = sorted(held + complaints, key=lambda h: (h.module.content_id, h.module.id))
        self._last = replace(after, mapper=None)
        return Verdict(tuple(in_order(accepted)), tuple(all_held), modules, after.mapper)

    def _before(self, base: list[Module], mapper: Mapper | None) -> Tried:
        """Return the bank's results without the newcomers: the last results if they are of the same modules."""
        if self._last is not None and self._last.modules == base:
            return self._last
        return self._trial.run(base, mapper)

    def _inspected(self, newcomers: list[Module]) -> tuple[list[Module], list[Held]]:
        """Hold back modules that fail by themselves; sort the others by their background claim, smallest first.

        Modules that come first in a batch pass more easily, so those that claim much must not be first.
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
        """Accept all newcomers if together they do no harm; else try the halves, the second after the first."""
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
        """Return how composed newcomers would harm the agent's own images without their sources, or None.

        A source may be withdrawn at any time. The composed task that gave way to it then answers without a trial.
        """
        sources = {source for module in newcomers for source, _ in module.card.origins} - before.own.keys()
        rest = [module for module in before.modules if module.id not in sources]
        remaining = [module for module in newcomers if module.id not in sources]
        if len(rest) + len(remaining) == len(before.modules) + len(newcomers) or not before.own:
            return None
        reason = own_loss(self._trial.run(rest), self._trial.run(in_order(rest + remaining)))
        return None if reason is None else f"without the tasks that it is composed of: {reason}"

    def _misnamed(self, after: Tried, newcomers: list[Module]) -> str | None:
        """Return a complaint if a newcomer uses the class names of one of the agent's own tasks for other classes.

        If an agent has few images, or knows few of them itself, wrong answers could be bad luck. Classes that lie
        in each other's places cannot. A task with the same names but a different look (written and signed digits)
        takes no images and is not affected.
        """
        if not KINDS[self._trial.kind].adds_up:
            return None
        by_id = {module.id: module for module in after.modules}
        for (newcomer, own), images in sorted(after.shared_names.items()):
            few = images < max(SAME_TASK_IMAGES, SAME_TASK_SHARE * after.own[own].images)
            if few or newcomer not in {module.id for module in newcomers}:
                continue
            compared, misplaced = disagreement([by_id[own], by_id[newcomer]], self._trial.prior)
            if misplaced > MISNAMED * compared:
                return (
                    f"it uses class names of the agent's own {by_id[own].card.task!r} for other classes: "
                    f"{misplaced} of {compared} lie nearer to a class of another name, expected at most "
                    f"{int(MISNAMED * compared)}"
                )
        return None


def background_of(calibration: Calibration, representation: Representation, compact: bool) -> Floats:
    """Convert the calibration's background sample to an agent's representation.

    It is stored as standardised descriptors. Undoing that restores the features, except for clipped values.
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
    """Return the key that all versions of one teacher's task share."""
    return module.card.teacher_key, module.card.task


def _without_replaced(live: Sequence[Module], newcomers: list[Module]) -> list[Module]:
    replaced = {_lineage(m) for m in newcomers}
    return in_order([m for m in live if _lineage(m) not in replaced])


def _newest(live: Sequence[Module], newcomers: Sequence[Module]) -> list[Module]:
    """Leave out modules that are live or that a newer version replaces: the bank would not import them."""
    newest = {_lineage(m): m for m in live}
    for module in sorted(newcomers, key=lambda m: (m.card.version, m.id)):
        known = newest.get(_lineage(module))
        if known is None or (known.card.version, known.id) < (module.card.version, module.id):
            newest[_lineage(module)] = module
    return in_order([m for m in newest.values() if m not in live])
