"""Tasks made of known classes."""

from __future__ import annotations

from typing import Any

from tables import read, source, table

NAME = "composition"
BESIDE = "composed-beside"
FORMS = {
    "given": "each image by its own task's head (the task is told)",
    "blend": "**blend** (ours)",
    "stitch": "stitch: closed form between tasks, heads within",
    "closed": "closed form alone",
    "rows": "rows of our heads as they are",
}
CURVES = {
    "ours, from blend": "**ours, from blend**",
    "ours, from nothing": "ours, from nothing",
    "two, from rows": "2-norm, from the tasks' rows",
    "two, from nothing": "2-norm, from random rows",
    "infinity, from rows": "∞-norm, from the tasks' rows",
    "infinity, from nothing": "∞-norm, from random rows",
}


def without_images() -> str:
    told = read(NAME)["summary"]["without images"]
    rows = [
        [words, _interval(told[form]), f"{told[f'{form}, log-loss']['mean']:.2f}" if form != "given" else "–"]
        for form, words in FORMS.items()
    ]
    rows += [[f"{words}, no image yet", _interval(_start(name)), "–"] for name, words in _the_papers().items()]
    return f"{table('made without an image | accuracy % | log-loss', rows)}\n\n{source(NAME)}"


def epochs() -> str:
    told = read(NAME)["summary"]["epochs"]
    at = sorted({int(epoch) for curve in told.values() for epoch in curve})
    rows = [[words, *(_mean(told[name].get(str(epoch))) for epoch in at)] for name, words in CURVES.items()]
    less = read(NAME)["summary"]["ours less"]
    end = str(at[-1])
    notes = "; ".join(f"{CURVES[name]} {_interval(curve[end], signed=True)}" for name, curve in less.items())
    head = " | ".join(["accuracy % after epochs", *map(str, at)])
    line = f"Ours from blend after {end} epochs, less each other way: {notes}."
    return f"{table(head, rows)}\n\n{line}\n\n{source(NAME)}"


def _the_papers() -> dict[str, str]:
    return {name: words for name, words in CURVES.items() if name.endswith("rows")}


def _start(name: str) -> dict[str, Any]:
    start: dict[str, Any] = read(NAME)["summary"]["epochs"][name]["0"]
    return start


def _mean(found: dict[str, Any] | None) -> str:
    return "" if found is None else f"{found['mean']:.1f}"


def _interval(found: dict[str, Any], signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"{found['mean']:{sign}.1f} ({found['low']:{sign}.1f} to {found['high']:{sign}.1f})"


def beside() -> str:
    """What a composed task does to the answers of a bank that holds its sources."""
    rows = []
    for renamed, words in ((False, "by their names"), (True, "by new names")):
        told = [trial for trial in read(BESIDE)["trials"] if trial["renamed"] == renamed]
        answers = sum(trial["answers"] for trial in told)
        right = [sum(trial[f"label right {when}"] for trial in told) / answers for when in ("before", "after")]
        held = [sum(bool(trial["held"][when]) for trial in told) for when in ("after", "together", "before")]
        rows.append(
            [
                f"{len(told)} tasks, classes {words}",
                f"{min(t['classes'] for t in told)}–{max(t['classes'] for t in told)}",
                f"{100 * sum(trial['changed'] for trial in told) / answers:.2f}",
                f"{100 * right[0]:.2f}",
                f"{100 * right[1]:.2f}",
                " / ".join(map(str, held)),
            ]
        )
    head = (
        "composed | classes each | answers changed % | right class % without it | with it | "
        "held: after / together with / before its sources"
    )
    wide = sorted(
        {
            f"{trial['classes']} classes of {trial['sources']} tasks ({reason.partition(': ')[2]})"
            for trial in read(BESIDE)["trials"]
            for reason in trial["held"]["after"]
        }
    )
    held = f"Held: {'; '.join(wide)}." if wide else "None was held."
    return f"{table(head, rows)}\n\n{held}\n\n{source(BESIDE)}"
