"""How an agent answers: the mapper names the most probable tasks, and their heads name the classes.

The mapper, heads and biases are built when they are first needed, and then kept. They are replaced as a whole and
never modified: a node may install a new mapper while other threads are answering.
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

from skillmesh.anchors import KINDS, KnownOdds, Scorer, Scores
from skillmesh.answering.answer import LEAST, Answer, Candidate, Guess, Same, sameness, supported
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.calibration import Prior
from skillmesh.common.choices import Support
from skillmesh.common.config import AgentConfig
from skillmesh.common.text import Lookalikes
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import UnknownTaskError, option
from skillmesh.learning.adaptation import Biases, Patterned
from skillmesh.learning.head import (
    SHARES,
    Head,
    best_temperature,
    class_shares,
    probe_weights,
    read_probes,
    softmax,
)
from skillmesh.module import Card, Module
from skillmesh.module.notice import MergedTask, parts_of
from skillmesh.module.teachers import Teachers
from skillmesh.numerics.arrays import Floats, spend
from skillmesh.numerics.graphs import Graph, Value
from skillmesh.numerics.process import one_thread

# Checks that a task is composed of the modules that its card names: the bank may hold these modules.
#
# A task that was composed without images has copies of its sources' class means, which differ by rounding only.
# A task with images of its own has means of its own, and cannot be checked: its counts are then larger than its
# sources' counts.


def parts_here(tasks: Iterable[Module]) -> dict[str, Module]:
    """Return all modules that the tasks consist of, by id."""
    return {part.id: part for task in tasks for part in parts_of(task)}


def is_copy(module: Module, here: Mapping[str, Module], kind: str) -> bool | None:
    """Return True if a composed task has its sources' class means, None if not all of them can be checked."""
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
        if np.abs(ours - theirs).max() > np.abs(theirs).max() / 127:  # one int8 rounding step
            return False
    return True if len(rows) == len(module.card.origins) else None


def _means(module: Module, kind: str) -> Floats | None:
    return KINDS[kind].read(module.tensors).class_means()


# The mapper: which task an image belongs to, with which probability, and if it belongs to any task at all.
#
# It is built from the modules in a bank and from nothing else, so that equal banks have equal mappers. Its
# temperature and its threshold for "unknown" are computed from the probes that the modules carry.

UNANSWERED = 0.05
"""Share of images of known tasks that are not answered, unless the agent's settings name another."""
OPTIMISM = 0.6
"""Share of validation images above the threshold, for one of test images: these are taken by other hands."""
UNKNOWN_BELOW = 0.1
"""Probability of belonging to a known task below which an image that is not answered is called unknown, so that at
most one in ten such statements is wrong. The others are unsure."""
PSEUDO_PROBES = 4
"""Prior weight of the usual spread, in probes: a bank of one small task has little other evidence."""
ASKED_MODULES = 512
"""Approximate limit on modules whose probes set temperature and threshold: more would change little."""
PROBES_AT_ONCE = 512
YIELD = 0.1
"""Penalty of a composed task, in log-odds. An image of a class that it shares with a source fits both equally, and
goes to the source if the bank holds it. So composing a task changes no answers of other tasks."""
YIELD_TO_ALL = 3.0
"""The same penalty if all sources are in the bank and the task is verified to be a copy of them: it then knows
nothing that they do not know, and should not halve their confidence either."""


@dataclass(frozen=True)
class Mapped:
    """The mapper's result for n images and T tasks."""

    posterior: NDArray[np.floating]
    """(n, T): probability of each task, given that the image belongs to one of them."""
    novelty: Floats
    """(n,): the larger, the less the image fits any task."""
    unanswered: NDArray[np.bool_]
    """Whether the novelty is above the threshold."""
    known: Floats
    """(n,): probability that the image belongs to one of the tasks, if half of all images do; 1 if anchors of this
    kind cannot tell."""
    tells: bool = True
    """Whether they can."""

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Whether the image is not answered and hardly belongs to any task; the others that are not are unsure."""
        return self.unanswered & (self.known < UNKNOWN_BELOW) if self.tells else self.unanswered

    @property
    def task(self) -> NDArray[np.int64]:
        """Index of the most probable task, also for unknown images."""
        best: NDArray[np.int64] = self.posterior.argmax(axis=1)
        return best


@dataclass(frozen=True)
class Judged:
    """The mapper's result without the images × tasks matrix of probabilities."""

    task: NDArray[np.int64]
    novelty: Floats
    unanswered: NDArray[np.bool_]


