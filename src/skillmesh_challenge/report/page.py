"""The report's page: one HTML file that needs no other file and no network.

`assets/page.html` is its template. All text inserted into it passes through `safe_html`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import skillmesh
from skillmesh.common.text import safe_html
from skillmesh_challenge.report.collect import Comparison
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.samples import ConfusedTasks, MethodSamples
from skillmesh_challenge.report.table import NOTHING, ReportTable

NAMED = 12
"""Largest number of tasks that are named at the top of the page."""
LONG = 40
"""Number of characters above which the text of a cell may wrap."""


@dataclass(frozen=True)
class Section:
    """A part of the page: text, tables, images, and figures (each with a folded table of its values)."""

    title: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    confused: tuple[ConfusedTasks, ...] = ()
    samples: tuple[MethodSamples, ...] = ()
    lead: tuple[str, ...] = ()
    """Sentences at the beginning."""
    notes: tuple[str, ...] = ()
    """What is not shown, and why."""
    folded: bool = False
    """Whether the section is hidden until the reader opens it."""

    @property
    def all_tables(self) -> list[ReportTable]:
        """All tables that are written as CSV."""
        return [
            *self.tables,
            *(figure.table for figure in self.figures),
            *(confused.table for confused in self.confused),
        ]

    @property
    def anchor(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def page(comparison: Comparison, sections: Sequence[Section], figures: Path) -> str:
    """Return the page as HTML; `figures` is the folder with the figures' files."""

    def svg(figure: Figure) -> str:
        return base64.b64encode((figures / f"{figure.name}.svg").read_bytes()).decode()

    environment = Environment(
        loader=PackageLoader("skillmesh_challenge.report", "assets"),
        autoescape=True,
        finalize=_safe,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        about=_about(comparison),
        notes=comparison.notes,
        sections=[section for section in sections if section.all_tables or section.notes],
        svg=svg,
        NOTHING=NOTHING,
        LONG=LONG,
    )


def _safe(value: object) -> Markup:
    """Return text escaped for the page; the output of a macro is markup already."""
    return value if isinstance(value, Markup) else Markup(safe_html(str(value)))  # noqa: S704 - it is escaped


def _about(comparison: Comparison) -> str:
    runs, methods = len(comparison.records), [family.label for family in comparison.families]
    names = list(dict.fromkeys(name for record in comparison.records for name in record.settings.names))
    tasks = f"{len(names)} {'task' if len(names) == 1 else 'tasks'}"
    tasks += f" ({', '.join(names)})" if len(names) <= NAMED else ""
    return (
        f"{runs} {'run' if runs == 1 else 'runs'} of {', '.join(methods)} on {tasks}. "
        f"Made by skillmesh {skillmesh.__version__}."
    )
