"""What a head says of images whose class is known: which it gets wrong, and which classes it confuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.inputs import AnyImage
from skillmesh.numerics.tensors import Floats

Labels = NDArray[np.int64]

OTHER = -1
"""Answer that is none of the task's classes: a class of another task."""


@dataclass(frozen=True)
class Confusion:
    """Images of one class that were given another."""

    label: str
    given: str
    images: int
    of: int
    """Number of images of the class."""

    def __str__(self) -> str:
        return f"{self.label} with {self.given} ({self.images} of {self.of})"


@dataclass(frozen=True)
class Outcome:
    """The answers to images of a task's classes."""

    classes: tuple[str, ...]
    images: Sequence[AnyImage]
    labels: Labels
    """The right class of each."""
    guesses: Labels
    """The class that each was given, or `OTHER`."""
    confidence: Floats
    answers: tuple[str, ...] | None = None
    """What was said of each, where an answer may be a class of another task."""

    @classmethod
    def nothing(cls, classes: tuple[str, ...]) -> Outcome:
        """Make the outcome of no image."""
        none = np.empty(0, dtype=np.int64)
        return cls(classes, (), none, none, np.empty(0, dtype=np.float32))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def accuracy(self) -> float | None:
        return float(np.mean(self.guesses == self.labels)) if len(self) else None

    def answer(self, index: int) -> str:
        """Name what was said of an image."""
        return self.answers[index] if self.answers is not None else self.classes[self.guesses[index]]

    def matrix(self) -> NDArray[np.int64]:
        """Count images by their class (row) and the class they were given (column; the last one is `OTHER`)."""
        counts = np.zeros((len(self.classes), len(self.classes) + 1), dtype=np.int64)
        np.add.at(counts, (self.labels, self.guesses), 1)
        return counts

    def recall(self) -> list[float | None]:
        """Return the share of each class's images that were given it; `None` where it has no image."""
        counts = self.matrix()
        images = counts.sum(axis=1)
        return [float(counts[c, c] / images[c]) if images[c] else None for c in range(len(self.classes))]

    def confusions(self) -> list[Confusion]:
        """Return all pairs of classes that were confused, most images first."""
        counts = self.matrix()
        images = counts.sum(axis=1)
        pairs = [
            Confusion(self.classes[a], self.classes[b], int(counts[a, b]), int(images[a]))
            for a, b in np.argwhere(counts[:, :-1])
            if a != b
        ]
        return sorted(pairs, key=lambda pair: (-pair.images, -pair.images / pair.of, pair.label, pair.given))

    def wrong(self) -> list[int]:
        """Return the positions of wrong answers, class by class, the surest ones first."""
        wrong = np.flatnonzero(self.guesses != self.labels)
        return [int(i) for i in sorted(wrong, key=lambda i: (self.labels[i], -self.confidence[i]))]

    def class_facts(self) -> list[dict[str, Any]]:
        """Return images and recall of each class, and what its images were given instead, as JSON has it."""
        counts, recall = self.matrix(), self.recall()
        return [
            {
                "class": name,
                "images": int(counts[c].sum()),
                "recall": None if recall[c] is None else round(recall[c] or 0.0, 6),
                "given": {self.classes[g]: int(counts[c, g]) for g in np.flatnonzero(counts[c, :-1])},
                "given_other_task": int(counts[c, -1]),
            }
            for c, name in enumerate(self.classes)
        ]
