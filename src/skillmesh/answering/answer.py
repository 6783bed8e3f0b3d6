"""An answer: what the image shows, which task that belongs to, who taught it, and how sure that is."""

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


# Equivalent classes of several tasks support one another in an answer, instead of competing for it.
#
# Where one thing was taught in several tasks, the mapper shares an image between them, and none alone would be
# sure. Classes that are one by their names pool what they are given; the surest of them speaks for all.

log = logging.getLogger(__name__)

Same = Callable[[str, str], bool]
"""Whether two class names mean one thing."""
LEAST = 0.01
"""Guesses below this neither give nor get support: of so little confidence the name would be the only evidence."""
REMEMBERED = 4096
"""So many class names stay encoded: six megabytes."""


class Heard(NamedTuple):
    """A guess, which module made it, and whose that is."""

    module: int
    key: str
    """The teacher's: a name is no proof of who speaks."""
    guess: Guess


def supported(heard: Sequence[Heard], same: Same) -> list[Guess]:
    """Pool the guesses of one image that mean one thing; the first is the answer so far, the surer come first.

    A thing's confidence is that of all tasks that name it, whoever taught them. A surer one takes the answer's
    place, but against other teachers a teacher has one voice, its surest guess: nobody overrules others by
    teaching one thing many times. Where no two guesses mean one thing, all of them stay as they are.
    """
    groups = _groups(heard, same)
    if len(groups) == len(heard):
        return [each.guess for each in heard]
    answer, *others = groups
    winner = max((group for group in others if _overrules(group, answer)), key=_weight, default=answer)
    rest = [group for group in groups if group is not winner]
    rivals = [_pooled(group if _total(group) <= _total(winner) else _voices(group)) for group in rest]
    return [_pooled(winner), *sorted(rivals, key=lambda guess: -guess.confidence)]


def _overrules(rival: list[Heard], answer: list[Heard]) -> bool:
    """Whether several teachers together are surer of another thing, or the answer's only teacher itself is."""
    if len({each.key for each in (*rival, *answer)}) == 1:
        return len(rival) > 1 and _total(rival) > _total(answer)
    return len({each.key for each in rival}) > 1 and _weight(rival) > _weight(answer)


def _weight(group: list[Heard]) -> float:
    """Return what counts of a thing against others: one voice of each teacher."""
    return _total(_voices(group))


def _groups(heard: Sequence[Heard], same: Same) -> list[list[Heard]]:
    """A guess joins the first before it that means the same; no task twice, its teacher told its classes apart."""
    groups: list[list[Heard]] = []
    for each in heard:
        group = None
        if each.guess.confidence >= LEAST:
            group = next((g for g in groups if _joins(each, g, same)), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return groups


def _joins(each: Heard, group: list[Heard], same: Same) -> bool:
    first = group[0].guess
    apart = all(each.module != other.module for other in group)
    return apart and first.confidence >= LEAST and same(first.label, each.guess.label)


def _voices(group: list[Heard]) -> list[Heard]:
    """Return one guess of each teacher, its surest; of equals the first."""
    voices: dict[str, Heard] = {}
    for each in group:
        if each.key not in voices or each.guess.confidence > voices[each.key].guess.confidence:
            voices[each.key] = each
    return list(voices.values())


def _total(group: list[Heard]) -> float:
    return sum(each.guess.confidence for each in group)


def _pooled(group: list[Heard]) -> Guess:
    """Let the surest speak, of equals the first; it names the others, each with what it would have said alone."""
    if len(group) == 1:
        return group[0].guess
    best, *others = sorted((each.guess for each in group), key=lambda guess: -guess.confidence)
    return replace(best, confidence=min(1.0, _total(group)), supported_by=tuple(others))


def equal_forms(one: str, other: str) -> bool:
    """Whether two names have one plain form: the same everywhere, whatever is installed."""
    return joined(one) == joined(other)


class ByEncoder:
    """Whether two names are as similar as an encoder's threshold; names stay encoded for the next answer."""

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
    """What an agent's setting asks for; where the encoder's weights are not installed, plain forms must do."""
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
