"""Task anchors, by name. Each kind is one file; all keep to `protocol.Anchor`."""

from __future__ import annotations

from skillmesh.anchors.gmmc import GmmcAnchor
from skillmesh.anchors.maha import MahaAnchor
from skillmesh.anchors.protocol import Anchor, AnchorSettings, Scorer, Scores, TakenClasses
from skillmesh.anchors.sketch import SketchAnchor

KINDS: dict[str, type[Anchor]] = {kind.kind: kind for kind in (SketchAnchor, GmmcAnchor, MahaAnchor)}

__all__ = ["KINDS", "Anchor", "AnchorSettings", "Scorer", "Scores", "TakenClasses"]
