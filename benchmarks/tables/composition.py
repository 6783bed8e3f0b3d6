"""Tasks made of known classes."""

from __future__ import annotations

from typing import Any

from tables import read, source, table

NAME = "composition"
BESIDE = "composed-beside"
FORMS = {
    "given": "each task's own head, task given",
    "blend": "**blend** (used): closed form between tasks, half closed form and half heads within",
    "stitch": "closed form between tasks, heads alone within",
    "closed": "closed form alone",
    "rows": "rows of our heads, put side by side",
}
CURVES = {
    "ours, from blend": "**ours, from the composed head**",
    "ours, from nothing": "ours, cold start",
    "two, from rows": "2-norm, from the tasks' rows",
    "two, from nothing": "2-norm, from random rows",
    "infinity, from rows": "∞-norm, from the tasks' rows",
    "infinity, from nothing": "∞-norm, from random rows",
}


def without_images() -> str:
    """Return accuracy and log-loss of heads composed without images."""
    told = read(NAME)["summary"]["without images"]
    rows = [
        [words, _interval(told[form]), f"{told[f'{form}, log-loss']['mean']:.2f}" if form != "given" else "–"]
        for form, words in FORMS.items()
    ]
    rows += [
        [f"the paper's {words}, epoch 0", _interval(_start(name)), "–"] for name, words in _the_papers().items()
    ]
    return f"{table('composed without images | accuracy % (interval) | log-loss', rows)}\n\n{source(NAME)}"


def short() -> str:
    """Return the headline: composed without images, and trained with images for 30 epochs."""
    results = read(NAME)
    summary = results["summary"]
    told, trained = summary["without images"], summary["epochs"]
    rows = [
        ["own heads, task given", _mean(told["given"])],
        ["composed without images", _mean(told["blend"])],
        ["rows side by side", _mean(told["rows"])],
        ["composed, then 30 epochs", _mean(trained["ours, from blend"]["30"])],
        ["paper's 2-norm, 30 epochs", _mean(trained["two, from rows"]["30"])],
    ]
    head = f"{len(results['pairs'])} pairs of tasks | accuracy %"
    return f"{table(head, rows)}\n\n{source(NAME)}"


def epochs() -> str:
    """Return accuracy by epochs of training with images."""
    told = read(NAME)["summary"]["epochs"]
    at = sorted({int(epoch) for curve in told.values() for epoch in curve})
    rows = [[words, *(_mean(told[name].get(str(epoch))) for epoch in at)] for name, words in CURVES.items()]
    less = read(NAME)["summary"]["ours less"]
    end = str(at[-1])
    notes = "; ".join(f"{CURVES[name]} {_interval(curve[end], signed=True)}" for name, curve in less.items())
    head = " | ".join(["accuracy % by epochs of training", *map(str, at)])
    line = f"After {end} epochs, ours from the composed head differs in points from: {notes}."
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
    """Return how composed tasks change the answers of a bank that holds their sources."""
    rows = []
    for renamed, words in ((False, "with their old names"), (True, "with new names")):
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
        "composed tasks | classes each | answers changed % | right class % without | with | "
        "held if imported after / with / before their sources"
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
