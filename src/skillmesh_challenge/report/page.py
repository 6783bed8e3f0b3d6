"""The page: one HTML file with everything inside, that needs no other file and no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

import skillmesh
from skillmesh.common.text import safe_html
from skillmesh_challenge.report.collect import Comparison
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.samples import ConfusedTasks, MethodSamples, Pair, TaskSamples, Thumbnail
from skillmesh_challenge.report.table import NOTHING, Cell, ReportTable

NAMED = 12
"""Tasks that are named at the top of the page, at most."""
GONE = "The images no longer lie where they lay when the run was made."
LONG = 40
"""Letters of a cell that may be broken into lines."""


@dataclass(frozen=True)
class Section:
    """A part of the page: words, tables, images, figures (each with the table of what it shows folded below)."""

    title: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    confused: tuple[ConfusedTasks, ...] = ()
    samples: tuple[MethodSamples, ...] = ()
    lead: tuple[str, ...] = ()
    """Sentences to begin with."""
    notes: tuple[str, ...] = ()
    """What is not shown, and why."""
    folded: bool = False
    """Whether all of it is hidden until a reader opens it."""

    @property
    def all_tables(self) -> list[ReportTable]:
        """All that are written as CSV."""
        return [
            *self.tables,
            *(figure.table for figure in self.figures),
            *(confused.table for confused in self.confused),
        ]

    @property
    def anchor(self) -> str:
        return "".join(letter if letter.isalnum() else "-" for letter in self.title.lower())


def page(comparison: Comparison, sections: Sequence[Section], figures: Path) -> str:
    """Fill the template; `figures` is where the figures' files lie."""
    shown = [section for section in sections if section.all_tables or section.notes]
    links = [f'<a href="#{section.anchor}">{safe_html(section.title)}</a>' for section in shown]
    return Template(_asset("page.html")).substitute(
        style=_asset("page.css"),
        script=_asset("page.js"),
        about=safe_html(_about(comparison)),
        links="\n".join(links),
        notes=_notes(comparison.notes),
        sections="\n".join(_section(section, figures) for section in shown),
    )


def _asset(name: str) -> str:
    return files("skillmesh_challenge.report").joinpath("assets", name).read_text(encoding="utf-8")


def _about(comparison: Comparison) -> str:
    runs, methods = len(comparison.records), [family.label for family in comparison.families]
    names = list(dict.fromkeys(name for record in comparison.records for name in record.settings.names))
    tasks = f"{len(names)} {'task' if len(names) == 1 else 'tasks'}"
    tasks += f" ({', '.join(names)})" if len(names) <= NAMED else ""
    return (
        f"{runs} {'run' if runs == 1 else 'runs'} of {', '.join(methods)} on {tasks}. "
        f"Made by skillmesh {skillmesh.__version__}."
    )


def _section(section: Section, figures: Path) -> str:
    title = f"<h2>{safe_html(section.title)}</h2>"
    parts = [f'<p class="lead">{safe_html(sentence)}</p>' for sentence in section.lead]
    parts += [_notes(section.notes)] if section.notes else []
    parts += [_table_with_head(table) for table in section.tables]
    parts += [_confused(confused) for confused in section.confused]
    parts += [_samples(samples) for samples in section.samples]
    parts += [_figure(figure, figures) for figure in section.figures]
    inside = "\n".join(parts)
    if section.folded:
        inside = f'<details class="part"><summary>{title}</summary>\n{inside}\n</details>'
    else:
        inside = f"{title}\n{inside}"
    return f'<section id="{section.anchor}">\n{inside}\n</section>'


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{safe_html(note)}</li>" for note in notes)}</ul>' if notes else ""


# Figures.


def _figure(figure: Figure, folder: Path) -> str:
    content = base64.b64encode((folder / f"{figure.name}.svg").read_bytes()).decode()
    names = [f"figures/{figure.name}.svg", f"figures/{figure.name}.png", f"tables/{figure.table.name}.csv"]
    links = " · ".join(f'<a href="{name}">{Path(name).suffix[1:].upper()}</a>' for name in names)
    return f"""<figure id="{figure.name}">
<h3>{safe_html(figure.title)}</h3>
<div class="paper"><img src="data:image/svg+xml;base64,{content}" alt="{safe_html(figure.alt)}"></div>
<figcaption>{safe_html(figure.caption)} <span class="files">{links}</span></figcaption>
<details><summary>The figures as a table</summary>{_table(figure.table)}</details>
</figure>"""


# Tables.


def _table_with_head(table: ReportTable) -> str:
    about = f'<p class="about">{safe_html(table.about)}</p>' if table.about else ""
    link = f'<span class="files"><a href="tables/{table.name}.csv">CSV</a></span>'
    return f'<div id="{table.name}"><h3>{safe_html(table.title)}</h3>{about}{_table(table)}{link}</div>'


