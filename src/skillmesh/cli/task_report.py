"""Results of `eval` and `learn` as tables, a JSON file and an HTML page.

The page is one self-contained HTML file; it needs no other file and no network.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from skillmesh.cli import outlet, show
from skillmesh.cli.outlet import warn_of_findings
from skillmesh.common.files import write_whole
from skillmesh.common.text import safe_html
from skillmesh.data.images import UnreadableImageError
from skillmesh.data.inputs import AnyImage, read_pixels
from skillmesh.learning.lesson import Outcome

if TYPE_CHECKING:
    from skillmesh.evaluation.evaluate import Evaluation, TaskAnswers

SIDE = 96
"""Width and height of a thumbnail, in pixels."""
PER_CLASS = 12
"""Largest number of wrong answers shown per class; the most confident ones are chosen."""


@dataclass(frozen=True)
class TaskSection:
    """The page's section on one task."""

    name: str
    figures: tuple[tuple[str, str], ...]
    """Pairs of a figure's title and its value."""
    outcome: Outcome
    images: str
    """Kind of its images: "validation" or "test"."""
    notes: tuple[str, ...] = ()
    recall: tuple[tuple[str, list[float | None]], ...] = ()
    """Further recall columns, as pairs of title and values."""


def write_report(path: Path, title: str, about: str, sections: Sequence[TaskSection]) -> None:
    """Write the page; thumbnails are made from the original image files."""
    numbered = list(enumerate(sections, 1))
    links = [f'<a href="#task-{number}">{safe_html(section.name)}</a>' for number, section in numbered]
    page = Template(_asset("task_report.html")).substitute(
        title=safe_html(title),
        style=_asset("task_report.css"),
        about=safe_html(about),
        links="\n".join(links) if len(sections) > 1 else "",
        sections="\n".join(_section(section, number) for number, section in numbered),
    )
    write_whole(path, page.encode("utf-8", "replace"))  # a file name may not be valid Unicode


def _asset(name: str) -> str:
    return files("skillmesh.cli").joinpath("assets", name).read_text(encoding="utf-8")


def _section(section: TaskSection, number: int) -> str:
    figures = "".join(
        f"<li><b>{safe_html(value)}</b><span>{safe_html(what)}</span></li>" for what, value in section.figures
    )
    notes = "".join(f"<li>{safe_html(note)}</li>" for note in section.notes)
    parts = [
        f'<section id="task-{number}">',
        f"<h2>{safe_html(section.name)}</h2>",
        f'<ul class="figures">{figures}</ul>',
        f'<ul class="notes">{notes}</ul>' if notes else "",
    ]
    if len(section.outcome):
        parts += [_matrix(section), _recall(section), _wrong(section)]
    return "\n".join([*parts, "</section>"])


