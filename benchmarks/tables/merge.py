"""Two teachers of one task, and tasks extended with images or classes."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from tables import read, source, table

BANK, TWICE, CHOICE = "merge", "merge-20", "merge-choice"
COLUMNS = (
    "whole",
    "half",
    "other half",
    "both, not linked",
    "merged",
    "half the images, then the others",
    "half the classes, then the others",
)
CHOICES = {
    "whole": "all images at once (reference)",
    "half": "one half alone",
    "new images alone, around the old head": "fit to new images only, prior at the old head",
    "both heads and anchor, no fit": "combination of both heads and the anchor, no fit",
    "what the kept images would choose": "chosen by the kept validation images",
}
PRIORS = {
    "around nothing": "prior at zero",
    "around the old head": "prior at the old head",
    "around both heads and anchor": "prior at the combination",
}
HEADLINE = {
    "half": "one teacher, half the images",
    "both, not linked": "two teachers, not merged",
    "merged": "two teachers, **merged**",
    "half the images, then the others": "half, extended with images",
    "half the classes, then the others": "half, extended with classes",
}


def tasks() -> str:
    """Return the final accuracy of every task, the averages, and the differences from learning all at once."""
    r, again = read(BANK), read(TWICE)
    rows = [
        [t["task"], str(t["classes"]), str(t["images"]), *(_cell(t, name, r) for name in COLUMNS)]
        for t in r["tasks"]
    ]
    for report, name in ((r, "average"), (again, "average, every second task")):
        apart = [_apart(report, column) for column in COLUMNS]
        means = [_mean(report, column) for column in COLUMNS]
        rows.append([f"**{name}**", "", "", *means])
        rows.append(["difference from all at once", "", "", *(f"{fmean(values):+.2f}" for values in apart)])
        rows.append(["difference, worst task", "", "", *(f"{min(values):+.1f}" for values in apart)])
    head = (
        "task | classes | images | all at once | half the images | other half | both, not merged | **merged** | "
        "extended with images | extended with classes"
    )
    facts = f"Every fourth task: {_facts(r)}\n\nEvery second task: {_facts(again)}"
    return f"{table(head, rows)}\n\n{facts}\n\n{source(BANK, TWICE)}"


def _mean(r: dict[str, Any], name: str) -> str:
    """Return the average of a column; if it covers fewer tasks, with `whole` averaged over the same tasks."""
    covered = _cut(r, name)
    mean, whole = (f"{fmean(t[column] for t in covered):.1f}" for column in (name, "whole"))
    return mean if len(covered) == len(r["tasks"]) else f"{mean} (all at once {whole})"


def _cut(r: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the tasks that a column covers: tasks of two classes cannot be split by classes."""
    return [t for t in r["tasks"] if name != COLUMNS[-1] or t["task"] in r["classes_cut"]]


def _apart(r: dict[str, Any], name: str) -> list[float]:
    return [t[name] - t["whole"] for t in _cut(r, name)]


def _cell(task: dict[str, Any], name: str, r: dict[str, Any]) -> str:
    return f"{task[name]:.1f}" if task in _cut(r, name) else "–"


def _facts(r: dict[str, Any]) -> str:
    order, exact, tried = r["any_order"], r["exactness"], r["second_teachers"]
    held, swapped, count, joined, hijacked = (
        sum(_count(one[name]) for one in tried)
        for name in ("honest_held", "swapped_held", "tried", "honest_links", "swapped_links")
    )
    return (
        f"without rounding, merged halves differ from the whole by {exact['mean']:.0e} (means) and "
        f"{exact['scatter']:.0e} (scatter), relative to the largest value. {order['agents']} more agents imported "
        f"all modules, each in another order; {order['bit_identical']} had bit-identical scores and answers on "
        f"{order['images']:,} images. Quarantine held {held} of {count} honest second teachers, and {swapped} of "
        f"{count} whose class names were shifted by one; links would merge {joined} and {hijacked} of them."
    )


def _count(value: int | list[str]) -> int:
    return value if isinstance(value, int) else len(value)


def short() -> str:
    """Return the headline: differences from learning all images at once, in points of final accuracy."""
    reports = read(BANK), read(TWICE)
    rows = [[words, *(f"{fmean(_apart(r, name)):+.2f}" for r in reports)] for name, words in HEADLINE.items()]
    head = " | ".join(["points against all at once", *(f"{len(r['tasks'])} tasks" for r in reports)])
    return f"{table(head, rows)}\n\n{source(BANK, TWICE)}"


def choice() -> str:
    """Return how well each way of combining heads did on the other tasks."""
    found = read(CHOICE)
    rows = [_row(name, figures) for part in ("merge", "continue") for name, figures in found[part].items()]
    return f"{table('way to combine heads | tasks | accuracy % | log-loss', rows)}\n\n{source(CHOICE)}"


def _row(name: str, figures: dict[str, float]) -> list[str]:
    return [_words(name), str(figures["tasks"]), f"{figures['accuracy']:.1f}", f"{figures['log_loss']:.3f}"]


def _words(name: str) -> str:
    """Return the words for a name in the results."""
    kind, _, way = name.rpartition(": ")
    if way.endswith(" heads"):
        way = f"weight of the heads {way.removesuffix(' heads')}"
    for prior, words in PRIORS.items():
        if way.startswith(f"{prior},"):
            way = way.replace(prior, words)
    return f"{f'more {kind}' if kind else 'two halves'}: {CHOICES.get(way, way)}"
