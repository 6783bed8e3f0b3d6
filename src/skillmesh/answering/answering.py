"""How an agent answers: the mapper names the likeliest tasks, and their heads the classes.

What an answer needs (the mapper, heads, biases) is made when it is first needed, and kept. What is kept is
replaced, never changed under an answer: a node puts a new mapper in place while others answer.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from copy import copy
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import KINDS, Scores
from skillmesh.answering.answer import LEAST, Answer, Guess, Heard, Same, sameness, supported
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.calibration import Prior
from skillmesh.common.choices import Support
from skillmesh.common.config import AgentConfig
from skillmesh.common.text import Lookalikes
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import UnknownTaskError, option
from skillmesh.learning.adaptation import Biases, Patterned
from skillmesh.learning.head import SHARES, Head, best_temperature, probe_weights, read_probes, softmax
from skillmesh.module import Card, Module
from skillmesh.module.notice import MergedTask, parts_of
from skillmesh.module.teachers import Teachers
from skillmesh.numerics.arrays import Floats, spend
from skillmesh.numerics.process import one_thread

# Is a task composed of what it says? Its card is a claim; where a named module is here, the claim can be checked.
#
# A task that was composed without images has its sources' class means, and these are copied: only rounding may
# tell them apart. With images of its own it has means of its own, and nothing can be said: its counts then tell of
# more images than its sources have.


def parts_here(tasks: Iterable[Module]) -> dict[str, Module]:
    """All modules that tasks consist of, by their ids."""
    return {part.id: part for task in tasks for part in parts_of(task)}


def is_copy(module: Module, here: Mapping[str, Module], kind: str) -> bool | None:
    """Whether a composed task has its sources' means; None where that cannot be seen, or not of all of them."""
    rows = [(row, here[source], name) for row, (source, name) in enumerate(module.card.origins) if source in here]
    if not rows or (own := _means(module, kind)) is None:
        return None
    if any(name not in source.card.classes for _, source, name in rows):
        return False
    if any(
        module.card.counts[row] > source.card.counts[source.card.classes.index(name)] for row, source, name in rows
    ):
        return None
    known = {source.id: _means(source, kind) for _, source, _ in rows}
    for row, source, name in rows:
        if (others := known[source.id]) is None:
            return None
        ours, theirs = own[row], others[source.card.classes.index(name)]
        if np.abs(ours - theirs).max() > np.abs(theirs).max() / 127:  # a step of its rounding
            return False
    return True if len(rows) == len(module.card.origins) else None


def _means(module: Module, kind: str) -> Floats | None:
    return KINDS[kind].read(module.tensors).class_means()


# The mapper: which task is this image of, how sure is that, and is it of any task at all?
#
# It is built from the anchors in a bank and from nothing else, so that equal banks have equal mappers. The scale
# of its confidence and its threshold for "unknown" are found on the probes that the modules carry.

KNOWN = 0.975
"""Share of validation images that the threshold lets pass; of test images it is about 0.96."""
USUAL_SPREAD = 0.25
"""From the middle of novelty to the threshold, relative to the middle, as most banks have it."""
PSEUDO_PROBES = 4
"""So many probes' worth the usual spread weighs: a bank of one small task has little else."""
ASKED_MODULES = 512
"""About so many modules' probes set temperature and threshold, or all: more would tell nothing new."""
PROBES_AT_ONCE = 512
YIELD = 0.1
"""By so much, in log-odds, a composed task steps back: an image of a class that it shares with a source fits both
equally, and is the source's wherever that is. To compose a task changes nobody's answers."""
YIELD_TO_ALL = 3.0
"""The same where all its sources are here and it is seen to be a copy of them: it then knows nothing that they do
not, and should not halve their confidence either."""


@dataclass(frozen=True)
class Mapped:
    """What the mapper says of n images and T tasks."""

    posterior: NDArray[np.floating]
    """(n, T): how probable each task is, given that the image is of one of them."""
    novelty: Floats
    """(n,): the larger, the less the image fits any task."""
    unknown: NDArray[np.bool_]

    @property
    def task(self) -> NDArray[np.int64]:
        """The most probable task's index, whether or not the image is unknown."""
        best: NDArray[np.int64] = self.posterior.argmax(axis=1)
        return best


@dataclass(frozen=True)
class Judged:
    """The short form of what the mapper says: no probabilities, of which there are images × tasks."""

    task: NDArray[np.int64]
    novelty: Floats
    unknown: NDArray[np.bool_]


