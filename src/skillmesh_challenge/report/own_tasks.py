"""What a reader looks for first: the accuracy of each of their tasks, and its most frequent mistake."""

from __future__ import annotations

from skillmesh_challenge.entries import ClassAnswers, Mistake
from skillmesh_challenge.report.collect import Comparison, Group
from skillmesh_challenge.report.table import ReportTable, number, percent, rows, text

FIGURES = {"final": "final", "task found": "found", "task given": "given"}


def own_tasks(comparison: Comparison) -> ReportTable:
    """Return a row for each task of each method, in the order in which they were learned."""
    lines = []
    for group in comparison.shown:
        facts = {task.name: task for task in group.first.settings.tasks}
        mistakes = most_frequent_mistakes(group)
        for task in group.tasks:
            head = [text(group.label), text(task), number(len(facts[task].classes)), number(facts[task].test)]
            figures = [percent(group.at_the_end(task, name)) for name in FIGURES.values()]
            lines.append([*head, *figures, text(mistakes.get(task, "–"))])
    columns = ("run", "task", "classes", "test images", *FIGURES, "most frequent mistake")
    about = (
        "Final: right task and right class, without a task label (unless the method is given it). Task found: "
        "right task. Task given: right class when the task is given."
    )
    return ReportTable("your-tasks", "Accuracy of each task at the end", columns, rows(lines), about=about)


def in_short(group: Group) -> str:
    """Return one or two sentences: a method's final accuracy, its best task and its worst."""
    final = group.figure("final_accuracy")
    shares = {task: share.mean for task in group.tasks if (share := group.at_the_end(task, "final")) is not None}
    if final is None or not shares:
        return f"{group.label}: no final accuracy."
    label = "the task given" if group.has_task_label else "no task label"
    count = len(shares)
    average = f", on average over {count} tasks" if count > 1 else ""
    start = f"{group.label}: {_percent(final.mean)} of the test images are answered right with {label}{average}."
    best, worst = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
    if shares[best] == shares[worst]:
        return start
    return f"{start} Best: {best} ({_percent(shares[best])}); worst: {worst} ({_percent(shares[worst])})."


def most_frequent_mistakes(group: Group) -> dict[str, str]:
    """Return a description of each task's most frequent mistake, if the run kept its answers."""
    answers = group.first.answers
    descriptions = {}
    for task in answers.tasks if answers else ():
        each = [(of_class, mistake) for of_class in task.classes for mistake in of_class.mistakes]
        if each:
            of_class, mistake = max(each, key=lambda pair: pair[1].images)
            descriptions[task.task] = mistake_in_words(task.task, of_class, mistake)
    return descriptions


def mistake_in_words(task: str, of_class: ClassAnswers, mistake: Mistake) -> str:
    return f"{of_class.label} → {answer_in_words(task, mistake)} ({mistake.images} of {of_class.images} images)"


def answer_in_words(task: str, mistake: Mistake) -> str:
    """Return the class that was answered, with its task if that is not `task`."""
    return mistake.answer if mistake.taken_for == task else f"{mistake.answer} ({mistake.taken_for})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
