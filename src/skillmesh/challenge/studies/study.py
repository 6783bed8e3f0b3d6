"""What a study is: a question with a name, answered by a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillmesh.challenge.paper import inputs


@dataclass(frozen=True)
class StudySettings:
    """What the user may say; a study takes of it what it needs."""

    folders: tuple[Path, ...] = ()
    """Tasks to measure on. Studies that only count need none."""
    tasks: int = inputs.TASKS
    agents: int = inputs.AGENTS
    alpha: float = inputs.ALPHA
    """MACs that sending one byte is worth."""
    seed: int = 0


@dataclass(frozen=True)
class Findings:
    """A table, and what is to be said about it."""

    title: str
    rows: list[dict[str, Any]]
    """All with the same keys: the columns, by what they are called when shown."""
    notes: list[str] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        return list(self.rows[0])

    def summary(self) -> dict[str, Any]:
        return {"title": self.title, "rows": self.rows, "notes": self.notes}


@dataclass(frozen=True)
class Study:
    """One entry of the registry."""

    about: str
    """One line for whoever asks which studies there are."""
    run: Callable[[StudySettings], Findings]
