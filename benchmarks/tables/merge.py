"""Two teachers of one task, and tasks that go on."""

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


def tasks() -> str:
    """Final accuracy of every task in the bank, and the averages with what they lie apart from the whole."""
    r, again = read(BANK), read(TWICE)
    rows = [
        [t["task"], str(t["classes"]), str(t["images"]), *(_cell(t, name, r) for name in COLUMNS)]
        for t in r["tasks"]
    ]
    for report, suffix in ((r, ""), (again, ", every second task")):
        apart = [_apart(report, name) for name in COLUMNS]
        means = [_mean(report, name) for name in COLUMNS]
        rows.append([f"**average{suffix}**", "", "", *means])
        rows.append(["less all at once", "", "", *(f"{fmean(values):+.2f}" for values in apart)])
        rows.append(["the worst task", "", "", *(f"{min(values):+.1f}" for values in apart)])
    head = (
        "task | classes | images | all at once | one half | other half | both, not linked | **merged** | "
        "more images | more classes"
    )
    facts = f"{_facts(r)} With every second task in the bank: {_facts(again)}"
    return f"{table(head, rows)}\n\n{facts}\n\n{source(BANK, TWICE)}"


def _mean(r: dict[str, Any], name: str) -> str:
    """The average of a column; where it is about fewer tasks, with that of the whole over the same."""
    some = _cut(r, name)
    mean, whole = (f"{fmean(t[column] for t in some):.1f}" for column in (name, "whole"))
    return mean if len(some) == len(r["tasks"]) else f"{mean} (all at once {whole})"


def _cut(r: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The tasks that a column is about: those of two classes cannot be cut by classes."""
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
        f"Unquantised, merged halves differ from the whole by {exact['mean']:.0e} (means) and "
        f"{exact['scatter']:.0e} (scatter), relative to the largest number. Of {order['agents']} more agents that "
        f"took in everything in orders of their own, {order['bit_identical']} had bit-identical scores and "
        f"answers on {order['images']:,} images. Quarantine held {held} of {count} honest second teachers and "
        f"{swapped} of {count} with names moved by one class; links would join {joined} and {hijacked} of them."
    )


def _count(value: int | list[str]) -> int:
    return value if isinstance(value, int) else len(value)


def choice() -> str:
    """What the other tasks said about putting heads together."""
    found = read(CHOICE)
    rows = [_row(name, figures) for part in ("merge", "continue") for name, figures in found[part].items()]
    return f"{table('two halves, or how to go on | tasks | accuracy | log-loss', rows)}\n\n{source(CHOICE)}"


def _row(name: str, figures: dict[str, float]) -> list[str]:
    return [name, str(figures["tasks"]), f"{figures['accuracy']:.1f}", f"{figures['log_loss']:.3f}"]
