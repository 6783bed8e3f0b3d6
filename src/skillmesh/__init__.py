"""Teach one agent, and every agent knows: shared knowledge lifelong learning for images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skillmesh.common.version import __version__

__all__ = ["Agent", "Answer", "SkillmeshError", "__version__"]

if TYPE_CHECKING:
    from skillmesh.agent import Agent
    from skillmesh.answering.answer import Answer
    from skillmesh.errors import SkillmeshError

_HOMES = {"Agent": "skillmesh.agent", "Answer": "skillmesh.answering.answer", "SkillmeshError": "skillmesh.errors"}


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that `import skillmesh` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'skillmesh' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
