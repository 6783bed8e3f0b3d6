"""A figure of the report: drawn on demand, saved as SVG and PNG, with a table of its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skillmesh.common.files import writing
from skillmesh_challenge.report.style import drawing
from skillmesh_challenge.report.table import ReportTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PNG_DPI = 200


@dataclass(frozen=True)
class Figure:
    """A figure; its files are named after `name`."""

    name: str
    title: str
    caption: str
    """What it shows, and how to read it."""
    alt: str
    """Description for readers who cannot see the figure."""
    draw: Callable[[], Canvas]
    table: ReportTable

    def write(self, folder: Path) -> list[Path]:
        """Draw and save the figure; the same runs give the same SVG, byte for byte."""
        svg, png = folder / f"{self.name}.svg", folder / f"{self.name}.png"
        with drawing():
            drawn = self.draw()
            for _ in range(2):  # the first layout does not know the size of the labels yet
                drawn.draw_without_rendering()
            with writing(svg, sync=False) as file:
                drawn.savefig(file, format="svg", metadata={"Date": None})
            with writing(png, sync=False) as file:
                drawn.savefig(file, format="png", dpi=PNG_DPI, metadata={"Software": "skillmesh"})
        return [svg, png]
