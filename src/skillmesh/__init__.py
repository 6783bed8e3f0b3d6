"""Teach one agent, and every agent knows: shared knowledge lifelong learning for images.

>>> from skillmesh import Agent
>>> agent = Agent("my-agent")
>>> result = agent.learn("photos/dice")
>>> agent.predict("basket.jpg").label
'five'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skillmesh.common.version import __version__

__all__ = [
    "Adaptation",
    "Agent",
    "AgentError",
    "Answer",
    "ArgumentError",
    "Backbone",
    "BackboneError",
    "Card",
    "DataError",
    "Evaluation",
    "Guess",
    "LearnResult",
    "MeshError",
    "Module",
    "ModuleError",
    "Node",
    "SkillmeshError",
    "TaskExistsError",
    "UnknownTaskError",
    "WarmStart",
    "__version__",
]

if TYPE_CHECKING:
    from skillmesh.agent import Agent
    from skillmesh.answering.answer import Answer, Guess
    from skillmesh.backbone.backbone import Backbone
    from skillmesh.common.choices import Adaptation, WarmStart
    from skillmesh.errors import (
        AgentError,
        ArgumentError,
        BackboneError,
        DataError,
        MeshError,
        ModuleError,
        SkillmeshError,
        TaskExistsError,
        UnknownTaskError,
    )
    from skillmesh.evaluation.evaluate import Evaluation
    from skillmesh.learning.result import LearnResult
    from skillmesh.mesh.node import Node
    from skillmesh.module import Card, Module

_PLACES = {
    "skillmesh.agent": ("Agent",),
    "skillmesh.answering.answer": ("Answer", "Guess"),
    "skillmesh.backbone.backbone": ("Backbone",),
    "skillmesh.common.choices": ("Adaptation", "WarmStart"),
    "skillmesh.errors": (
        "AgentError",
        "ArgumentError",
        "BackboneError",
        "DataError",
        "MeshError",
        "ModuleError",
        "SkillmeshError",
        "TaskExistsError",
        "UnknownTaskError",
    ),
    "skillmesh.evaluation.evaluate": ("Evaluation",),
    "skillmesh.learning.result": ("LearnResult",),
    "skillmesh.mesh.node": ("Node",),
    "skillmesh.module": ("Card", "Module"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import skillmesh` stays fast."""
    for module, names in _PLACES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(module), name)
    raise AttributeError(f"module 'skillmesh' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