def _table(table: ReportTable) -> str:
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.columns)
    numbers = [any(isinstance(cell.value, int | float) for cell in column) for column in columns]
    heads = "".join(
        f'<th scope="col"{" class=number" * number}><button>{safe_html(column)}</button></th>'
        for column, number in zip(table.columns, numbers, strict=True)
    )
    lines = []
    for index, row in enumerate(table.rows):
        look = ' class="ours"' if index in table.ours else ""
        lines.append(f"<tr{look}>{''.join(map(_cell, row, numbers))}</tr>")
    notes = "".join(f"<li>{_mark(mark)} {safe_html(note)}</li>" for mark, note in table.notes)
    below = f'<ul class="notes">{notes}</ul>' if notes else ""
    body = "\n".join(lines)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{below}'


def _cell(cell: Cell, among_numbers: bool) -> str:
    number = isinstance(cell.value, int | float)
    look = " number" * (number or (among_numbers and cell.text == NOTHING)) + " doubtful" * bool(cell.mark)
    look += " long" * (len(cell.text) > LONG)
    attributes = f' class="{look.strip()}"' if look else ""
    attributes += f' data-value="{cell.value}"' if number else ""
    below = f"<small>({safe_html(cell.below)})</small>" if cell.below else ""
    return f"<td{attributes}>{safe_html(cell.text)}{_mark(cell.mark)}{below}</td>"


def _mark(mark: str) -> str:
    return f"<sup>{safe_html(mark)}</sup>" if mark else ""


# Images.


def _samples(samples: MethodSamples) -> str:
    about = "Some test images answered right and wrong, squeezed into a square as the backbone sees them."
    if samples.all_tasks > len(samples.tasks):
        about += f" Of {samples.all_tasks} tasks, the {len(samples.tasks)} with the lowest accuracy."
    about += _missing(sum(task.missing for task in samples.tasks))
    tasks = "".join(map(_task_samples, samples.tasks))
    return (
        f"<div><h3>Test images, {safe_html(samples.label)}</h3>"
        f'<p class="about">{safe_html(about)}</p><div class="pairs">{tasks}</div></div>'
    )


def _task_samples(task: TaskSamples) -> str:
    head = f"<h4>{safe_html(task.task)}</h4><p>{task.right_images} of {task.images} answered right</p>"
    if task.gone:
        return f'<div class="pair">{head}<p>{safe_html(GONE)}</p></div>'
    parts = [head]
    for title, look, thumbnails in (("Right", "right", task.right), ("Wrong", "wrong", task.wrong)):
        images = "".join(map(_thumbnail, thumbnails)) or "<p>none</p>"
        parts.append(f'<h5 class="{look}">{title}</h5><div class="thumbnails">{images}</div>')
    return f'<div class="pair">{"".join(parts)}</div>'


def _missing(count: int) -> str:
    if not count:
        return ""
    images = "1 image is missing: it no longer lies where it" if count == 1 else ""
    images = images or f"{count} images are missing: they no longer lie where they"
    return f" {images} lay when the run was made."


def _confused(confused: ConfusedTasks) -> str:
    about = "The pairs with the largest share of a task's test images taken for the other, at the end."
    if any(pair.thumbnails for pair in confused.pairs):
        about += " Images squeezed into a square, as the backbone sees them; below each its class and the answer."
    about += _missing(confused.missing)
    pairs = "".join(map(_pair, confused.pairs)) or "<p>No image was taken for another task's.</p>"
    link = f'<span class="files"><a href="tables/{confused.table.name}.csv">CSV</a></span>'
    return (
        f'<div id="{confused.table.name}"><h3>{safe_html(confused.table.title)}</h3>'
        f'<p class="about">{safe_html(about)} {link}</p><div class="pairs">{pairs}</div></div>'
    )


def _pair(pair: Pair) -> str:
    images = "".join(map(_thumbnail, pair.thumbnails))
    share = f"{100 * pair.share:.1f} % ({pair.images} {'image' if pair.images == 1 else 'images'})"
    return (
        f'<div class="pair"><h4>{safe_html(pair.task)} <span>taken for</span> {safe_html(pair.taken_for)}</h4>'
        f'<p>{share}</p><div class="thumbnails">{images}</div></div>'
    )


def _thumbnail(thumbnail: Thumbnail) -> str:
    words = safe_html(thumbnail.words)
    if thumbnail.source is None:
        image = '<span class="missing">image missing</span>'
    else:
        image = f'<img class="thumbnail" src="{thumbnail.source}" alt="{words}">'
    return f'<div title="{safe_html(thumbnail.name)}">{image}<small>{words}</small></div>'
