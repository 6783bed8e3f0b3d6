"""The demo's agents and the tasks that each learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skillmesh.data.demo import HIDDEN, LEARNED

SOLO = "solo"
"""The agent that learns everything alone, for comparison."""


@dataclass(frozen=True)
class DemoPlan:
    """Agents, tasks and image counts of a demo. Tests use a smaller one."""

    learned: tuple[str, ...] = LEARNED
    hidden: tuple[str, ...] = HIDDEN
    """Tasks that no agent learns but all agents are asked about."""
    images: Mapping[str, int] = field(default_factory=lambda: {"train": 12, "val": 4, "test": 6})
    """Number of images per class in each split."""
    teachers: tuple[str, ...] = ("ada", "bo", "cy", "dee")
    """Agents that learn; the last one is killed when the others have its tasks."""
    latecomer: str = "eve"
    """Agent that learns nothing itself and joins when the others know everything."""

    @property
    def victim(self) -> str:
        return self.teachers[-1]

    def lessons(self, teacher: str) -> tuple[str, ...]:
        """Return a teacher's tasks, dealt in turn; the last teacher, who is killed, never gets the most."""
        return self.learned[self.teachers.index(teacher) :: len(self.teachers)]
