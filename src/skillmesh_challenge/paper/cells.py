"""Cells of the paper's tables: the printed figure, the formula's result, and an assumption that explains it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from skillmesh_challenge.paper.figures import PaperFigure, Range

Verdict = Literal["agrees", "explained", "no explanation", "no formula", "measured"]
Key = tuple[str, str]
"""Row and column of a cell."""


@dataclass(frozen=True)
class Printed:
    """A cell as printed in the paper."""

    row: str
    column: str
    figure: PaperFigure
    place: str


@dataclass(frozen=True)
class Ours:
    """A cell recalculated by the paper's formula from the paper's inputs."""

    value: Range | None = None
    """Result of the formula; None if the paper states no formula."""
    formula: str = ""
    reached: Range | None = None
    """Result under our assumption instead."""
    assumption: str = ""
    remark: str = ""


@dataclass(frozen=True)
class PaperCell:
    """A printed cell and our recalculation of it."""

    printed: Printed
    ours: Ours

    @property
    def verdict(self) -> Verdict:
        if self.printed.column == "average accuracy":
            return "measured"
        if self.ours.value is not None and self.ours.value.meets(self.printed.figure.range):
            return "agrees"
        if self.ours.reached is not None and self.ours.reached.meets(self.printed.figure.range):
            return "explained"
        return "no formula" if self.ours.value is None else "no explanation"

    @property
    def note(self) -> str:
        """Assumption and remark as one text; empty if there are none."""
        return ". ".join(part for part in (self.ours.assumption, self.ours.remark) if part)

    def summary(self) -> dict[str, Any]:
        figure = self.printed.figure
        return {
            "row": self.printed.row,
            "column": self.printed.column,
            "place": self.printed.place,
            "printed": figure.text,
            "ours": None if self.ours.value is None else figure.like(self.ours.value),
            "formula": self.ours.formula,
            "verdict": self.verdict,
            "assumption": self.ours.assumption,
            "reached": None if self.ours.reached is None else figure.like(self.ours.reached),
            "remark": self.ours.remark,
        }


def printed(table: str) -> list[Printed]:
    """Return the cells of one of the paper's tables, in its order."""
    lines = files("skillmesh_challenge.paper").joinpath("printed.csv").read_text(encoding="utf-8").splitlines()
    return [
        Printed(line["row"], line["column"], PaperFigure(line["printed"]), line["place"])
        for line in csv.DictReader(lines)
        if line["table"] == table
    ]


def printed_ranges(table: str) -> dict[Key, Range]:
    return {(cell.row, cell.column): cell.figure.range for cell in printed(table)}


def cells(table: str, ours: Mapping[Key, Ours]) -> list[PaperCell]:
    """Return every printed cell with our recalculation; cells without one have only the printed figure."""
    return [PaperCell(cell, ours.get((cell.row, cell.column), Ours())) for cell in printed(table)]
