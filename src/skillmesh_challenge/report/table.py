"""A table of the report: cells have a text for people and a value for programs."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillmesh.common.files import write_whole
from skillmesh_challenge.metrics import Interval

NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """One figure."""

    text: str
    value: float | str | None = None
    """What CSV and sorting take; the text where there is none."""
    mark: str = ""
    """What is printed behind it and explained below the table."""
    spread: float | None = None
    """How far its confidence interval reaches to either side."""
    below: str = ""
    """A figure that belongs to it, in small print."""

    @property
    def plain(self) -> float | str:
        return self.value if self.value is not None else ("" if self.text == NOTHING else self.text)


@dataclass(frozen=True)
class ReportTable:
    """Rows below columns; the file is named after `name`."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[tuple[str, str], ...] = ()
    """Mark, and what it says."""
    about: str = ""
    ours: frozenset[int] = frozenset()
    """Rows that are set off from the others."""

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        cells = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return [any(isinstance(cell.value, int | float) for cell in column) for column in cells]

    def write(self, folder: Path) -> Path:
        """As CSV. Intervals have columns of their own; what is said about marked cells is in the last one."""
        path = folder / f"{self.name}.csv"
        spread = {at for row in self.rows for at, cell in enumerate(row) if cell.spread is not None}
        marked = any(cell.mark for row in self.rows for cell in row)
        text = io.StringIO(newline="")
        out = csv.writer(text)
        heads = [[name, f"{name}, ±"] if at in spread else [name] for at, name in enumerate(self.columns)]
        out.writerow([*itertools.chain(*heads), *(["marks"] if marked else [])])
        for row in self.rows:
            cells = [[c.plain, c.spread] if at in spread else [c.plain] for at, c in enumerate(row)]
            out.writerow([*itertools.chain(*cells), *([self._marks(row)] if marked else [])])
        write_whole(path, text.getvalue().encode(), sync=False)
        return path

    def _marks(self, row: Sequence[Cell]) -> str:
        return "; ".join(
            f"{column}: formula {cell.below} (note {cell.mark})" if cell.below else f"{column}: note {cell.mark}"
            for column, cell in zip(self.columns, row, strict=True)
            if cell.mark
        )

    def summary(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [[cell.plain if cell.plain != "" else None for cell in row] for row in self.rows],
            "notes": dict(self.notes),
        }


def text(value: object) -> Cell:
    return Cell(str(value))


def yes(value: bool) -> Cell:
    return Cell("yes" if value else "no")


def number(value: float | None, form: str = "{:,.0f}") -> Cell:
    return Cell(NOTHING) if value is None else Cell(form.format(value), value)


def percent(found: Interval | float | None) -> Cell:
    """A share; over several seeds with its interval."""
    if found is None:
        return Cell(NOTHING)
    if not isinstance(found, Interval):
        return Cell(f"{100 * found:.2f} %".replace("-", "−"), found)
    spread = "" if found.half_width is None else f" ± {100 * found.half_width:.2f}"
    return Cell(f"{100 * found.mean:.2f}{spread} %".replace("-", "−"), found.mean, spread=found.half_width)


def mean(found: Interval | None, form: str) -> Cell:
    """Any other figure over seeds."""
    return number(None if found is None else found.mean, form)


def numbered(notes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Notes with their marks: 1, 2, …"""
    return tuple((str(index), note) for index, note in enumerate(notes, 1))


def rows(made: Sequence[Sequence[Cell]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(map(tuple, made))
