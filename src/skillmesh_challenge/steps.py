"""Tests without task labels after 1, 2, …, T tasks, the final answers, and a bound from all data together.

A module's head gives the same answer whatever else the bank holds, so its answers are computed once per image.
Only the mapper changes from step to step: it is rebuilt and run after every task.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh.answering.answering import Mapped, Mapper
from skillmesh.evaluation.evaluate import Marks, is_right
from skillmesh.evaluation.shown import Shown
from skillmesh.learning.head import Head, fit_large
from skillmesh.module import in_order
from skillmesh.numerics.arrays import Floats, counted
from skillmesh.numerics.process import begin
from skillmesh_challenge.entries import (
    Bounds,
    ClassAnswers,
    Confused,
    Confusions,
    EntryAnswers,
    EntryTaskAnswers,
    Mistake,
    Step,
    TaskAtStep,
)
from skillmesh_challenge.executors import worker_backbone
from skillmesh_challenge.record import read_record

if TYPE_CHECKING:
    from skillmesh.core import Core
    from skillmesh.data.folder import TaskImages
    from skillmesh.module import Module
    from skillmesh_challenge.methods import SkillMethod
    from skillmesh_challenge.stage import Stage

Indices = NDArray[np.int64]
SAMPLES = 3
"""Number of images whose names are kept for each pair of confused tasks."""
CLASS_SAMPLES = 2
"""Number of images whose names are kept for each class's right answers, and for each wrong answer."""


@dataclass(frozen=True)
class FinalAnswers:
    """The task and class answered for each test image of one task, without a label and with a forced answer."""

    tasks: Indices
    """Answered tasks, as positions in the order of the run."""
    classes: Indices
    """Answered classes, as indices into the classes of the answered task's module."""


def final_answers(
    agent: Core,
    modules: Sequence[Module],
    live: Sequence[Module],
    shown: Sequence[Shown],
    own: Sequence[Indices],
    mapped: Sequence[Mapped],
) -> list[FinalAnswers]:
    """Return the answers for each image by the head of the task that it was taken for.

    Parameters
    ----------
    modules, shown
        In the order of the run.
    live
        The same modules in the order of the mapper.
    own
        The class that each task's own head answers for its images.
    mapped
        The mapper's result for each task's images.
    """
    position = {module.id: index for index, module in enumerate(modules)}
    order = np.array([position[module.id] for module in live])
    answers = []
    for index, (images, by_own_head, on_task) in enumerate(zip(shown, own, mapped, strict=True)):
        tasks, classes = order[on_task.task], by_own_head.copy()
        for other in np.unique(tasks[tasks != index]):
            rows = np.flatnonzero(tasks == other)
            chosen = [images.images[int(row)] for row in rows]
            seen = agent.seen_by(modules[other], images.x[rows], chosen)
            classes[rows] = agent.head(modules[other]).logits(seen).argmax(axis=1)
        answers.append(FinalAnswers(tasks, classes))
    return answers


def confusions_of(
    stage: Stage, modules: Sequence[Module], shown: Sequence[Shown], answers: Sequence[FinalAnswers]
) -> Confusions:
    """Return counts of the images of each task that were taken for each task, and the names of some."""
    counts = tuple(
        tuple(int(count) for count in np.bincount(named.tasks, minlength=len(modules))) for named in answers
    )
    samples = [
        Confused(
            folder.name,
            folder.classes[images.labels[row]],
            images.images[int(row)].name,
            modules[other].card.task,
            modules[other].card.classes[named.classes[row]],
        )
        for index, (folder, images, named) in enumerate(zip(stage.tasks, shown, answers, strict=True))
        for other in np.unique(named.tasks[named.tasks != index])
        for row in np.flatnonzero(named.tasks == other)[:SAMPLES]
    ]
    return Confusions(tuple(stage.settings.names), counts, tuple(samples))


def answers_of(
    stage: Stage, modules: Sequence[Module], shown: Sequence[Shown], answers: Sequence[FinalAnswers]
) -> EntryAnswers:
    """Return the answers, grouped by the images' right classes."""
    tasks = []
    for folder, images, named in zip(stage.tasks, shown, answers, strict=True):
        cards = [modules[task].card for task in named.tasks]
        words = [(card.task, card.classes[at]) for card, at in zip(cards, named.classes, strict=True)]
        names = [image.name for image in images.images]
        classes = [
            _class_answers(folder.name, label, [words[row] for row in rows], [names[row] for row in rows])
            for at, label in enumerate(folder.classes)
            for rows in [np.flatnonzero(images.labels == at)]
        ]
        tasks.append(EntryTaskAnswers(folder.name, tuple(classes)))
    return EntryAnswers(tuple(tasks))


