"""An answer: what the image shows, which task that belongs to, who taught it, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from skillmesh.errors import DataError


@dataclass(frozen=True)
class Guess:
    """One possible label.

    Examples
    --------
    >>> guess = agent.predict("basket.jpg").guesses[0]
    >>> guess.label, guess.task
    ('five', 'dice')
    """

    label: str
    task: str
    teacher: str
    """How the agent calls the teacher; one that its user has not named has the beginning of its key, too."""
    confidence: float
    teacher_key: str = ""
    supported_by: tuple[Guess, ...] = ()
    """What other tasks that know the same thing would say alone; `confidence` counts them in."""
    odd_letters: tuple[str, ...] = ()
    """Letters by which the task's name looks like another, in words; nearly always none."""

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Guess:
        """Read what `as_dict` wrote; older releases knew no support."""
        support = tuple(map(cls.from_dict, found.get("supported_by", ())))
        return cls(**found | {"supported_by": support, "odd_letters": tuple(found.get("odd_letters", ()))})

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON would have it; support is told where there is some."""
        plain: dict[str, Any] = {
            "label": self.label,
            "task": self.task,
            "teacher": self.teacher,
            "confidence": self.confidence,
        }
        if self.teacher_key:
            plain["teacher_key"] = self.teacher_key
        if self.odd_letters:
            plain["odd_letters"] = list(self.odd_letters)
        return plain | ({"supported_by": [g.as_dict() for g in self.supported_by]} if self.supported_by else {})


@dataclass(frozen=True)
class Answer:
    """What an agent says of one image.

    Examples
    --------
    >>> answer = agent.predict("basket.jpg")
    >>> answer.label, answer.task, answer.unknown, answer.confidence > 0.5
    ('five', 'dice', False, True)
    """

    image: str
    """The image's name, as it was handed in."""
    unknown: bool
    """Nothing that the agent knows fits; `label`, `task` and `teacher` are then `None`."""
    guesses: tuple[Guess, ...]
    """The best first. Kept for unknown images too: what the agent would say if it had to."""
    novelty: float
    """How little the image fits what the agent knows, relative to its threshold: over 1 is unknown."""
    error: str | None = None
    """Why the image could not be read; there is then no guess, and `label` is `None`."""

    @classmethod
    def failed(cls, image: str, error: str) -> Answer:
        """Return the answer to an image that cannot be read."""
        return cls(image, False, (), 0.0, error)

    @property
    def best(self) -> Guess:
        """The answer if one must be given."""
        if self.error is not None:
            raise DataError(f"{self.image} has no answer: {self.error}")
        return self.guesses[0]

    @property
    def _given(self) -> Guess | None:
        return None if self.unknown or self.error is not None else self.best

    @property
    def label(self) -> str | None:
        return None if self._given is None else self._given.label

    @property
    def task(self) -> str | None:
        return None if self._given is None else self._given.task

    @property
    def odd_letters(self) -> tuple[str, ...]:
        """Letters by which the task's name looks like another, in words."""
        return () if self._given is None else self._given.odd_letters

    @property
    def teacher(self) -> str | None:
        """Who taught the task: the name that the agent's user gave, or what it calls itself and a key."""
        return None if self._given is None else self._given.teacher

    @property
    def confidence(self) -> float:
        """How probable the best guess is, given that the image is of a known task; 0 where there is none."""
        return self.guesses[0].confidence if self.guesses else 0.0

    @property
    def supported_by(self) -> tuple[Guess, ...]:
        """Other tasks that know what the best guess names, with their own confidence."""
        return self.guesses[0].supported_by if self.guesses else ()

    @property
    def alternatives(self) -> tuple[Guess, ...]:
        """The other guesses, the more probable first."""
        return self.guesses[1:]

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Answer:
        """Read what `as_dict` wrote."""
        guesses = tuple(Guess.from_dict(guess) for guess in found["guesses"])
        return cls(found["image"], found["unknown"], guesses, found["novelty"], found.get("error"))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON would have it."""
        facts = {
            "image": self.image,
            "label": self.label,
            "task": self.task,
            "teacher": self.teacher,
            "confidence": round(self.confidence, 4),
            "unknown": self.unknown,
            "novelty": round(self.novelty, 4),
            "guesses": [guess.as_dict() for guess in self.guesses],
        }
        return facts | ({} if self.error is None else {"error": self.error})

    def shared(self) -> dict[str, Any]:
        """Return all of it but who taught what: equal for agents that know the same, whatever they call others."""
        return replace(self, guesses=tuple(map(_unnamed, self.guesses))).as_dict()


def _unnamed(guess: Guess) -> Guess:
    return replace(guess, teacher="", teacher_key="", supported_by=tuple(map(_unnamed, guess.supported_by)))
