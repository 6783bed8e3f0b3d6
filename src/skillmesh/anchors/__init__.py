"""Task anchors by kind. Each kind is one file that implements `protocol.Anchor`; `AnchorKind` lists its name."""

from __future__ import annotations

from importlib import import_module
from typing import Literal, get_args

from skillmesh.anchors.protocol import Anchor, AnchorSettings, Scorer, Scores, TakenClasses
from skillmesh.common.choices import AnchorKind

KINDS: dict[str, type[Anchor]] = {
    kind: import_module(f"skillmesh.anchors.{kind}").ANCHOR for kind in get_args(AnchorKind)
}


def able_kinds(ability: Literal["adds_up", "divisible"]) -> list[str]:
    """Return the names of the kinds that have this ability, for messages."""
    return [name for name, kind in KINDS.items() if getattr(kind, ability)]


__all__ = ["KINDS", "Anchor", "AnchorSettings", "Scorer", "Scores", "TakenClasses", "able_kinds"]
