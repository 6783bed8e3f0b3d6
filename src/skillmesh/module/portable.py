"""Which rows may move: those of heads that look at the very same numbers."""

from __future__ import annotations

from collections.abc import Sequence

from skillmesh.errors import SettingsMismatchError
from skillmesh.module.card import Card

Space = tuple[str, str, bool, int]
"""Backbone, representation, whether it is compact, and how many numbers that is."""


def refuse_unportable(card: Card) -> None:
    """Rows mean something only to who sees what their head saw: the backbone's own pass, with nothing added."""
    if card.toes is not None:
        seen = f"{card.head_dim:,} numbers from inside the backbone that were chosen for this task (Head2Toe)"
    elif card.biases is not None:
        seen = f"a pass with {card.biases[1]:,} biases of this task"
    elif card.pattern is not None:
        seen = "images with this task's own pattern around them (reprogramming)"
    else:
        return
    raise SettingsMismatchError(
        f"the rows of {card.task!r} cannot be used in another head: its head looks at {seen}, expected the plain "
        f"{card.representation}; leave the task out, or ask its teacher to learn it again with --adapt none"
    )


def refuse_strangers(cards: Sequence[Card]) -> None:
    """Rows stand beside each other only if their heads look at one representation of one backbone."""
    for card in cards:
        refuse_unportable(card)
    for card in cards[1:]:
        if space_of(card) != space_of(cards[0]):
            raise SettingsMismatchError(
                f"the rows of {card.task!r} are on {_words(card)}, those of {cards[0].task!r} on "
                f"{_words(cards[0])}, expected the same; take tasks of one backbone and one representation"
            )


def refuse_elsewhere(card: Card, space: Space) -> None:
    """A head on this space can take only rows that were made on it."""
    refuse_unportable(card)
    if space_of(card) != space:
        representation, compact, dim = space[1:]
        raise SettingsMismatchError(
            f"the rows of {card.task!r} are on {_words(card)}, expected {dim:,} numbers of {representation}"
            f"{' (compact)' if compact else ''} of {space[0][:8]}; leave the task out"
        )


def space_of(card: Card) -> Space:
    return card.backbone, card.representation, card.compact, card.dim


def _words(card: Card) -> str:
    compact = " (compact)" if card.compact else ""
    return f"{card.dim:,} numbers of {card.representation}{compact} of {card.backbone_name} {card.backbone[:8]}"
