"""Task anchors, by name. A kind is one file that keeps to `protocol.Anchor`; `AnchorKind` registers its name."""

from __future__ import annotations

from importlib import import_module
from typing import Literal, get_args

from skillmesh.anchors.protocol import Anchor, AnchorSettings, Scorer, Scores, TakenClasses
from skillmesh.common.choices import AnchorKind

KINDS: dict[str, type[Anchor]] = {
    kind: import_module(f"skillmesh.anchors.{kind}").ANCHOR for kind in get_args(AnchorKind)
}


def able_kinds(ability: Literal["adds_up", "divisible"]) -> list[str]:
    """Return the names of the kinds that can do so, for messages."""
    return [name for name, kind in KINDS.items() if getattr(kind, ability)]


__all__ = ["KINDS", "Anchor", "AnchorSettings", "Scorer", "Scores", "TakenClasses", "able_kinds"]