def _class_answers(
    task: str, label: str, answers: Sequence[tuple[str, str]], names: Sequence[str]
) -> ClassAnswers:
    """Return the counts of the answers to one class's images."""
    samples: dict[tuple[str, str], list[str]] = {}
    for answer, name in zip(answers, names, strict=True):
        samples.setdefault(answer, []).append(name)
    counts = Counter(answers)
    right = counts.pop((task, label), 0)
    mistakes = [
        Mistake(*answer, images, tuple(samples[answer][:CLASS_SAMPLES]))
        for answer, images in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    shown = tuple(samples.get((task, label), [])[:CLASS_SAMPLES])
    return ClassAnswers(label, len(answers), right, shown, tuple(mistakes))


def measure_steps(stage: Stage, agent: Core, modules: Sequence[Module], shown: Sequence[Shown]) -> None:
    """Write every step that the record lacks, and the answers and confusions of the last step."""
    done = {step.known for step in stage.read().steps}
    own = [
        agent.head(module).logits(agent.seen_by(module, images.x, images.images)).argmax(axis=1)
        for module, images in zip(modules, shown, strict=True)
    ]
    right = [is_right(*each) for each in zip(own, modules, stage.tasks, shown, strict=True)]
    missing = [known for known in range(1, len(modules) + 1) if known not in done or known == len(modules)]
    advance = begin(stage.progress, "testing (steps)", len(missing))
    with stage.timed("testing_seconds"):
        for known in missing:
            step, live, mapped = _step(agent, modules[:known], shown, right)
            if known == len(modules):
                answers = final_answers(agent, modules, live, shown, own, mapped)
                stage.keep_confusions(confusions_of(stage, modules, shown, answers))
                stage.keep_answers(answers_of(stage, modules, shown, answers))
            stage.keep_step(step)
            if advance is not None:
                advance(1)
    stage.log(f"tested after 1 to {len(modules)} tasks")


def _marks(task: str, marks: Marks, images: int) -> TaskAtStep:
    return TaskAtStep(task, images, marks.given, marks.found, marks.final, marks.strict, marks.unanswered)


def _step(
    agent: Core, modules: Sequence[Module], shown: Sequence[Shown], right: Sequence[NDArray[np.bool_]]
) -> tuple[Step, list[Module], list[Mapped]]:
    """Build the mapper of these modules as an agent would, map their test images, and return the results."""
    live = in_order(modules)
    start = time.perf_counter()
    with counted() as costs:
        mapper = Mapper(live, agent.config.anchor, agent.prior, agent.config.unanswered)
    built = time.perf_counter()
    mapped = [mapper.map(images.x) for images in shown[: len(modules)]]
    tasks = [
        _marks(module.card.task, Marks.of(right_class, on_task, live.index(module)), len(images))
        for module, images, right_class, on_task in zip(modules, shown, right, mapped, strict=False)
    ]
    seconds = (round(built - start, 4), round(time.perf_counter() - built, 4))
    return Step(len(modules), tuple(tasks), dict(costs.spent), *seconds), live, mapped


# One classifier over all classes of all tasks, trained on all data together: usually an upper bound.
#
# No agent of the challenge has this: all images in one place. It need not be better than single heads; the report
# calls it a bound only if it is. It is a softmax trained by L-BFGS in single precision on the same representation,
# regularised like every head, but with fewer rounds. The strength is chosen on the validation images, which then
# join the training images.

Labels = NDArray[np.int64]
SEEN = ("backbone", "representation", "compact")
"""Settings of a method that determine the input of the classifier."""


@dataclass(frozen=True)
class Pooled:
    """One split of all tasks together."""

    x: Floats
    labels: Labels
    """Labels over the classes of all tasks."""
    sizes: list[int]
    """Number of images of each task."""


def joint_bound(method: SkillMethod, stage: Stage) -> Bounds:
    """Return the joint classifier's results, or those of an earlier run of the same representation and data."""
    how = _words(method)
    for folder in stage.reuse:
        earlier = read_record(folder)
        seen = [settings.method.get(name) for settings in (earlier.settings, stage.settings) for name in SEEN]
        alike = seen[: len(SEEN)] == seen[len(SEEN) :] and earlier.settings.same_images(stage.settings)
        if earlier.bounds and alike:
            return earlier.bounds
    start = time.perf_counter()
    starts = np.cumsum([0, *(len(folder.classes) for folder in stage.tasks)])
    with counted() as costs:
        train, val, test = (_pooled(method, stage, split, starts) for split in ("train", "val", "test"))
        head, strength = fit_large(train.x, train.labels, val.x, val.labels, int(starts[-1]))
    tasks = _marked(head, test, starts, stage.tasks)
    how = f"{how}, strength {strength:g}"
    return Bounds(how, tasks, dict(costs.spent), round(time.perf_counter() - start, 3))


def _words(method: SkillMethod) -> str:
    compact = ", compact" if method.compact else ""
    return f"softmax over all classes by L-BFGS on {method.backbone} {method.representation}{compact}"


def _pooled(method: SkillMethod, stage: Stage, split: str, starts: NDArray[np.int64]) -> Pooled:
    from skillmesh_challenge.agents import backbone_ref

    backbone = worker_backbone(backbone_ref(method, stage))
    advance = begin(stage.progress, f"all data together ({split})", len(stage.tasks))
    rows, labels = [], []
    for folder, first in zip(stage.tasks, starts, strict=False):
        described = backbone.describe(folder.splits[split].files)
        rows.append(backbone.represent(described.raw, method.representation, method.compact))
        labels.append(folder.splits[split].labels[described.readable] + first)
        if advance is not None:
            advance(1)
    return Pooled(np.concatenate(rows), np.concatenate(labels), [len(part) for part in rows])


def _marked(
    head: Head, test: Pooled, starts: NDArray[np.int64], folders: Sequence[TaskImages]
) -> tuple[TaskAtStep, ...]:
    """Return each task's accuracies: class among its own classes, task of the best class, class among all."""
    marked, begun = [], 0
    for index, (folder, size) in enumerate(zip(folders, test.sizes, strict=True)):
        logits = head.logits(test.x[begun : begun + size])
        labels = test.labels[begun : begun + size]
        best = logits.argmax(axis=1)
        own = logits[:, starts[index] : starts[index + 1]].argmax(axis=1) + starts[index]
        right_task = (best >= starts[index]) & (best < starts[index + 1])
        shares = ((own == labels).mean(), right_task.mean(), (best == labels).mean())
        marked.append(TaskAtStep(folder.name, size, *map(float, shares)))
        begun += size
    return tuple(marked)
