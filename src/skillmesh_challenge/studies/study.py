"""What a study is: a question with a name, answered by a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillmesh.numerics.process import Progress
from skillmesh_challenge.paper import inputs


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
    backbone: str = "lite0"
    weights: Path | None = None
    calibration: Path | None = None
    device: str | None = None
    progress: Progress | None = None
    """Told how a study that measures goes on."""


@dataclass(frozen=True)
class Findings:
    """A table, and what is to be said about it."""

    title: str
    rows: list[dict[str, Any]]
    """All with the same keys: the columns, by what they are called when shown."""
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    """What the notes say in numbers, for programs."""

    @property
    def columns(self) -> list[str]:
        return list(self.rows[0])

    def summary(self) -> dict[str, Any]:
        found = {"title": self.title, "rows": self.rows, "notes": self.notes}
        return found | {"figures": self.figures} if self.figures else found


@dataclass(frozen=True)
class Study:
    """One entry of the registry."""

    about: str
    """One line for whoever asks which studies there are."""
    run: Callable[[StudySettings], Findings]


def as_read(value: Any) -> str:
    """Numbers as one reads them: whole ones in full, large ones by their power of ten."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if abs(value) >= 1e6 or 0 < abs(value) < 1e-3:
            return f"{value:.2E}"
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"
    return str(value)
