"""Task anchors by kind. Each kind is one file that implements `protocol.Anchor`; `AnchorKind` lists its name."""

from __future__ import annotations

from importlib import import_module
from typing import Literal, get_args

from skillmesh.anchors.protocol import Anchor, AnchorSettings, KnownOdds, Scorer, Scores, TakenClasses
from skillmesh.common.choices import AnchorKind
from skillmesh.errors import AgentError

KINDS: dict[str, type[Anchor]] = {
    kind: import_module(f"skillmesh.anchors.{kind}").ANCHOR for kind in get_args(AnchorKind)
}


def able_kinds(ability: Literal["adds_up", "divisible"]) -> list[str]:
    """Return the names of the kinds that have this ability, for messages."""
    return [name for name, kind in KINDS.items() if getattr(kind, ability)]


def require_to_fit(kind: str) -> None:
    """Raise `AgentError` if anchors of this kind cannot be fitted here for want of a package."""
    if (extra := KINDS[kind].fitted_with) is not None:
        extra.require(f"learning with the anchor {kind!r}", AgentError)


__all__ = [
    "KINDS",
    "Anchor",
    "AnchorSettings",
    "KnownOdds",
    "Scorer",
    "Scores",
    "TakenClasses",
    "able_kinds",
    "require_to_fit",
]
