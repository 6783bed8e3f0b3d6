"""An answer: what the image shows, which task that belongs to, who taught it, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Guess:
    """One possible label."""

    label: str
    task: str
    teacher: str
    confidence: float
    supported_by: tuple[Guess, ...] = ()
    """What other tasks that know the same thing would say alone; `confidence` counts them in."""

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Guess:
        """Read what `as_dict` wrote; older releases knew no support."""
        return cls(**found | {"supported_by": tuple(map(cls.from_dict, found.get("supported_by", ())))})

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON would have it; support is told where there is some."""
        plain = {"label": self.label, "task": self.task, "teacher": self.teacher, "confidence": self.confidence}
        return plain | ({"supported_by": [g.as_dict() for g in self.supported_by]} if self.supported_by else {})


@dataclass(frozen=True)
class Answer:
    """What an agent says of one image."""

    image: str
    """The image's name, as it was handed in."""
    unknown: bool
    """Nothing that the agent knows fits; `label`, `task` and `teacher` are then `None`."""
    guesses: tuple[Guess, ...]
    """The best first. Kept for unknown images too: what the agent would say if it had to."""
    novelty: float
    """How little the image fits what the agent knows, relative to its threshold: over 1 is unknown."""

    @property
    def best(self) -> Guess:
        """The answer if one must be given."""
        return self.guesses[0]

    @property
    def label(self) -> str | None:
        return None if self.unknown else self.best.label

    @property
    def task(self) -> str | None:
        return None if self.unknown else self.best.task

    @property
    def teacher(self) -> str | None:
        return None if self.unknown else self.best.teacher

    @property
    def confidence(self) -> float:
        """How probable the best guess is, given that the image is of a known task."""
        return self.best.confidence

    @property
    def supported_by(self) -> tuple[Guess, ...]:
        """Other tasks that know what the best guess names, with their own confidence."""
        return self.best.supported_by

    @property
    def alternatives(self) -> tuple[Guess, ...]:
        """The other guesses, the more probable first."""
        return self.guesses[1:]

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Answer:
        """Read what `as_dict` wrote."""
        guesses = tuple(Guess.from_dict(guess) for guess in found["guesses"])
        return cls(found["image"], found["unknown"], guesses, found["novelty"])

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON would have it."""
        return {
            "image": self.image,
            "label": self.label,
            "task": self.task,
            "teacher": self.teacher,
            "confidence": round(self.confidence, 4),
            "unknown": self.unknown,
            "novelty": round(self.novelty, 4),
            "guesses": [guess.as_dict() for guess in self.guesses],
        }
