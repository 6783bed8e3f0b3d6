"""An answer: the class of an image, its task, who taught the task, and the confidence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from skillmesh.common.choices import Support
from skillmesh.errors import DataError, EncoderError
from skillmesh.learning.class_names.pairs import joined

if TYPE_CHECKING:
    from skillmesh.learning.class_names.encoders import Encoder
    from skillmesh.learning.class_names.pairs import Encoded


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
    """The agent's name for the teacher; if the user has not named the teacher, its key's beginning is added."""
    confidence: float
    teacher_key: str = ""
    supported_by: tuple[Guess, ...] = ()
    """Guesses of other tasks with an equivalent class; `confidence` above includes theirs."""
    odd_letters: tuple[str, ...] = ()
    """Descriptions of letters that make the task's name look like another one; nearly always empty."""

    def times(self, known: float) -> Guess:
        """Return the guess with its confidences multiplied by the probability that the image's task is known."""
        support = tuple(guess.times(known) for guess in self.supported_by)
        return replace(self, confidence=self.confidence * known, supported_by=support)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Guess:
        """Read what `as_dict` wrote; older releases wrote no support."""
        support = tuple(map(cls.from_dict, plain.get("supported_by", ())))
        return cls(**plain | {"supported_by": support, "odd_letters": tuple(plain.get("odd_letters", ()))})

    def as_dict(self) -> dict[str, Any]:
        """Return the guess as a JSON-compatible dict; `supported_by` is left out where it is empty."""
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
    """An agent's answer to one image.

    Examples
    --------
    >>> answer = agent.predict("basket.jpg")
    >>> answer.label, answer.task, answer.unknown, answer.confidence > 0.5
    ('five', 'dice', False, True)
    """

    image: str
    """The image's name, as the caller gave it."""
    unknown: bool
    """True if the image fits no task of the agent; `label`, `task` and `teacher` are then `None`."""
    guesses: tuple[Guess, ...]
    """The guesses, best first. Kept for unknown images too: the agent's answer if it had to give one."""
    novelty: float
    """How little the image fits the agent's tasks, relative to the threshold: above 1 is not answered."""
    error: str | None = None
    """Why the image could not be read; there is then no guess, and `label` is `None`."""
    unsure: bool = False
    """True if the image is not answered, but may well be of a known task; `label` is `None` too."""
    known: float = 1.0
    """Probability that the image is of a known task, a factor of every guess's confidence; 1 where anchors cannot
    tell."""

    @classmethod
    def failed(cls, image: str, error: str) -> Answer:
        """Return the answer to an image that cannot be read."""
        return cls(image, False, (), 0.0, error)

    @property
    def best(self) -> Guess:
        """The best guess, also for an unknown image. Raises `DataError` if the image could not be read."""
        if self.error is not None:
            raise DataError(f"{self.image} has no answer: {self.error}")
        return self.guesses[0]

    @property
    def _given(self) -> Guess | None:
        return None if self.unknown or self.unsure or self.error is not None else self.best

    @property
    def label(self) -> str | None:
        return None if self._given is None else self._given.label

    @property
    def task(self) -> str | None:
        return None if self._given is None else self._given.task

    @property
    def odd_letters(self) -> tuple[str, ...]:
        """Descriptions of letters that make the task's name look like another one."""
        return () if self._given is None else self._given.odd_letters

    @property
    def teacher(self) -> str | None:
        """Who taught the task: the name given by the agent's user, or the teacher's own name and a key."""
        return None if self._given is None else self._given.teacher

    @property
    def confidence(self) -> float:
        """Probability of the best guess: p(of a known task) · p(task) · p(class); 0 without a guess."""
        return self.guesses[0].confidence if self.guesses else 0.0

    @property
    def supported_by(self) -> tuple[Guess, ...]:
        """Guesses of other tasks that have the best guess's class too, with their own confidence."""
        return self.guesses[0].supported_by if self.guesses else ()

    @property
    def alternatives(self) -> tuple[Guess, ...]:
        """The other guesses, most probable first."""
        return self.guesses[1:]

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Answer:
        """Read what `as_dict` wrote."""
        guesses = tuple(Guess.from_dict(guess) for guess in plain["guesses"])
        newer = plain.get("unsure", False), plain.get("known", 1.0)  # older releases know neither
        return cls(plain["image"], plain["unknown"], guesses, plain["novelty"], plain.get("error"), *newer)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as a JSON-compatible dict."""
        facts = {
            "image": self.image,
            "label": self.label,
            "task": self.task,
            "teacher": self.teacher,
            "confidence": float(f"{self.confidence:.4g}"),
            "unknown": self.unknown,
            "unsure": self.unsure,
            "known": float(f"{self.known:.4g}"),  # never rounded to 0: confidences are divided by it
            "novelty": round(self.novelty, 4),
            "guesses": [guess.as_dict() for guess in self.guesses],
        }
        return facts | ({} if self.error is None else {"error": self.error})

    def shared(self) -> dict[str, Any]:
        """Return `as_dict` without teachers: equal for agents with equal banks, however they name others."""
        return replace(self, guesses=tuple(map(_unnamed, self.guesses))).as_dict()


def _unnamed(guess: Guess) -> Guess:
    return replace(guess, teacher="", teacher_key="", supported_by=tuple(map(_unnamed, guess.supported_by)))


# Equivalent classes of several tasks support one another in an answer, instead of competing for it.
#
# Where one class was taught in several tasks, the mapper divides its probability between them, and none alone is
# sure. Classes whose names mean the same add up their confidences; the most confident one stands for all of them.

log = logging.getLogger(__name__)

Same = Callable[[str, str], bool]
"""A function that returns True if two class names mean the same."""
LEAST = 0.01
"""Confidence below which a guess neither gives nor gets support: its name would be the only evidence."""
REMEMBERED = 4096
"""Number of encoded class names kept in memory: six megabytes."""


class Candidate(NamedTuple):
    """A guess, with its module and the module's teacher."""

    module: int
    key: str
    """The teacher's public key: a teacher's name proves nothing."""
    guess: Guess


