"""The final answers to all test images at the last step, and what they say of tasks and classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh.answering.mapper import Mapped
from skillmesh.evaluation.shown import Shown
from skillmesh_challenge.entries import ClassAnswers, Confused, Confusions, EntryAnswers, EntryTaskAnswers, Mistake

if TYPE_CHECKING:
    from skillmesh.core import Core
    from skillmesh.module import Module
    from skillmesh_challenge.stage import Stage

Indices = NDArray[np.int64]
SAMPLES = 3
"""Images kept by name of each pair of confused tasks."""
CLASS_SAMPLES = 2
"""Images kept by name of each class's right answers, and of each kind of its wrong ones."""


@dataclass(frozen=True)
class FinalAnswers:
    """The task and class named for each test image of one task, nothing given and an answer forced."""

    tasks: Indices
    """Positions in the order of the run."""
    classes: Indices
    """Indices into the classes of the named task's module."""


def final_answers(
    agent: Core,
    modules: Sequence[Module],
    live: Sequence[Module],
    shown: Sequence[Shown],
    own: Sequence[Indices],
    mapped: Sequence[Mapped],
) -> list[FinalAnswers]:
    """Ask the head of whichever task each image was taken for.

    Parameters
    ----------
    modules, shown
        In the order of the run.
    live
        The same modules in the order of the mapper.
    own
        The class that each task's own head names for its images.
    mapped
        The mapper's view of each task's images.
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
    """Count which task's images were taken for which task's, and keep some of them by name."""
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
    """Group the answers by the images' right classes."""
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
    """Count the answers to one class's images."""
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
