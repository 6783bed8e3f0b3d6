"""Common types of studies. A study is a named question that is answered by a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillmesh.numerics.process import Progress
from skillmesh_challenge.paper import inputs


@dataclass(frozen=True)
class StudySettings:
    """Settings that the user may give; each study uses those it needs."""

    folders: tuple[Path, ...] = ()
    """Folders of tasks to measure on; studies that only count need none."""
    tasks: int = inputs.TASKS
    agents: int = inputs.AGENTS
    alpha: float = inputs.ALPHA
    """Cost of sending one byte, in MACs."""
    seed: int = 0
    backbone: str = "lite0"
    weights: Path | None = None
    calibration: Path | None = None
    device: str | None = None
    progress: Progress | None = None
    """Progress reporting for studies that measure."""


@dataclass(frozen=True)
class Findings:
    """The result of a study: a table with notes."""

    title: str
    rows: list[dict[str, Any]]
    """Rows of the table, all with the same keys: the names of the columns as shown."""
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    """Numbers from the notes, for programs."""

    @property
    def columns(self) -> list[str]:
        return list(self.rows[0])

    def summary(self) -> dict[str, Any]:
        summary = {"title": self.title, "rows": self.rows, "notes": self.notes}
        return summary | {"figures": self.figures} if self.figures else summary


@dataclass(frozen=True)
class Study:
    """One entry of the registry."""

    about: str
    """One line for the list of studies."""
    run: Callable[[StudySettings], Findings]


def as_read(value: Any) -> str:
    """Format a value for readers: integers in full, very large or small floats with a power of ten."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if abs(value) >= 1e6 or 0 < abs(value) < 1e-3:
            return f"{value:.2E}"
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"
    return str(value)
