"""Equivalent classes of several tasks support one another in an answer, instead of competing for it.

Where two teachers have taught one thing, the mapper shares an image between their tasks, and neither would be
sure. Classes that are one by their names pool what they are given; the surest of them speaks for all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from skillmesh.answer import Guess
from skillmesh.errors import EncoderError
from skillmesh.names import Support
from skillmesh.synergy.matching.names import joined

if TYPE_CHECKING:
    from skillmesh.synergy.matching.by_name import Encoded
    from skillmesh.synergy.matching.encoders import Encoder

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
    """Pool guesses of one image that mean one thing; the first is the answer so far, the surer come first.

    A teacher has one voice, however many tasks it taught: its surest guess of a thing. The answer changes only
    where several teachers together are surer of another class than of this one. Where no two guesses mean one
    thing, all of them stay as they are.
    """
    groups = _groups(heard, same)
    pooled = [_pooled(_voices(group)) for group in groups]
    if len(groups) == len(heard):
        return pooled
    order = sorted(range(1, len(groups)), key=lambda place: -pooled[place].confidence)
    rival = order[0] if order else 0
    if len(_voices(groups[rival])) > 1 and pooled[rival].confidence > pooled[0].confidence:
        order = [rival, *sorted([0, *order[1:]], key=lambda place: -pooled[place].confidence)]
    else:
        order = [0, *order]
    return [pooled[place] for place in order]


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


def _voices(group: list[Heard]) -> list[Guess]:
    """One guess of each teacher, its surest; of equals the first."""
    voices: dict[str, Guess] = {}
    for each in group:
        if each.key not in voices or each.guess.confidence > voices[each.key].confidence:
            voices[each.key] = each.guess
    return list(voices.values())


def _pooled(group: list[Guess]) -> Guess:
    """The surest speaks; of equals the first. It names the others, each with what it would have said alone."""
    if len(group) == 1:
        return group[0]
    ordered = sorted(group, key=lambda guess: -guess.confidence)
    together = min(1.0, sum(guess.confidence for guess in ordered))
    return replace(ordered[0], confidence=together, supported_by=tuple(ordered[1:]))


def equal_forms(one: str, other: str) -> bool:
    """Whether two names have one plain form: the same everywhere, whatever is installed."""
    return joined(one) == joined(other)


class ByEncoder:
    """Whether two names are as similar as an encoder's threshold; names stay encoded for the next answer."""

    def __init__(self, encoder: Encoder) -> None:
        self._threshold = encoder.threshold
        self._encoded = lru_cache(maxsize=REMEMBERED)(lambda name: _encoded(name, encoder))

    def __call__(self, one: str, other: str) -> bool:
        from skillmesh.synergy.matching.by_name import similarity

        if equal_forms(one, other):
            return True
        return bool(similarity(self._encoded(one), self._encoded(other))[0, 0] >= self._threshold)


def _encoded(name: str, encoder: Encoder) -> Encoded:
    from skillmesh.synergy.matching.by_name import Encoded

    return Encoded.of([name], encoder)


def sameness(support: Support) -> Same | None:
    """What an agent's setting asks for; where the encoder's weights are not installed, plain forms must do."""
    if support == "never":
        return None
    if support == "plain":
        return equal_forms
    from skillmesh.synergy.matching.encoders import load_encoder

    try:
        return ByEncoder(load_encoder())
    except EncoderError as error:
        log.warning("classes support one another by equal names alone: %s", error)
        return equal_forms
