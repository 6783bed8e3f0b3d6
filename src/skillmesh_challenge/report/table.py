"""A table of the report: each cell has a text for people and a value for programs."""

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
TASK_LABEL = "task label"
"""Name of the column that `task_label` fills."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    value: float | str | None = None
    """Value for CSV and sorting; None: the text is used."""
    mark: str = ""
    """Mark of the note that explains the cell below the table."""
    spread: float | None = None
    """Half-width of the confidence interval."""
    below: str = ""
    """A second value, shown in small print."""

    @property
    def plain(self) -> float | str:
        return self.value if self.value is not None else ("" if self.text == NOTHING else self.text)


@dataclass(frozen=True)
class ReportTable:
    """A table with a title and notes; its CSV file is named after `name`."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[tuple[str, str], ...] = ()
    """Pairs of a mark and its note."""
    about: str = ""
    ours: frozenset[int] = frozenset()
    """Indices of the rows that are highlighted."""

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers."""
        cells = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return [any(isinstance(cell.value, int | float) for cell in column) for column in cells]

    def write(self, folder: Path) -> Path:
        """Write the table as CSV: intervals get columns of their own, notes on marked cells the last column."""
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


def task_label(given: bool) -> Cell:
    """Return the cell of the column `TASK_LABEL`: whether a method gets the task label of every test image."""
    return Cell("given" if given else "none")


def number(value: float | None, form: str = "{:,.0f}") -> Cell:
    return Cell(NOTHING) if value is None else Cell(form.format(value), value)


def percent(share: Interval | float | None) -> Cell:
    """Return a share as a percentage; with several seeds, with its interval."""
    if share is None:
        return Cell(NOTHING)
    if not isinstance(share, Interval):
        return Cell(f"{100 * share:.2f} %".replace("-", "−"), share)
    spread = "" if share.half_width is None else f" ± {100 * share.half_width:.2f}"
    return Cell(f"{100 * share.mean:.2f}{spread} %".replace("-", "−"), share.mean, spread=share.half_width)


def mean(value: Interval | None, form: str) -> Cell:
    """Return the mean over seeds of a value that is not a share."""
    return number(None if value is None else value.mean, form)


def numbered(notes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the notes with their marks: 1, 2, …"""
    return tuple((str(index), note) for index, note in enumerate(notes, 1))


def rows(cells: Sequence[Sequence[Cell]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(map(tuple, cells))
