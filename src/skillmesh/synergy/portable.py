"""Which rows may move: those of heads that look at the very same numbers."""

from __future__ import annotations

from collections.abc import Sequence

from skillmesh.errors import SettingsMismatchError
from skillmesh.module.card import Card


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
        f"{card.representation}; leave the task out, or ask its teacher to learn it again with --biases never"
    )


def refuse_strangers(cards: Sequence[Card]) -> None:
    """Rows stand beside each other only if their heads look at one representation of one backbone."""
    for card in cards:
        refuse_unportable(card)
    for card in cards[1:]:
        if _space(card) != _space(cards[0]):
            raise SettingsMismatchError(
                f"the rows of {card.task!r} are on {_words(card)}, those of {cards[0].task!r} on "
                f"{_words(cards[0])}, expected the same; take tasks of one backbone and one representation"
            )


def _space(card: Card) -> tuple[str, str, bool, int]:
    return card.backbone, card.representation, card.compact, card.dim


def _words(card: Card) -> str:
    compact = " (compact)" if card.compact else ""
    return f"{card.dim:,} numbers of {card.representation}{compact} of {card.backbone_name} {card.backbone[:8]}"
