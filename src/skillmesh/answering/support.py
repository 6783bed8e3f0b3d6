"""Equivalent classes of several tasks support one another in an answer, instead of competing for it.

Where one thing was taught in several tasks, the mapper shares an image between them, and none alone would be sure.
Classes that are one by their names pool what they are given; the surest of them speaks for all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from skillmesh.answering.answer import Guess
from skillmesh.common.choices import Support
from skillmesh.errors import EncoderError
from skillmesh.learning.class_names.plain import joined

if TYPE_CHECKING:
    from skillmesh.learning.class_names.encoders import Encoder
    from skillmesh.learning.class_names.pairs import Encoded

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
