"""How an agent answers: the mapper names the likeliest tasks, and their heads the classes.

What an answer needs (the mapper, heads, biases) is made when it is first needed, and kept. What is kept is
replaced, never changed under an answer: a node puts a new mapper in place while others answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized

import numpy as np
from numpy.typing import NDArray

from skillmesh.answering.answer import Answer, Guess
from skillmesh.answering.mapper import Mapped, Mapper
from skillmesh.answering.support import LEAST, Heard, Same, sameness, supported
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.calibration import Prior
from skillmesh.common.choices import Support
from skillmesh.common.config import AgentConfig
from skillmesh.common.lookalikes import Lookalikes
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import UnknownTaskError
from skillmesh.learning.adaptation import Biases
from skillmesh.learning.head import Head, softmax
from skillmesh.learning.pattern import Patterned
from skillmesh.module import Card, Module
from skillmesh.module.joint import MergedTask
from skillmesh.module.teachers import Teachers
from skillmesh.numerics.tensors import Floats

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
        modules = self._tasks()
        refuse_empty(modules)
        if current is None or current[0] != modules:
            return self.use(modules, Mapper(modules, self._config.mapper, self._prior()))
        return current

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
        raise UnknownTaskError(
            "this agent knows no task yet; teach it one with `skillmesh learn FOLDER`, or take one in with "
            "`skillmesh import FILE`"
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
