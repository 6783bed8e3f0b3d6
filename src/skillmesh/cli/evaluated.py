"""How the results of `eval` are shown: a table, recall of every class, a page, a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillmesh.cli import outlet, show
from skillmesh.cli.facts import warn_of_findings
from skillmesh.common.files import write_whole

if TYPE_CHECKING:
    from skillmesh.cli.task_report import TaskSection
    from skillmesh.evaluation.evaluate import Evaluation, TaskAnswers

FIGURES = {
    "task_given_accuracy": "task given",
    "task_found_accuracy": "task found",
    "final_accuracy": "final",
    "strict_accuracy": "final, unknown is wrong",
    "known_unknown": "unknown",
}
"""What `eval` measures of a task, and how it is called."""
COLUMNS = ("task given", "task found", "final", "final*", "unknown")
"""The same in a table that fits a terminal."""
LEGEND = 'final*: the same, an answer "unknown" counted as wrong'
GRID = 12
"""Classes up to which a confusion matrix fits a terminal; of more, each class tells what was answered instead."""


def write_json(path: Path, facts: dict[str, Any]) -> None:
    write_whole(path, (show.json_text(facts) + "\n").encode())


def print_evaluation(facts: dict[str, Any], by_class: Evaluation | None = None) -> None:
    """Print the checks, a row for each task, and where it is given, `by_class`'s recall of every class."""
    warn_of_findings([f"check: {check['task']}: {check['text']}" for check in facts["checks"]])
    rows = show.table(None, "task", ">classes", *(f">{title}" for title in COLUMNS), ">module")
    for t in facts["tasks"]:
        figures = [show.percent(t[key]) for key in FIGURES]
        rows.add_row(t["task"], str(t["classes"]), *figures, show.kilobytes(t["module_bytes"]))
    for t in facts["hidden"]:
        rows.add_row(f"{t['task']} (never learned)", "", "", "", "", "", show.percent(t["unknown"]), "")
    if facts["tasks"]:
        means = [show.percent(facts[key]) for key in FIGURES]
        rows.add_row(show.bold("mean"), "", *means, show.kilobytes(facts["module_bytes"]))
    show.console.print(rows)
    outlet.line(LEGEND)
    left_out = sum(t["left_out"] for t in facts["tasks"])
    if left_out:
        images = left_out + sum(t["test_images"] for t in facts["tasks"])
        outlet.line(f"{left_out:,} of {images:,} test images left out of all figures: see the checks")
    if facts["tasks"]:
        outlet.line(f"anchor {show.kilobytes(facts['anchor_bytes'])} per task")
        outlet.line(f"learned in {facts['learn_seconds']:.1f} s, answered in {facts['answer_seconds']:.1f} s")
        outlet.line(f"confidence is off by {show.percent(facts['confidence_error'])} on average")
    if "corrective" in facts:
        _print_corrections(facts["corrective"])
    if by_class is not None:
        _print_classes(by_class)


def _print_corrections(found: dict[str, Any]) -> None:
    for least, at in found["thresholds"].items():
        outlet.line(
            f"equivalent names count from {least} on: {show.percent(found['final_accuracy'])} → "
            f"{show.percent(at['final_accuracy'])}, {at['images']} images"
        )
    rows = show.table(None, "task", "class", "answered by", "with", ">score", ">images")
    for c in found["corrections"]:
        rows.add_row(c["task"], c["label"], c["said_task"], c["said"], f"{c['score']:.3f}", str(c["images"]))
    show.console.print(rows if found["corrections"] else "nothing was corrected")


def _print_classes(result: Evaluation) -> None:
    """Print recall of every class, and the confusion matrix: as a grid, or without its zeros."""
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
    """Lay out the confusion matrix: a row for the right class, a column for each answer by its number."""
    numbers = [str(number) for number in range(1, len(classes) + 1)]
    rows = show.table(None, "right class, answers →", *(f">{number}" for number in numbers), ">other task")
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
    """Write the report: the figures and wrong answers of every task on its test images."""
    from skillmesh.cli.task_report import write_report

    answers = {each.task: each for each in result.answers}
    sections = [_section(task, answers[task["task"]], facts) for task in facts["tasks"]]
    origin = facts["provenance"]
    about = f"{origin['command']} · skillmesh {origin['version']} · seed {origin['seed']} · {origin['date']}"
    title = f"{len(sections)} tasks, measured" if len(sections) != 1 else f"{sections[0].name}, measured"
    write_report(path, title, about, sections)


def _section(task: dict[str, Any], answers: TaskAnswers, facts: dict[str, Any]) -> TaskSection:
    from skillmesh.cli.task_report import TaskSection

    figures = [(title, show.percent(task[key])) for key, title in FIGURES.items()]
    figures += [("test images", f"{task['test_images']:,}"), ("module", show.kilobytes(task["module_bytes"]))]
    notes = tuple(check["text"] for check in facts["checks"] if check["task"] == task["task"])
    recall = (("recall, task given", answers.given.recall()),)
    return TaskSection(task["task"], tuple(figures), answers.final, "test", notes, recall)
