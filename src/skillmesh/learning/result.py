"""The result of learning a task, as the Python API returns it."""

from __future__ import annotations

from dataclasses import dataclass

from skillmesh.learning.lesson import Confusion, Lesson
from skillmesh.module import Module


@dataclass(frozen=True, repr=False)
class LearnResult:
    """A learned task: its module, and how well it was learned.

    Examples
    --------
    >>> result = agent.learn("photos/dice", replace=True)
    >>> result.classes
    ('five', 'four', 'one', 'six', 'three', 'two')
    >>> result.module.card.task
    'dice'
    """

    module: Module
    """The signed module, which is in the agent's bank."""
    lesson: Lesson
    """All results of learning, for programs that need more than the properties below."""

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f"validation accuracy {self.accuracy:.1%}, ".replace("%", " %")
        return (
            f"LearnResult: {self.task!r}, {len(self.classes)} classes, {self.images:,} images, {accuracy}"
            f"{self.module.size / 1000:.0f} KB"
        )

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.module.card.task

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.module.card.classes

    @property
    def images(self) -> int:
        """Number of training and validation images that could be read."""
        return sum(self.module.card.counts) + self.module.card.validation_images

    @property
    def accuracy(self) -> float | None:
        """Share of validation images answered correctly with the task given; `None` if there are none."""
        return self.module.card.validation_accuracy

    @property
    def confusions(self) -> list[Confusion]:
        """Pairs of classes that were confused on the validation images, most images first."""
        return [] if self.lesson.outcome is None else self.lesson.outcome.confusions()

    @property
    def findings(self) -> tuple[str, ...]:
        """Findings about the images: unreadable files, images that occur twice, unbalanced classes."""
        return (*self.lesson.notes, *(finding.text for finding in self.lesson.all_findings))

    @property
    def advice(self) -> str | None:
        """One sentence on what would improve the result; `None` if there is nothing to advise."""
        return self.lesson.advice
