"""What a run's record is made of, each kind of file a dataclass; `record.py` says which file holds which."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ConfigDict

FORMAT = 1


class Entry:
    """A part of a record; pydantic reads it (`record.made`), and refuses fields that it does not know."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class TaskFacts(Entry):
    """A task as it was found."""

    name: str
    path: str
    """Where it lay when the run was made: the report shows images from there, if it is still there."""
    classes: tuple[str, ...]
    train: int
    val: int
    test: int


@dataclass(frozen=True)
class RunSettings(Entry):
    """What a run was asked for. A folder holds runs of one such setting only."""

    method: dict[str, Any]
    """All its settings; `name` among them."""
    agents: int
    assign: str
    """How tasks were given to agents: order, round-robin, balanced, or the name of a file."""
    assignment: dict[str, tuple[str, ...]]
    """Each agent's tasks, in the order in which it learns them; an agent may have none."""
    sharing: str
    """memory or mesh."""
    alpha: float
    """MACs that sending a byte counts for."""
    seed: int
    tasks: tuple[TaskFacts, ...]
    """In the order in which they are learned and added."""
    data_hash: str
    backbone: str = ""
    """The backbone's fingerprint, where the method has one."""
    format: int = FORMAT

    @property
    def names(self) -> list[str]:
        return [task.name for task in self.tasks]

    def same_images(self, other: RunSettings) -> bool:
        """Whether tasks are learned from the same images in the same order, through the same backbone."""
        mine, theirs = (
            (s.seed, s.data_hash, s.backbone, [replace(task, path="") for task in s.tasks]) for s in (self, other)
        )
        return mine == theirs


@dataclass(frozen=True)
class Circumstances(Entry):
    """What surrounds a run and must not change its results."""

    executor: str
    workers: int
    threads: int
    versions: dict[str, str]
    provenance: dict[str, Any]


FLEW_APART = "weights are no longer numbers: what is answered from here on is chance; lower rate or strength"
"""A note on a task, of methods that train."""


@dataclass(frozen=True)
class Learned(Entry):
    """What learning one task took and gave."""

    task: str
    position: int
    """In the order of the run's tasks, from 0."""
    agent: str
    macs: dict[str, float]
    """Of the teacher, by what they were spent on."""
    seconds: float
    images: int
    """Training and validation images looked at."""
    cached_images: int | None = None
    """How many of their descriptors lay in the cache: they cost MACs, but no seconds here."""
    module_bytes: int = 0
    """What a student receives; of a method without modules, whatever it sends for this task."""
    parts: dict[str, int] = field(default_factory=dict)
    """Those bytes by what they hold: head, anchor, probes, biases, card."""
    validation_accuracy: float | None = None
    cpu_seconds: float | None = None
    """Of the worker's process: unlike `seconds`, what others do on the machine does not add to it."""
    module_id: str | None = None
    content_id: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def total_macs(self) -> float:
        return math.fsum(self.macs.values())


@dataclass(frozen=True)
class TaskAtStep(Entry):
    """One task's test images after so many tasks, as shares; none where a method has no such thing."""

    task: str
    images: int
    given: float | None
    """Right class, the task given."""
    found: float | None
    """Right task."""
    final: float
    """Right task and right class, an answer forced; nothing given, unless the method is told the task."""
    strict: float | None = None
    """The same, "unknown" counting as wrong."""
    unknown: float | None = None
    """Answered "unknown"."""


@dataclass(frozen=True)
class Step(Entry):
    """After `known` tasks."""

    known: int
    tasks: tuple[TaskAtStep, ...]
    """In the order of the run: the known ones; behind them others, where a method can be asked about these too."""
    student_macs: dict[str, float]
    """What an agent spent to take in the newest task, by what on: rebuilding its mapper."""
    student_seconds: float
    test_seconds: float


@dataclass(frozen=True)
class Sharing(Entry):
    """How all agents came to know all tasks, and whether they do."""

    how: str
    """memory or mesh."""
    received: dict[str, int]
    """Bytes of other agents' modules that each agent took in: as sent over the mesh, or the modules' sizes."""
    answers: dict[str, str]
    """A hash of each agent's answers to a sample of test images, with all their figures."""
    asked: int
    """How many images that sample has."""
    seconds: float
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes that each agent served to others, where there was a mesh."""
    trial_macs: dict[str, float] = field(default_factory=dict)
    """What each agent spent on trying what arrived before it let it in, where there was a mesh."""
    held: tuple[str, ...] = ()
    """Tasks that some agent held back until the run let them go."""

    @property
    def same_answers(self) -> bool:
        """Whether all agents answer the same, bit by bit."""
        return len(set(self.answers.values())) == 1


@dataclass(frozen=True)
class Confused(Entry):
    """An image that was taken for another task's."""

    task: str
    label: str
    image: str
    """Its name inside the task."""
    taken_for: str
    answer: str
    """The class that it was said to be, there."""


@dataclass(frozen=True)
class Confusions(Entry):
    """Which tasks are taken for which, at the last step."""

    tasks: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """Row: the image's task; column: the one it was taken for."""
    samples: tuple[Confused, ...]


@dataclass(frozen=True)
class Mistake(Entry):
    """A class of some task that images of another class were taken for."""

    taken_for: str
    """The task of the answer: the images' own, or another."""
    answer: str
    """The class of the answer, in that task."""
    images: int
    samples: tuple[str, ...]
    """Names of some of these images, inside the task."""


@dataclass(frozen=True)
class ClassAnswers(Entry):
    """What the test images of one class were taken for."""

    label: str
    images: int
    right: int
    """Number of images whose task and class were both named right."""
    samples: tuple[str, ...]
    """Names of some images that were answered right."""
    mistakes: tuple[Mistake, ...]
    """The most frequent first."""


@dataclass(frozen=True)
class EntryTaskAnswers(Entry):
    """The answers to one task's test images, by their right class."""

    task: str
    classes: tuple[ClassAnswers, ...]


@dataclass(frozen=True)
class EntryAnswers(Entry):
    """The final answers at the last step, task by task, in the order of the run."""

    tasks: tuple[EntryTaskAnswers, ...]


@dataclass(frozen=True)
class Bounds(Entry):
    """One classifier over all classes, trained on all tasks' data together: what sharing cannot beat by much."""

    how: str
    tasks: tuple[TaskAtStep, ...]
    macs: dict[str, float]
    seconds: float
