"""Errors by class: the recall of each class, and which classes of a task are confused."""

from __future__ import annotations

from dataclasses import dataclass

from skillmesh_challenge.entries import ClassAnswers, EntryAnswers
from skillmesh_challenge.report.collect import Comparison, Group
from skillmesh_challenge.report.heat import slug
from skillmesh_challenge.report.own_tasks import answer_in_words
from skillmesh_challenge.report.table import Cell, ReportTable, number, percent, rows, text

PAIRS = 15
"""Largest number of pairs of confused classes that are listed."""


@dataclass(frozen=True)
class ClassPair:
    """Two classes of one task that are confused; the first is taken for the second at least as often."""

    task: str
    first: ClassAnswers
    second: ClassAnswers
    forward: int
    """Number of images of the first class that were taken for the second."""
    backward: int
    """Number of images of the second class that were taken for the first."""

    @property
    def images(self) -> int:
        return self.forward + self.backward

    @property
    def share(self) -> float:
        """Share of both classes' test images that were confused."""
        return self.images / (self.first.images + self.second.images)


def class_tables(comparison: Comparison) -> list[ReportTable]:
    """Return two tables for each method whose run kept its answers: all classes, and the most confused pairs."""
    tables = []
    for group in comparison.shown:
        if group.first.answers is not None:
            tables += [_recall(group, group.first.answers), _pairs(group, group.first.answers)]
    return [table for table in tables if table.rows]


def missing_answers(comparison: Comparison) -> str:
    """Return a note that names the methods whose runs kept no answers, and what to do; empty if all did."""
    lacking = [group.label for group in comparison.shown if group.first.answers is None]
    if not lacking:
        return ""
    return (
        f"No errors by class and no sample images for {', '.join(lacking)}: the run has no answers.json. For a "
        "run of an earlier release, repeat the command that made it: it adds the file and learns nothing again. "
        "Baselines keep no answers."
    )


def _recall(group: Group, answers: EntryAnswers) -> ReportTable:
    lines: list[tuple[float, list[Cell]]] = []
    for task in answers.tasks:
        for each in task.classes:
            inside = sum(mistake.images for mistake in each.mistakes if mistake.taken_for == task.task)
            outside = each.images - each.right - inside
            often = each.mistakes[0] if each.mistakes else None
            words = f"{answer_in_words(task.task, often)}, {often.images}" if often else "–"
            share = each.right / each.images if each.images else None
            figures = [number(each.images), percent(share), number(inside), number(outside)]
            row = [text(task.task), text(each.label), *figures, text(words)]
            lines.append((2.0 if share is None else share, row))
    lines.sort(key=lambda item: item[0])
    title = f"Recall of every class, {group.label}"
    about = (
        "Recall: share of a class's test images that get the right task and class at the end, the lowest "
        "first. Wrong answers are counted by whether they name another class of the same task, or another task."
    ) + _seed_note(group)
    columns = ("task", "class", "test images", "recall", "other class", "other task", "most often taken for")
    return ReportTable(
        f"classes-{slug(group.label)}", title, columns, rows([row for _, row in lines]), about=about
    )


def _pairs(group: Group, answers: EntryAnswers) -> ReportTable:
    cells = [
        [
            text(pair.task),
            text(pair.first.label),
            text(pair.second.label),
            number(pair.forward),
            number(pair.backward),
            percent(pair.share),
        ]
        for pair in confused_classes(answers)[:PAIRS]
    ]
    title = f"Classes of one task that {group.label} confuses most"
    about = (
        "Pairs of classes with the most images taken for each other, counted where the task was found. The share "
        "is of both classes' test images."
    )
    columns = ("task", "class", "taken for", "images", "the other way round", "share confused")
    return ReportTable(
        f"class-pairs-{slug(group.label)}", title, columns, rows(cells), about=about + _seed_note(group)
    )


def confused_classes(answers: EntryAnswers) -> list[ClassPair]:
    """Return all pairs of classes of one task that were confused, the largest number of images first."""
    pairs = []
    for task in answers.tasks:
        counts = {
            (each.label, mistake.answer): mistake.images
            for each in task.classes
            for mistake in each.mistakes
            if mistake.taken_for == task.task
        }
        for at, first in enumerate(task.classes):
            for second in task.classes[at + 1 :]:
                forward = counts.get((first.label, second.label), 0)
                backward = counts.get((second.label, first.label), 0)
                if forward >= backward and forward:
                    pairs.append(ClassPair(task.task, first, second, forward, backward))
                elif backward:
                    pairs.append(ClassPair(task.task, second, first, backward, forward))
    return sorted(pairs, key=lambda pair: (-pair.images, -pair.share, pair.task))


def _seed_note(group: Group) -> str:
    return f" From the run with seed {group.first.settings.seed}." if len(group.records) > 1 else ""