class Mapper:
    """The pooled anchors of some modules, in the order given, with what their probes say."""

    def __init__(self, modules: Sequence[Module], kind: str, prior: Prior) -> None:
        # One BLAS thread: several may round otherwise, and agents with equal banks must have equal mappers.
        with one_thread():
            self._build(modules, kind, prior)

    def _build(self, modules: Sequence[Module], kind: str, prior: Prior) -> None:
        anchor_type = KINDS[kind]
        self._modules = modules
        self._yields = _steps_back(modules, kind)
        self._scorer = scorer = anchor_type.pool((anchor_type.read(m.tensors) for m in modules), prior)
        telling = [m for m, step in zip(modules, self._yields, strict=True) if step < YIELD_TO_ALL]
        if len(telling) < len(modules):  # copies of what is here must not change how sure the others are
            scorer = anchor_type.pool((anchor_type.read(m.tensors) for m in telling), prior)
        asked = range(0, len(telling), -(-len(telling) // ASKED_MODULES))
        voices = [_voices(telling[i]) for i in asked]
        owners, weights = np.repeat(asked, [len(v) for v in voices]), np.concatenate(voices)
        scores = Scores.joined([scorer.score(x) for x in _some_probes([telling[i] for i in asked])])
        spend("probes", len(owners) * scorer.macs)
        self.temperature = best_temperature(scores.task, owners, weights) if len(owners) else 1.0
        self.threshold = _threshold(scores.novelty, weights, self._scorer.usual_threshold)
        self._asked = self._judged(scores) if len(asked) == len(modules) else None

    @property
    def steps_back(self) -> NDArray[np.bool_]:
        """Which tasks stay behind what their anchors say: those composed of others, as far as can be seen."""
        return self._yields > 0

    @cached_property
    def probed(self) -> Judged:
        """What it makes of the probes of all modules, in their order."""
        if self._asked is not None:
            return self._asked
        parts = [self._judged(self._scorer.score(x)) for x in _some_probes(self._modules)]
        return Judged(*(np.concatenate(part) for part in zip(*(astuple(p) for p in parts), strict=True)))

    def _judged(self, scores: Scores) -> Judged:
        mapped = self._mapped(scores)
        return Judged(mapped.task, mapped.novelty, mapped.unknown)

    def on_trial(self) -> Mapper:
        """The same where no task stands back behind its sources: these may be withdrawn once it is let in."""
        if self._yields.max() <= YIELD:
            return self
        bold = copy(self)
        bold._yields = np.minimum(self._yields, np.float32(YIELD))
        bold.__dict__.pop("probed", None)
        return bold

    def map(self, x: Floats) -> Mapped:
        return self._mapped(self._scorer.score(x))

    def shortlist_agreement(self, x: Floats) -> float:
        """How often it finds the task that looking closely at all tasks would; 1 where it does look at all."""
        return self._scorer.agreement(x)

    def _mapped(self, scores: Scores) -> Mapped:
        posterior = softmax(scores.task / self.temperature - self._yields)
        return Mapped(posterior, scores.novelty, scores.novelty > self.threshold)


def _steps_back(modules: Sequence[Module], kind: str) -> Floats:
    """How far each task stays behind what its anchor says; one that lies about its origins, not at all."""
    here = parts_here(modules)
    steps = {None: YIELD, True: YIELD_TO_ALL, False: 0.0}
    return np.array(
        [steps[is_copy(m, here, kind)] if m.card.composed is not None else 0.0 for m in modules], dtype=np.float32
    )


def _voices(module: Module) -> NDArray[np.float64]:
    """What each of a task's probes stands for: one task one voice, of however many parts."""
    parts = parts_of(module)
    return np.concatenate([probe_weights(part.card.validation_images) for part in parts]) / len(parts)


def _some_probes(modules: Sequence[Module]) -> Iterator[Floats]:
    """The probes of all modules, as many at once as there is room for."""
    step = max(1, PROBES_AT_ONCE // len(SHARES))
    for start in range(0, len(modules), step):
        some = modules[start : start + step]
        yield np.concatenate([read_probes(m.tensors, m.card.dim) for m in some])


def _threshold(novelty: Floats, weights: NDArray[np.float64], default: float) -> float:
    """Where "unknown" begins: the novelty under which nearly all validation images of the bank's tasks lie."""
    if not len(novelty):
        return default
    order = np.argsort(novelty, kind="stable")
    heights = np.cumsum(weights[order]) - weights[order] / 2
    middle, measured = np.interp([0.5, KNOWN], heights / weights.sum(), novelty[order])
    usual = middle + USUAL_SPREAD * abs(middle)
    measured = min(measured, middle + 4 * USUAL_SPREAD * abs(middle))  # one odd teacher must not switch it off
    return float((len(novelty) * measured + PSEUDO_PROBES * usual) / (len(novelty) + PSEUDO_PROBES))


GUESSES = 5
RIVAL_TASKS = 4
"""Tasks beside the best whose classes are always among the guesses; further ones as far as they are probable."""


class Answering:
    """The answers of one agent, from the modules in its bank."""

    def __init__(
        self,
        tasks: Callable[[], list[Module]],
        config: AgentConfig,
        prior: Callable[[], Prior],
        backbone: Callable[[], Backbone],
        teachers: Callable[[], Teachers],
    ) -> None:
        """All are asked for when they are needed: tasks and names change, and loading a backbone takes time."""
        self._teachers = teachers
        self.rebuilds_itself = True
        self._tasks, self._config, self._prior, self._backbone = tasks, config, prior, backbone
        self._mapper: tuple[list[Module], Mapper] | None = None
        self._building = threading.Lock()
        self._heads: dict[str, Head] = {}
        self._biases: dict[str, Floats] = {}
        self._sameness: dict[Support, Same | None] = {}

    def answer_described(
        self, x: Floats, images: Sequence[AnyImage], support: Support | None = None
    ) -> list[Answer]:
        modules, mapper = self.mapper()
        mapped = mapper.map(x)
        heard = self._heard(x, mapped, modules, images)
        same = self._same(support or self._config.support)
        guesses = [[each.guess for each in some] if same is None else supported(some, same) for some in heard]
        return [
            Answer(image.name, bool(unknown), tuple(found[:GUESSES]), _relative(float(novelty), mapper.threshold))
            for image, unknown, found, novelty in zip(images, mapped.unknown, guesses, mapped.novelty, strict=True)
        ]

    def mapper(self) -> tuple[list[Module], Mapper]:
        current = self._mapper
        if current is not None and not self.rebuilds_itself:
            return current
        with self._building:
            modules = self._tasks()
            refuse_empty(modules)
            current = self._mapper
            if current is None or current[0] != modules:
                return self.use(modules, Mapper(modules, self._config.anchor, self._prior()))
            return current

    def rebuild(self, made: Callable[[list[Module]], Mapper] | None = None) -> None:
        """Answer from the tasks as they are now; `made` may know their mapper already.

        By one thread at a time: no mapper of what was there before takes the place of a newer one.
        """
        with self._building:
            modules = self._tasks()
            if not modules:
                self.use_nothing()
            elif self.in_use() != modules:
                self.use(modules, made(modules) if made else Mapper(modules, self._config.anchor, self._prior()))

    def use(self, modules: list[Module], mapper: Mapper) -> tuple[list[Module], Mapper]:
        self._mapper = modules, mapper
        live = {module.id for module in modules}
        self._heads = {module_id: head for module_id, head in self._heads.items() if module_id in live}
        self._biases = {module_id: added for module_id, added in self._biases.items() if module_id in live}
        return modules, mapper

    def use_nothing(self) -> None:
        self._mapper = None

    @property
    def outdated(self) -> bool:
        return self._mapper is not None and self._mapper[0] != self._tasks()

    @property
    def live(self) -> int:
        return len(self._mapper[0]) if self._mapper and not self.rebuilds_itself else len(self._tasks())

    def in_use(self) -> list[Module]:
        return self._mapper[0] if self._mapper else []

    def head(self, module: Module) -> Head:
        heads = self._heads
        if module.id not in heads:
            heads[module.id] = Head.read(module.tensors)
        return heads[module.id]

    def seen_by(self, module: Module, x: Floats, images: Sequence[AnyImage]) -> Floats:
        if not module.card.adapted:
            return x
        card, as_is, backbone = module.card, (self._config.representation, self._config.compact), self._backbone()
        if not _fits(card, backbone):  # signed, but for no network that there is: its own task answers nonsense
            return np.zeros((len(images), card.head_dim), dtype=np.float32)
        if card.pattern is not None:
            return backbone.changed([Patterned(i, module.tensors["pattern"]) for i in images], *as_is)
        assert card.biases is not None
        known = self._biases  # a node may put another in its place meanwhile
        if module.id not in known:
            known[module.id] = Biases.read(module.tensors, card.biases[0]).added
        added = known[module.id]
        if card.toes is not None:
            return backbone.toes(images, added)
        return backbone.biased(images, added, *as_is)

    def _same(self, support: Support) -> Same | None:
        if support not in self._sameness:
            self._sameness[support] = sameness(support)
        return self._sameness[support]

    def _heard(
        self, x: Floats, mapped: Mapped, modules: list[Module], images: Sequence[AnyImage]
    ) -> list[list[Heard]]:
        """For each image the classes of its likeliest tasks, by p(task)·p(class given task).

        The first is the best class of the best task; heads run once per task on all images that want them. A task
        that adapts the backbone has a second pass over those images alone that are most probably its own; among
        the rivals of other images it is not heard.
        """
        likely = _likely_tasks(mapped.posterior)
        found: list[list[tuple[bool, Heard]]] = [[] for _ in range(len(x))]
        teachers, names = self._teachers(), Lookalikes(module.card.task for module in modules)
        for index in np.unique(likely[likely >= 0]):
            module = modules[index]
            teacher, key = teachers.of(module), module.card.teacher_key
            odd = tuple(names.letters(module.card.task))
            signer = "" if isinstance(module, MergedTask) else key  # of a merged task there is no one teacher
            rows = np.flatnonzero((likely == index).any(axis=1))
            if module.card.adapted:
                rows = np.flatnonzero(likely[:, 0] == index)
            if not len(rows):
                continue
            seen = self.seen_by(module, x[rows], [images[int(row)] for row in rows])
            share = softmax(self.head(module).logits(seen) / module.card.temperature)
            top = np.argsort(-share, axis=1, kind="stable")[:, :GUESSES]
            for row, classes, p in zip(rows, top, share, strict=True):
                for rank, c in enumerate(classes):
                    chosen = rank == 0 and likely[row, 0] == index
                    confidence = float(mapped.posterior[row, index] * p[c])
                    guess = Guess(module.card.classes[c], module.card.task, teacher, confidence, signer, (), odd)
                    found[row].append((chosen, Heard(int(index), key, guess)))
        for candidates in found:
            candidates.sort(key=lambda pair: (not pair[0], -pair[1].guess.confidence))
        return [[heard for _, heard in candidates] for candidates in found]


def _likely_tasks(posterior: Floats) -> NDArray[np.int64]:
    """Return the tasks that may have a say in each image, the best first; -1 stands for none.

    One class taught in many tasks is shared between all of them, so every task counts whose share is large enough
    to support another.
    """
    order = np.argsort(-posterior, axis=1, kind="stable")
    probable = int((posterior >= LEAST).sum(axis=1).max(initial=0))
    likely = order[:, : max(RIVAL_TASKS + 1, probable)]
    shares = np.take_along_axis(posterior, likely, axis=1)
    extra = np.arange(likely.shape[1]) > RIVAL_TASKS
    return np.where(extra & (shares < LEAST), -1, likely)


def longest(modules: Sequence[Module], teachers: Teachers) -> dict[str, int]:
    """Return how many characters a label, a task and a teacher's name can have; 0 where there is one teacher."""
    called = {teachers.of(module) for module in modules}
    names = Lookalikes(module.card.task for module in modules)
    return {
        "label": max((len(label) for module in modules for label in module.card.classes), default=0),
        "task": max((len(names.marked(module.card.task)) for module in modules), default=0),
        "teacher": max(map(len, called)) if len(called) > 1 else 0,
    }


def refuse_empty(tasks: Sized) -> None:
    if not len(tasks):
        learn = option("agent.learn", "`skillmesh learn FOLDER`")
        take = option("agent.import_file", "`skillmesh import FILE`")
        raise UnknownTaskError(
            f"this agent knows no task yet; teach it one with {learn}, or take one in with {take}"
        )


def _relative(novelty: float, threshold: float) -> float:
    """Scale novelty so that the threshold is 1, below zero too: gmmc's novelty is a log-likelihood."""
    if math.isinf(threshold):
        return 0.0
    return 1 + (novelty - threshold) / max(abs(threshold), 1e-9)


def _fits(card: Card, backbone: Backbone) -> bool:
    """Whether what a module adapts is there in the network."""
    network = backbone.network
    channels = card.biases is None or card.biases[0] == len(network.base)
    pattern = card.pattern is None or card.pattern == network.size
    toes = card.toes is None or (card.biases is not None and card.toes == network.toe_sizes)
    return channels and pattern and toes