def supported(candidates: Sequence[Candidate], same: Same) -> list[Guess]:
    """Pool the guesses for one image whose labels mean the same. The first guess is the answer so far.

    The confidence of a pooled guess is the sum over all tasks that name it, of any teacher. A more confident group
    replaces the answer, but against other teachers only each teacher's most confident guess counts: no teacher can
    overrule others by teaching one class many times. Where no two labels mean the same, all guesses are unchanged.
    """
    groups = _groups(candidates, same)
    if len(groups) == len(candidates):
        return [each.guess for each in candidates]
    answer, *others = groups
    winner = max((group for group in others if _overrules(group, answer)), key=_weight, default=answer)
    rest = [group for group in groups if group is not winner]
    rivals = [_pooled(group if _total(group) <= _total(winner) else _voices(group)) for group in rest]
    return [_pooled(winner), *sorted(rivals, key=lambda guess: -guess.confidence)]


def _overrules(rival: list[Candidate], answer: list[Candidate]) -> bool:
    """Return True if several teachers together are surer of another class, or the answer's only teacher is."""
    if len({each.key for each in (*rival, *answer)}) == 1:
        return len(rival) > 1 and _total(rival) > _total(answer)
    return len({each.key for each in rival}) > 1 and _weight(rival) > _weight(answer)


def _weight(group: list[Candidate]) -> float:
    """Return a group's confidence in a comparison with other groups: one guess per teacher counts."""
    return _total(_voices(group))


def _groups(candidates: Sequence[Candidate], same: Same) -> list[list[Candidate]]:
    """Group guesses of the same meaning; no task is in a group twice, since its teacher separated its classes."""
    groups: list[list[Candidate]] = []
    for each in candidates:
        group = None
        if each.guess.confidence >= LEAST:
            group = next((g for g in groups if _joins(each, g, same)), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return groups


def _joins(each: Candidate, group: list[Candidate], same: Same) -> bool:
    first = group[0].guess
    apart = all(each.module != other.module for other in group)
    return apart and first.confidence >= LEAST and same(first.label, each.guess.label)


def _voices(group: list[Candidate]) -> list[Candidate]:
    """Return the most confident guess of each teacher; the first one if several are equal."""
    voices: dict[str, Candidate] = {}
    for each in group:
        if each.key not in voices or each.guess.confidence > voices[each.key].guess.confidence:
            voices[each.key] = each
    return list(voices.values())


def _total(group: list[Candidate]) -> float:
    return sum(each.guess.confidence for each in group)


def _pooled(group: list[Candidate]) -> Guess:
    """Return the most confident guess, the first of equals, with the summed confidence; the others support it."""
    if len(group) == 1:
        return group[0].guess
    best, *others = sorted((each.guess for each in group), key=lambda guess: -guess.confidence)
    return replace(best, confidence=min(1.0, _total(group)), supported_by=tuple(others))


def equal_forms(one: str, other: str) -> bool:
    """Return True if two names have the same plain form. The result does not depend on what is installed."""
    return joined(one) == joined(other)


class ByEncoder:
    """Test if two names are at least as similar as an encoder's threshold; encoded names are cached."""

    def __init__(self, encoder: Encoder) -> None:
        self._threshold = encoder.threshold
        self._encoded = lru_cache(maxsize=REMEMBERED)(lambda name: _encoded(name, encoder))

    def __call__(self, one: str, other: str) -> bool:
        from skillmesh.learning.class_names.pairs import similarity

        if equal_forms(one, other):
            return True
        return bool(similarity(self._encoded(one), self._encoded(other))[0, 0] >= self._threshold)


def _encoded(name: str, encoder: Encoder) -> Encoded:
    from skillmesh.learning.class_names.pairs import Encoded

    return Encoded.of([name], encoder)


def sameness(support: Support) -> Same | None:
    """Return the comparison for an agent's setting; plain forms if the encoder's weights are not installed."""
    if support == "never":
        return None
    if support == "plain":
        return equal_forms
    from skillmesh.learning.class_names.encoders import load_encoder

    try:
        return ByEncoder(load_encoder())
    except EncoderError as error:
        log.warning("classes support one another by equal names alone: %s", error)
        return equal_forms
