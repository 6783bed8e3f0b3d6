"""The page: one HTML file with everything inside, that needs no other file and no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import skillmesh
from skillmesh.challenge.report.collect import Comparison
from skillmesh.challenge.report.figure import Figure
from skillmesh.challenge.report.samples import ConfusedTasks, Pair, Thumbnail
from skillmesh.challenge.report.table import NOTHING, Cell, Table

LONG = 40
"""Letters of a cell that may be broken into lines."""


@dataclass(frozen=True)
class Section:
    """A part of the page: tables first, then figures, each with the table of what it shows folded below."""

    title: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    confused: tuple[ConfusedTasks, ...] = ()

    @property
    def all_tables(self) -> list[Table]:
        """All that are written as CSV."""
        return [
            *self.tables,
            *(figure.table for figure in self.figures),
            *(confused.table for confused in self.confused),
        ]

    @property
    def anchor(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def page(comparison: Comparison, sections: Sequence[Section], notes: Sequence[str], figures: Path) -> str:
    """Fill the template; `figures` is where the figures' files lie."""
    shown = [section for section in sections if section.all_tables]
    links = [f'<a href="#{section.anchor}">{escape(section.title)}</a>' for section in shown]
    return Template(_asset("page.html")).substitute(
        style=_asset("page.css"),
        script=_asset("page.js"),
        about=escape(_about(comparison)),
        links="\n".join(links),
        notes="".join(f"<li>{escape(note)}</li>" for note in notes),
        sections="\n".join(_section(section, figures) for section in shown),
    )


def _asset(name: str) -> str:
    return files("skillmesh.challenge.report").joinpath("assets", name).read_text(encoding="utf-8")


def _about(comparison: Comparison) -> str:
    runs, methods = len(comparison.records), [family.label for family in comparison.families]
    tasks = sorted({len(record.settings.tasks) for record in comparison.records})
    return (
        f"{runs} {'run' if runs == 1 else 'runs'} of {', '.join(methods)} on {' or '.join(map(str, tasks))} "
        f"tasks. Made by skillmesh {skillmesh.__version__}."
    )


def _section(section: Section, figures: Path) -> str:
    parts = [f'<section id="{section.anchor}">', f"<h2>{escape(section.title)}</h2>"]
    parts += [_table_with_head(table) for table in section.tables]
    parts += [_figure(figure, figures) for figure in section.figures]
    parts += [_confused(confused) for confused in section.confused]
    return "\n".join([*parts, "</section>"])


# Figures.


def _figure(figure: Figure, folder: Path) -> str:
    content = base64.b64encode((folder / f"{figure.name}.svg").read_bytes()).decode()
    names = [f"figures/{figure.name}.svg", f"figures/{figure.name}.png", f"tables/{figure.table.name}.csv"]
    links = " · ".join(f'<a href="{name}">{Path(name).suffix[1:].upper()}</a>' for name in names)
    return f"""<figure id="{figure.name}">
<h3>{escape(figure.title)}</h3>
<div class="paper"><img src="data:image/svg+xml;base64,{content}" alt="{escape(figure.alt)}"></div>
<figcaption>{escape(figure.caption)} <span class="files">{links}</span></figcaption>
<details><summary>The figures as a table</summary>{_table(figure.table)}</details>
</figure>"""


# Tables.


def _table_with_head(table: Table) -> str:
    about = f'<p class="about">{escape(table.about)}</p>' if table.about else ""
    link = f'<span class="files"><a href="tables/{table.name}.csv">CSV</a></span>'
    return f'<div id="{table.name}"><h3>{escape(table.title)}</h3>{about}{_table(table)}{link}</div>'


def _table(table: Table) -> str:
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
    numbers = [any(isinstance(cell.value, int | float) for cell in column) for column in columns]
    heads = "".join(
        f'<th scope="col"{" class=number" * number}><button>{escape(column)}</button></th>'
        for column, number in zip(table.columns, numbers, strict=True)
    )
    lines = []
    for index, row in enumerate(table.rows):
        look = ' class="ours"' if index in table.ours else ""
        lines.append(f"<tr{look}>{''.join(map(_cell, row))}</tr>")
    notes = "".join(f"<li>{_mark(mark)} {escape(note)}</li>" for mark, note in table.notes)
    below = f'<ul class="notes">{notes}</ul>' if notes else ""
    body = "\n".join(lines)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{below}'


def _cell(cell: Cell) -> str:
    number = isinstance(cell.value, int | float)
    look = " number" * (number or cell.text == NOTHING) + " doubtful" * bool(cell.mark)
    look += " long" * (len(cell.text) > LONG)
    attributes = f' class="{look.strip()}"' if look else ""
    attributes += f' data-value="{cell.value}"' if number else ""
    below = f"<small>({escape(cell.below)})</small>" if cell.below else ""
    return f"<td{attributes}>{escape(cell.text)}{_mark(cell.mark)}{below}</td>"


def _mark(mark: str) -> str:
    return f"<sup>{escape(mark)}</sup>" if mark else ""


# Images of confused tasks.


def _confused(confused: ConfusedTasks) -> str:
    about = "The pairs with the largest share of a task's test images taken for the other, at the end."
    if any(pair.thumbnails for pair in confused.pairs):
        about += " Images squeezed into a square, as the backbone sees them; below each its class and the answer."
    if confused.missing:
        about += (
            f" {confused.missing} images are missing: they no longer lie where they lay when the run was made."
        )
    pairs = "".join(map(_pair, confused.pairs)) or "<p>No image was taken for another task's.</p>"
    link = f'<span class="files"><a href="tables/{confused.table.name}.csv">CSV</a></span>'
    return (
        f'<div id="{confused.table.name}"><h3>{escape(confused.table.title)}</h3>'
        f'<p class="about">{escape(about)} {link}</p><div class="pairs">{pairs}</div></div>'
    )


def _pair(pair: Pair) -> str:
    images = "".join(map(_thumbnail, pair.thumbnails))
    share = f"{100 * pair.share:.1f} % ({pair.images} {'image' if pair.images == 1 else 'images'})"
    return (
        f'<div class="pair"><h4>{escape(pair.task)} <span>taken for</span> {escape(pair.taken_for)}</h4>'
        f'<p>{share}</p><div class="thumbnails">{images}</div></div>'
    )


def _thumbnail(thumbnail: Thumbnail) -> str:
    told = f"{thumbnail.label} → {thumbnail.answer}"
    if thumbnail.source is None:
        image = '<span class="missing">image missing</span>'
    else:
        image = f'<img class="thumbnail" src="{thumbnail.source}" alt="{escape(told)}">'
    return f'<div title="{escape(thumbnail.name)}">{image}<small>{escape(told)}</small></div>'