class Mapper:
    """The pooled anchors of modules, in the order given, with the temperature and threshold from their probes."""

    def __init__(self, modules: Sequence[Module], kind: str, prior: Prior, unanswered: float = UNANSWERED) -> None:
        # One BLAS thread: more may round differently, and agents with equal banks must have equal mappers.
        with one_thread():
            self._build(modules, kind, prior, unanswered)

    def _build(self, modules: Sequence[Module], kind: str, prior: Prior, unanswered: float) -> None:
        anchor_type = KINDS[kind]
        self._modules = modules
        self._yields = _steps_back(modules, kind)
        self._scorer = scorer = anchor_type.pool((anchor_type.read(m.tensors) for m in modules), prior)
        telling = [m for m, step in zip(modules, self._yields, strict=True) if step < YIELD_TO_ALL]
        if len(telling) < len(modules):  # copies of tasks in the bank must not change the others' confidence
            scorer = anchor_type.pool((anchor_type.read(m.tensors) for m in telling), prior)
        asked = range(0, len(telling), -(-len(telling) // ASKED_MODULES))
        voices = [_voices(telling[i]) for i in asked]
        owners, weights = np.repeat(asked, [len(v) for v in voices]), np.concatenate(voices)
        scores = Scores.joined([scorer.score(x) for x in _some_probes([telling[i] for i in asked])])
        spend("probes", len(owners) * scorer.macs)
        self.temperature = best_temperature(scores.task, owners, weights) if len(owners) else 1.0
        self.threshold = _threshold(scores.novelty, weights, scorer, unanswered)
        middle = _threshold(scores.novelty, weights, scorer, UNANSWERED)  # whatever the settings say
        self._odds = known_odds(self._scorer.known_odds, middle, len(telling))
        self._asked = self._judged(scores) if len(asked) == len(modules) else None

    @property
    def tells(self) -> bool:
        """Whether anchors of this kind tell how likely an image belongs to one of the tasks."""
        return self._odds is not None

    @property
    def steps_back(self) -> NDArray[np.bool_]:
        """Mask of the tasks with a penalty: those that are composed of others, as far as can be checked."""
        return self._yields > 0

    @cached_property
    def probed(self) -> Judged:
        """The results for the probes of all modules, in the modules' order."""
        if self._asked is not None:
            return self._asked
        parts = [self._judged(self._scorer.score(x)) for x in _some_probes(self._modules)]
        return Judged(*(np.concatenate(part) for part in zip(*(astuple(p) for p in parts), strict=True)))

    def _judged(self, scores: Scores) -> Judged:
        mapped = self._mapped(scores)
        return Judged(mapped.task, mapped.novelty, mapped.unanswered)

    def on_trial(self) -> Mapper:
        """Return this mapper with penalties of at most `YIELD`: a task's sources may be withdrawn after import."""
        if self._yields.max() <= YIELD:
            return self
        bold = copy(self)
        bold._yields = np.minimum(self._yields, np.float32(YIELD))
        bold.__dict__.pop("probed", None)
        return bold

    def map(self, x: Floats) -> Mapped:
        return self._mapped(self._scorer.score(x))

    def shortlist_agreement(self, x: Floats) -> float:
        """Return the share of images whose task is the one that scoring all tasks gives; 1 if all are scored."""
        return self._scorer.agreement(x)

    def map_in(self, graph: Graph, x: Value) -> tuple[Value, Value, Value]:
        """Add what `map` computes to a graph: return posterior (1, tasks), novelty (1, 1) and p(known) (1, 1)."""
        task, novelty = self._scorer.score_in(graph, x)
        scaled = graph("Sub", graph("Div", task, self.temperature), self._yields)
        posterior = graph("Softmax", scaled, axis=1)
        if self._odds is None:
            return posterior, novelty, graph.constant(np.ones((1, 1), dtype=np.float32))
        at_one, slope = self._odds
        steepness = graph("Mul", graph("Log", graph("Max", novelty, LEAST_NOVELTY)), -slope)
        return posterior, novelty, graph("Sigmoid", graph("Add", steepness, at_one))

    def _mapped(self, scores: Scores) -> Mapped:
        posterior = softmax(scores.task / self.temperature - self._yields)
        known: Floats = np.ones(len(scores.novelty), dtype=np.float32)
        if self._odds is not None:
            at_one, slope = np.float32(self._odds[0]), np.float32(self._odds[1])
            log_odds = at_one - slope * np.log(np.maximum(scores.novelty, np.float32(LEAST_NOVELTY)))
            known = 1 / (1 + np.exp(np.clip(-log_odds, -80, 80)))
        return Mapped(posterior, scores.novelty, scores.novelty > self.threshold, known, self.tells)


LEAST_NOVELTY = 1e-3


def known_odds(measured: KnownOdds | None, middle: float, tasks: int) -> tuple[float, float] | None:
    """Return log-odds of belonging to a known task at novelty 1, and how they fall with the novelty's logarithm.

    `middle` is the threshold by which `UNANSWERED` of all known images stay unanswered.
    """
    if measured is None:
        return None
    at_middle = measured.alone - measured.per_task * math.log(max(tasks, 1))
    return at_middle + measured.slope * math.log(max(middle, LEAST_NOVELTY)), measured.slope


def _steps_back(modules: Sequence[Module], kind: str) -> Floats:
    """Return each task's penalty in log-odds; a task whose card gives false origins has none."""
    here = parts_here(modules)
    steps = {None: YIELD, True: YIELD_TO_ALL, False: 0.0}
    return np.array(
        [steps[is_copy(m, here, kind)] if m.card.composed is not None else 0.0 for m in modules], dtype=np.float32
    )


def _voices(module: Module) -> NDArray[np.float64]:
    """Return the weight of each of a task's probes; they sum to 1 per task, however many parts it has."""
    parts = parts_of(module)
    return np.concatenate([probe_weights(part.card.validation_images) for part in parts]) / len(parts)


def _some_probes(modules: Sequence[Module]) -> Iterator[Floats]:
    """Yield the probes of all modules in batches of about `PROBES_AT_ONCE`, which bounds memory."""
    step = max(1, PROBES_AT_ONCE // len(SHARES))
    for start in range(0, len(modules), step):
        batch = modules[start : start + step]
        yield np.concatenate([read_probes(m.tensors, m.card.dim) for m in batch])


def _threshold(novelty: Floats, weights: NDArray[np.float64], scorer: Scorer, unanswered: float) -> float:
    """Return the novelty that a share of images of the bank's tasks exceeds, estimated from its probes."""
    if not len(novelty):
        return scorer.usual_threshold
    order = np.argsort(novelty, kind="stable")
    heights = np.cumsum(weights[order]) - weights[order] / 2
    middle, measured = np.interp([0.5, 1 - OPTIMISM * unanswered], heights / weights.sum(), novelty[order])
    spread = scorer.usual_spread * math.log(unanswered) / math.log(UNANSWERED)
    usual = middle + spread * abs(middle)
    measured = min(measured, middle + 4 * spread * abs(middle))  # one odd teacher must not disable it
    return float((len(novelty) * measured + PSEUDO_PROBES * usual) / (len(novelty) + PSEUDO_PROBES))


GUESSES = 5
RIVAL_TASKS = 4
"""Number of tasks, besides the best, whose classes are always candidates; others must be probable enough."""


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
        """Take functions that are called when needed: tasks and names change, and a backbone loads slowly."""
        self._teachers = teachers
        self.rebuilds_itself = True
        self._tasks, self._config, self._prior, self._backbone = tasks, config, prior, backbone
        self._mapper: tuple[list[Module], Mapper] | None = None
        self._building = threading.Lock()
        self._heads: dict[str, Head] = {}
        self._biases: dict[str, Floats] = {}
        self._sameness: dict[Support, Same | None] = {}
        self._names: tuple[list[Module], Lookalikes] | None = None
        self._signers: tuple[Teachers, Lookalikes, dict[int, tuple[str, str, tuple[str, ...]]]] | None = None
        """Teacher, signing key and odd letters of tasks, by their index among the modules in use."""

    def answer_described(
        self, x: Floats, images: Sequence[AnyImage], support: Support | None = None
    ) -> list[Answer]:
        modules, mapper = self.mapper()
        mapped = mapper.map(x)
        candidates = self._candidates(x, mapped, modules, images)
        same = self._same(support or self._config.support)
        guesses = [[each.guess for each in row] if same is None else supported(row, same) for row in candidates]
        return [
            Answer(
                image.name,
                bool(mapped.unknown[row]),
                tuple(guess.times(float(mapped.known[row])) for guess in guesses[row][:GUESSES]),
                _relative(float(mapped.novelty[row]), mapper.threshold),
                unsure=bool(mapped.unanswered[row] and not mapped.unknown[row]),
                known=float(mapped.known[row]),
            )
            for row, image in enumerate(images)
        ]

    def mapper(self) -> tuple[list[Module], Mapper]:
        current = self._mapper
        if current is not None and (not self.rebuilds_itself or current[0] == self._tasks()):
            return current
        with one_thread(), self._building:  # in this order: an import that rebuilds has the first already
            modules = self._tasks()
            refuse_empty(modules)
            current = self._mapper
            if current is None or current[0] != modules:
                return self.use(modules, self._mapper_of(modules))
            return current

    def rebuild(self, made: Callable[[list[Module]], Mapper] | None = None) -> None:
        """Rebuild the mapper from the current tasks; `made`, if given, returns a mapper that exists already.

        One thread rebuilds at a time, so that a mapper of older tasks never replaces a newer one.
        """
        with one_thread(), self._building:
            modules = self._tasks()
            if not modules:
                self.use_nothing()
            elif self.in_use() != modules:
                self.use(modules, made(modules) if made else self._mapper_of(modules))

    def _mapper_of(self, modules: list[Module]) -> Mapper:
        return Mapper(modules, self._config.anchor, self._prior(), self._config.unanswered)

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
        if not _fits(card, backbone):  # signed, but made for another network: only its own task gets wrong answers
            return np.zeros((len(images), card.head_dim), dtype=np.float32)
        if card.pattern is not None:
            return backbone.changed([Patterned(i, module.tensors["pattern"]) for i in images], *as_is)
        assert card.biases is not None
        known = self._biases  # a node may replace the attribute meanwhile
        if module.id not in known:
            known[module.id] = Biases.read(module.tensors, card.biases[0]).added
        added = known[module.id]
        if card.toes is not None:
            return backbone.toes(images, added)
        return backbone.biased(images, added, *as_is)

    def onnx_file(self, agent: str) -> bytes:
        """Return the content of an ONNX file that answers like this agent; see `answering/onnx_file.py`."""
        from skillmesh.answering.onnx_file import Export

        modules, mapper = self.mapper()
        config = self._config
        return Export(agent, modules, mapper, config, self._backbone(), self._same(config.support)).content()

    def _same(self, support: Support) -> Same | None:
        if support not in self._sameness:
            self._sameness[support] = sameness(support)
        return self._sameness[support]

    def _lookalikes(self, modules: list[Module]) -> Lookalikes:
        """Return what finds names of tasks that look alike; made once for the modules in use."""
        known = self._names
        if known is None or known[0] is not modules:
            known = self._names = modules, Lookalikes(module.card.task for module in modules)
        return known[1]

    def _candidates(
        self, x: Floats, mapped: Mapped, modules: list[Module], images: Sequence[AnyImage]
    ) -> list[list[Candidate]]:
        """Return each image's likeliest classes of its likeliest tasks, sorted by p(task)·p(class given task).

        The first is the best class of the best task. Each head runs once, on all images that need it. A task that
        adapts the backbone needs a second forward pass, which it gets only for images whose most probable task it
        is; for other images it gives no guess.
        """
        likely = _likely_tasks(mapped.posterior)
        found: list[list[tuple[bool, float, int, int]]] = [[] for _ in range(len(x))]
        """For each image, guesses as (not the best class of the best task, -confidence, task, class)."""
        asked: dict[int, list[int]] = {}
        for row, tasks in enumerate(likely):
            for index in tasks:
                if index >= 0 and (index == tasks[0] or not modules[index].card.adapted):
                    asked.setdefault(index, []).append(row)
        for index, rows in sorted(asked.items()):
            module = modules[index]
            seen = self.seen_by(module, x[rows], [images[row] for row in rows])
            share = class_shares(self.head(module).logits(seen), module.card.temperature)
            top = np.argsort(-share, axis=1, kind="stable")[:, :GUESSES]
            confidence = mapped.posterior[rows, index, None] * share[np.arange(len(rows))[:, None], top]
            for row, classes, values in zip(rows, top.tolist(), confidence.tolist(), strict=True):
                for rank, (c, value) in enumerate(zip(classes, values, strict=True)):
                    found[row].append((rank > 0 or index != likely[row][0], -value, index, c))
        guess_of = self._guesses_of(modules)
        return [[guess_of(index, c, -value) for _, value, index, c in _foremost(guesses)] for guesses in found]

    def _guesses_of(self, modules: list[Module]) -> Callable[[int, int, float], Candidate]:
        """Return a function that makes a guess of a task's index, a class's index and a confidence."""
        teachers, names = self._teachers(), self._lookalikes(modules)
        kept = self._signers
        if kept is None or kept[0] is not teachers or kept[1] is not names:
            kept = self._signers = teachers, names, {}  # looking up names takes longer than all else of a guess
        known = kept[2]

        def guess_of(index: int, c: int, confidence: float) -> Candidate:
            module = modules[index]
            card = module.card
            if index not in known:
                signer = "" if isinstance(module, MergedTask) else card.teacher_key  # a merged task has several
                known[index] = teachers.of(module), signer, tuple(names.letters(card.task))
            teacher, signer, odd = known[index]
            guess = Guess(card.classes[c], card.task, teacher, confidence, signer, (), odd)
            return Candidate(index, card.teacher_key, guess)

        return guess_of


def _foremost(guesses: list[tuple[bool, float, int, int]]) -> list[tuple[bool, float, int, int]]:
    """Return the guesses, best first, that an answer can show or count as support.

    Guesses that support one another become one, and only those of at least `LEAST` do. So an answer never comes to
    the guesses after these, which are most of them: their names need not be looked up.
    """
    ordered = sorted(guesses, key=lambda guess: guess[:2])
    return ordered[: GUESSES + sum(-value >= LEAST for _, value, _, _ in guesses)]


def _likely_tasks(posterior: Floats) -> list[list[int]]:
    """Return the indices of the tasks that give guesses for each image, best first; -1 stands for none.

    A class taught in many tasks has its probability divided between them, so every task counts whose share is
    large enough to support another.
    """
    order = np.argsort(-posterior, axis=1, kind="stable")
    probable = int((posterior >= LEAST).sum(axis=1).max(initial=0))
    likely = order[:, : max(RIVAL_TASKS + 1, probable)]
    shares = posterior[np.arange(len(posterior))[:, None], likely]
    extra = np.arange(likely.shape[1]) > RIVAL_TASKS
    chosen: list[list[int]] = np.where(extra & (shares < LEAST), -1, likely).tolist()
    return chosen


def longest(modules: Sequence[Module], teachers: Teachers) -> dict[str, int]:
    """Return the lengths of the longest label, task and teacher names; the last is 0 if there is one teacher."""
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
            f"this agent knows no task yet; teach it one with {learn}, or import one with {take}"
        )


def _relative(novelty: float, threshold: float) -> float:
    """Scale novelty so that the threshold is 1, also if it is negative: gmmc's novelty is a log-likelihood."""
    if math.isinf(threshold):
        return 0.0
    return 1 + (novelty - threshold) / max(abs(threshold), 1e-9)


def _fits(card: Card, backbone: Backbone) -> bool:
    """Return True if the network has the parts that a module adapts."""
    network = backbone.network
    channels = card.biases is None or card.biases[0] == network.bias_count
    pattern = card.pattern is None or card.pattern == network.size
    toes = card.toes is None or (card.biases is not None and card.toes == network.toe_sizes)
    return channels and pattern and toes