def _matrix(section: TaskSection) -> str:
    """Return the confusion matrix as HTML; columns are numbered, since names do not fit above them."""
    outcome = section.outcome
    counts = outcome.matrix()
    other = bool(counts[:, -1].any())
    columns = range(len(outcome.classes) + other)
    heads = "".join(f"<th>{'other' if column == len(outcome.classes) else column + 1}</th>" for column in columns)
    rows = []
    for row, name in enumerate(outcome.classes):
        images = max(1, int(counts[row].sum()))
        cells = "".join(_cell(int(counts[row, column]), images, row == column) for column in columns)
        rows.append(f'<tr><th title="{safe_html(name)}">{row + 1} {safe_html(name)}</th>{cells}</tr>')
    about = f"Rows are the true classes of the {section.images} images, columns the answered classes."
    if other:
        about += ' "other" is a class of another task.'
    return (
        f'<h3>Confusion matrix</h3><p class="about">{safe_html(about)}</p>'
        '<div class="scroll"><table class="matrix">'
        f"<thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(count: int, images: int, right: bool) -> str:
    if not count:
        return "<td></td>"
    shade = 0.15 + 0.6 * count / images
    return f'<td style="background: rgba(var(--{"right" if right else "wrong"}), {shade:.2f})">{count}</td>'


def _recall(section: TaskSection) -> str:
    outcome = section.outcome
    columns = [("recall", outcome.recall()), *section.recall]
    heads = "".join(f'<th class="number">{safe_html(title)}</th>' for title, _ in columns)
    images = outcome.matrix().sum(axis=1)
    rows = "".join(
        f'<tr><td>{safe_html(name)}</td><td class="number">{images[row]}</td>'
        + "".join(f'<td class="number">{_percent(values[row])}</td>' for _, values in columns)
        + "</tr>"
        for row, name in enumerate(outcome.classes)
    )
    return (
        '<h3>Recall of each class</h3><div class="scroll"><table><thead><tr><th>class</th>'
        f'<th class="number">images</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _wrong(section: TaskSection) -> str:
    """Return the wrong answers as HTML."""
    outcome = section.outcome
    wrong = outcome.wrong()
    if not wrong:
        return f"<h3>Wrong answers</h3><p>None in {len(outcome)} {safe_html(section.images)} images.</p>"
    parts = [
        "<h3>Wrong answers</h3>",
        f'<p class="about">{len(wrong)} of {len(outcome)} {safe_html(section.images)} images; at most {PER_CLASS} '
        "per class are shown, the most confident first, squeezed into a square as the backbone sees them.</p>",
    ]
    shown: Counter[int] = Counter()
    images = []
    for index in wrong:
        label = int(outcome.labels[index])
        shown[label] += 1
        if shown[label] <= PER_CLASS:
            images.append(_thumbnail(outcome, index))
    return "\n".join([*parts, f'<div class="wrong">{"".join(images)}</div>'])


def _thumbnail(outcome: Outcome, index: int) -> str:
    image, answer = outcome.images[index], outcome.answer(index)
    source = _data_url(image)
    right = outcome.classes[outcome.labels[index]]
    shown = (
        '<div class="missing">image missing</div>'
        if source is None
        else f'<img src="{source}" alt="{safe_html(right)}, answered {safe_html(answer)}">'
    )
    return (
        f"<figure>{shown}<figcaption>{safe_html(right)} → {safe_html(answer)} ({outcome.confidence[index]:.0%})"
        f"<span>{safe_html(image.name)}</span></figcaption></figure>"
    )


def _data_url(image: AnyImage) -> str | None:
    from PIL import Image

    try:
        pixels = read_pixels(image, SIDE)
    except UnreadableImageError:  # the file was moved or changed since
        return None
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


# Results of `eval`: a table, recall per class, a page and a file.

FIGURES = {
    "task_given_accuracy": "task given",
    "task_found_accuracy": "task found",
    "final_accuracy": "final",
    "strict_accuracy": "final, not answered is wrong",
    "known_unanswered": "not answered",
}
"""Titles of the figures that `eval` measures for a task, by their JSON keys."""
COLUMNS = ("task given", "task found", "final", "final*", "not answered")
"""Shorter titles of the same figures, for a table that fits a terminal."""
VIEW_FIGURES = dict(zip(FIGURES, COLUMNS, strict=True)) | {
    "confidence_error": "confidence error",
    "hidden_unanswered": "hidden, not answered",
}
LEGEND = "final*: like final, but an image that is not answered (unknown or not sure) counts as wrong"
GRID = 12
"""Largest number of classes for which a confusion matrix is printed; with more it does not fit a terminal."""


def write_json(path: Path, facts: dict[str, Any]) -> None:
    write_whole(path, (show.json_text(facts) + "\n").encode())


def print_evaluation(facts: dict[str, Any], by_class: Evaluation | None = None) -> None:
    """Print the checks, a row for each task and, if `by_class` is given, the recall of every class."""
    warn_of_findings([f"check: {check['task']}: {check['text']}" for check in facts["checks"]])
    rows = show.table(None, "task", ">classes", *(f">{title}" for title in COLUMNS), ">module")
    for t in facts["tasks"]:
        figures = [show.percent(t[key]) for key in FIGURES]
        rows.add_row(t["task"], str(t["classes"]), *figures, show.kilobytes(t["module_bytes"]))
    for t in facts["hidden"]:
        rows.add_row(f"{t['task']} (never learned)", "", "", "", "", "", show.percent(t["unanswered"]), "")
    if facts["tasks"]:
        means = [show.percent(facts[key]) for key in FIGURES]
        rows.add_row(show.bold("mean"), "", *means, show.kilobytes(facts["module_bytes"]))
    show.console.print(rows)
    if spread := facts["intervals"]["final_accuracy"]:
        low, high = map(show.percent, spread)
        outlet.line(f"mean final accuracy over such tasks: {low} to {high} (95 % interval)")
    outlet.line(LEGEND)
    left_out = sum(t["left_out"] for t in facts["tasks"])
    if left_out:
        images = left_out + sum(t["test_images"] for t in facts["tasks"])
        outlet.line(f"{left_out:,} of {images:,} test images are left out of all figures; see the checks for why")
    if facts["tasks"]:
        outlet.line(f"anchor size {show.kilobytes(facts['anchor_bytes'])} per task")
        outlet.line(f"learned in {facts['learn_seconds']:.1f} s, answered in {facts['answer_seconds']:.1f} s")
        outlet.line(f"confidence differs from accuracy by {show.percent(facts['confidence_error'])} on average")
    if facts.get("mixed_confidence_error") is not None:
        outlet.line(
            f"if half of all images are of tasks never learned, by {show.percent(facts['mixed_confidence_error'])}"
        )
    if "corrective" in facts:
        _print_corrections(facts["corrective"])
    if "views" in facts:
        _print_views(facts["views"], facts["views_mean"])
    if by_class is not None:
        _print_classes(by_class)


def _print_corrections(corrective: dict[str, Any]) -> None:
    for least, at in corrective["thresholds"].items():
        outlet.line(
            f"final accuracy if names of similarity {least} or more count as equal: "
            f"{show.percent(corrective['final_accuracy'])} → {show.percent(at['final_accuracy'])}, "
            f"{at['images']} images"
        )
    rows = show.table(None, "task", "class", "answered task", "answered class", ">score", ">images")
    for c in corrective["corrections"]:
        rows.add_row(c["task"], c["label"], c["said_task"], c["said"], f"{c['score']:.3f}", str(c["images"]))
    show.console.print(rows if corrective["corrections"] else "no answers were corrected")


def _print_views(views: Sequence[dict[str, Any]], means: dict[str, Any]) -> None:
    """Print the means over tasks for each view of the test images, and the means over views."""
    columns = VIEW_FIGURES if means["hidden_unanswered"] is not None else dict(list(VIEW_FIGURES.items())[:-1])
    rows = show.table(
        "views of the test images, means over tasks", "view", *(f">{head}" for head in columns.values())
    )
    for row in (*views, {"view": "mean"} | means):
        rows.add_row(row["view"], *(show.percent(row[key]) for key in columns))
    show.console.print()
    show.console.print(rows)


def _print_classes(result: Evaluation) -> None:
    """Print each class's recall and wrong answers; for few classes also the confusion matrix."""
    for answers in result.answers:
        classes = answers.class_facts()
        rows = show.table(answers.task, "class", ">images", ">task given", ">final", "+answered instead")
        for facts in classes:
            recall = (facts["recall_task_given"], facts["recall"])
            rows.add_row(facts["class"], str(facts["images"]), *map(show.percent, recall), _instead(facts))
        show.console.print()
        show.console.print(rows)
        if len(classes) <= GRID:
            show.console.print()
            show.console.print(_grid(classes))


def _grid(classes: Sequence[dict[str, Any]]) -> show.Table:
    """Return the confusion matrix as a table: a row for each true class, a numbered column for each answer."""
    numbers = [str(number) for number in range(1, len(classes) + 1)]
    rows = show.table(None, "true class, answers →", *(f">{number}" for number in numbers), ">other task")
    for number, facts in zip(numbers, classes, strict=True):
        given = [str(facts["given"].get(other["class"], 0) or "·") for other in classes]
        rows.add_row(f"{number} {facts['class']}", *given, str(facts["given_other_task"] or "·"))
    return rows


def _instead(facts: dict[str, Any]) -> str:
    others = {name: count for name, count in facts["given"].items() if name != facts["class"]}
    words = [f"{name} {count}" for name, count in sorted(others.items(), key=lambda item: (-item[1], item[0]))]
    if facts["given_other_task"]:
        words.append(f"another task {facts['given_other_task']}")
    return ", ".join(words)


def write_page(path: Path, result: Evaluation, facts: dict[str, Any]) -> None:
    """Write the HTML page with every task's figures and wrong answers on its test images."""
    answers = {each.task: each for each in result.answers}
    sections = [_section_of(task, answers[task["task"]], facts) for task in facts["tasks"]]
    origin = facts["provenance"]
    about = f"{origin['command']} · skillmesh {origin['version']} · seed {origin['seed']} · {origin['date']}"
    title = f"Evaluation of {len(sections)} tasks" if len(sections) != 1 else f"Evaluation of {sections[0].name}"
    write_report(path, title, about, sections)


def _section_of(task: dict[str, Any], answers: TaskAnswers, facts: dict[str, Any]) -> TaskSection:
    figures = [(title, show.percent(task[key])) for key, title in FIGURES.items()]
    figures += [("test images", f"{task['test_images']:,}"), ("module", show.kilobytes(task["module_bytes"]))]
    notes = tuple(check["text"] for check in facts["checks"] if check["task"] == task["task"])
    recall = (("recall, task given", answers.given.recall()),)
    return TaskSection(task["task"], tuple(figures), answers.final, "test", notes, recall)
