"""Who is in the demo, and who learns what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skillmesh.data.demo import HIDDEN, LEARNED

SOLO = "solo"
"""The agent that learns everything alone, for comparison."""


@dataclass(frozen=True)
class DemoPlan:
    """The cast. Tests take a smaller one."""

    learned: tuple[str, ...] = LEARNED
    hidden: tuple[str, ...] = HIDDEN
    """Tasks that nobody learns, but everybody is asked about."""
    images: Mapping[str, int] = field(default_factory=lambda: {"train": 12, "val": 4, "test": 6})
    """Per class."""
    teachers: tuple[str, ...] = ("ada", "bo", "cy", "dee")
    """The last one is killed when the others have what it taught."""
    latecomer: str = "eve"
    """Joins when the others know everything, and has learned nothing itself."""

    @property
    def victim(self) -> str:
        return self.teachers[-1]

    def lessons(self, teacher: str) -> tuple[str, ...]:
        """Deal the tasks like cards; the last teacher, who is to be killed, never gets more than the others."""
        return self.learned[self.teachers.index(teacher) :: len(self.teachers)]
