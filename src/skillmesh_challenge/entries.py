"""Parts of a run's record: one dataclass per kind of file. `record.py` lists which file holds which."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ConfigDict

FORMAT = 1


class Entry:
    """A part of a record; pydantic reads it (`record.parse_entry`) and rejects unknown fields."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class TaskFacts(Entry):
    """A task as it was when the run began."""

    name: str
    path: str
    """Folder or zip of the task when the run was made; the report reads images from it, if it still exists."""
    classes: tuple[str, ...]
    train: int
    val: int
    test: int


@dataclass(frozen=True)
class RunSettings(Entry):
    """Settings of a run. A run's folder belongs to one set of settings only."""

    method: dict[str, Any]
    """All settings of the method, with its `name`."""
    agents: int
    assign: str
    """How tasks were assigned to agents: order, round-robin, balanced, or the name of a file."""
    assignment: dict[str, tuple[str, ...]]
    """Each agent's tasks, in the order in which it learns them; an agent may have none."""
    sharing: str
    """How modules were shared: memory or mesh."""
    alpha: float
    """Cost of sending a byte, in MACs."""
    seed: int
    tasks: tuple[TaskFacts, ...]
    """Tasks in the order in which they are learned and added."""
    data_hash: str
    backbone: str = ""
    """Fingerprint of the calibrated backbone; empty for a method without one."""
    format: int = FORMAT

    @property
    def names(self) -> list[str]:
        return [task.name for task in self.tasks]

    def same_images(self, other: RunSettings) -> bool:
        """Whether two runs learn from the same images in the same order, with the same backbone."""
        mine, theirs = (
            (s.seed, s.data_hash, s.backbone, [replace(task, path="") for task in s.tasks]) for s in (self, other)
        )
        return mine == theirs


@dataclass(frozen=True)
class Circumstances(Entry):
    """Environment of a run, which must not change its results."""

    executor: str
    workers: int
    threads: int
    versions: dict[str, str]
    provenance: dict[str, Any]


DIVERGED = "weights are no longer numbers: what is answered from here on is chance; lower rate or strength"
"""Note on a task whose training diverged. Records hold this text, and the report searches for it."""


@dataclass(frozen=True)
class Learned(Entry):
    """Costs and results of learning one task."""

    task: str
    position: int
    """Index of the task in the order of the run, from 0."""
    agent: str
    macs: dict[str, float]
    """MACs that the teacher spent, by what they were spent on."""
    seconds: float
    images: int
    """Number of training and validation images used."""
    cached_images: int | None = None
    """Number of those images whose descriptors came from the cache: they count in `macs`, but took no time."""
    module_bytes: int = 0
    """Bytes that a student receives; for a method without modules, the bytes that it sends for this task."""
    parts: dict[str, int] = field(default_factory=dict)
    """`module_bytes` by what they hold: head, anchor, probes, biases, card."""
    validation_accuracy: float | None = None
    cpu_seconds: float | None = None
    """CPU time of the worker's process; unlike `seconds`, other work on the machine does not add to it."""
    module_id: str | None = None
    content_id: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def total_macs(self) -> float:
        return math.fsum(self.macs.values())


@dataclass(frozen=True)
class TaskAtStep(Entry):
    """Accuracies of one task at one step, as shares of its test images; None if the method does not have one."""

    task: str
    images: int
    given: float | None
    """Share with the right class when the task is given."""
    found: float | None
    """Share with the right task."""
    final: float
    """Share with the right task and class, an answer forced, without a task label (baselines may get it)."""
    strict: float | None = None
    """The same as `final`, an image that is not answered counting as wrong."""
    unknown: float | None = None
    """Share not answered: unknown or, which earlier releases did not tell apart, not sure."""


@dataclass(frozen=True)
class Step(Entry):
    """Test results after `known` tasks have been learned."""

    known: int
    tasks: tuple[TaskAtStep, ...]
    """The known tasks in the order of the run, then later ones if the method can be tested on them too."""
    student_macs: dict[str, float]
    """MACs that an agent spent to add the newest task, by what they were spent on: rebuilding its mapper."""
    student_seconds: float
    test_seconds: float


@dataclass(frozen=True)
class Sharing(Entry):
    """How all agents got all modules, and whether they then give the same answers."""

    how: str
    """How modules were shared: memory or mesh."""
    received: dict[str, int]
    """Bytes of other agents' modules that each agent got: as sent over the mesh, or the modules' sizes."""
    answers: dict[str, str]
    """Hash of each agent's answers, with all their numbers, to a sample of test images."""
    asked: int
    """Number of images in that sample."""
    seconds: float
    sent: dict[str, int] = field(default_factory=dict)
    """Bytes that each agent sent to others; only with a mesh."""
    trial_macs: dict[str, float] = field(default_factory=dict)
    """MACs that each agent spent on vetting received modules; only with a mesh."""
    held: tuple[str, ...] = ()
    """Tasks that an agent held in quarantine until the run released them."""

    @property
    def same_answers(self) -> bool:
        """Whether all agents give the same answers, bit for bit."""
        return len(set(self.answers.values())) == 1


@dataclass(frozen=True)
class Confused(Entry):
    """An image that was taken for an image of another task."""

    task: str
    label: str
    image: str
    """Name of the image inside its task."""
    taken_for: str
    answer: str
    """The class that was answered, in the task `taken_for`."""


@dataclass(frozen=True)
class Confusions(Entry):
    """Counts of which tasks are taken for which, at the last step."""

    tasks: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """Number of images; row: the image's task, column: the task it was taken for."""
    samples: tuple[Confused, ...]


@dataclass(frozen=True)
class Mistake(Entry):
    """A wrong answer that was given to images of one class."""

    taken_for: str
    """Task of the answer: the images' own task or another."""
    answer: str
    """Class of the answer, in that task."""
    images: int
    samples: tuple[str, ...]
    """Names of some of these images inside their task."""


@dataclass(frozen=True)
class ClassAnswers(Entry):
    """Answers to the test images of one class."""

    label: str
    images: int
    right: int
    """Number of images that got the right task and class."""
    samples: tuple[str, ...]
    """Names of some images that were answered right."""
    mistakes: tuple[Mistake, ...]
    """Wrong answers, the most frequent first."""


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
    """Results of one classifier over all classes, trained on all data together: sharing cannot beat it by much."""

    how: str
    tasks: tuple[TaskAtStep, ...]
    macs: dict[str, float]
    seconds: float
