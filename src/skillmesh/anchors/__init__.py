"""Task anchors, by name. A kind is one file that keeps to `protocol.Anchor`; `AnchorKind` registers its name."""

from __future__ import annotations

from importlib import import_module
from typing import get_args

from skillmesh.anchors.protocol import Anchor, AnchorSettings, Scorer, Scores, TakenClasses
from skillmesh.common.choices import AnchorKind

KINDS: dict[str, type[Anchor]] = {
    kind: import_module(f"skillmesh.anchors.{kind}").ANCHOR for kind in get_args(AnchorKind)
}

__all__ = ["KINDS", "Anchor", "AnchorSettings", "Scorer", "Scores", "TakenClasses"]
