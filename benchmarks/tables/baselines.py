"""What baselines tried when they were tuned, and how they did beside ours."""

from __future__ import annotations

from math import prod
from statistics import fmean
from typing import Any

from skillmesh_challenge.paper.single import single_cells
from skillmesh_challenge.report.paper_tables import row_of
from tables import percent, read, source, table

OURS = ("sketch-auto", "sketch")
COLUMNS = ("training MACs", "CPU usage", "average accuracy")


def runs() -> str:
    """Best first, of those that are told nothing and of those that are told the task."""
    found = read("baselines")
    methods = sorted(found["methods"].items(), key=lambda item: (item[1]["told"], -item[1]["final"]["mean"]))
    rows = [
        [
            f"`{name}`",
            "–" if method["told"] else _with_interval(method["final"]),
            *(_with_interval(method[figure]) for figure in ("task_given", "after_learning", "forgetting")),
            f"{method['macs']['mean']:.2e}",
            f"{method['bytes_kept']['mean'] / 1e6:.1f}",
        ]
        for name, method in methods
    ]
    head = (
        "method | nothing told, % | task told, % | task told, just after learning, % | forgotten, points | MACs | "
        "kept, MB"
    )
    return f"{table(head, rows)}\n\nTasks: {', '.join(found['tasks'])}. {source('baselines')}"


def _with_interval(figure: dict[str, Any]) -> str:
    half = "" if figure["half_width"] is None else f" ± {percent(figure['half_width'])}"
    return f"{percent(figure['mean'])}{half}"


def by_task() -> str:
    """At the end of the stream: ours, and the best of the others on each task, whoever that is."""
    methods = read("baselines")["methods"]
    others = {name: method for name, method in methods.items() if method["settings"]["kind"] != "skill"}
    untold = {name: method for name, method in others.items() if not method["told"]}
    told = {name: method for name, method in others.items() if method["told"]}
    rows = [
        [
            task,
            *(percent(_final(methods[name], task)) for name in OURS),
            *_best(untold, task),
            *_best(told, task),
        ]
        for task in read("baselines")["tasks"]
    ]
    ours = " | ".join(f"`{name}`, %" for name in OURS)
    head = f"task | {ours} | best other, nothing told, % | which | best other, task told, % | which"
    return f"{table(head, rows)}\n\n{source('baselines')}"


def _best(methods: dict[str, Any], task: str) -> list[str]:
    found = {name: _final(method, task) for name, method in methods.items()}
    best = max(found.values())
    return [percent(best), ", ".join(f"`{name}`" for name, value in found.items() if value == best)]


def _final(method: dict[str, Any], task: str) -> float:
    """Over seeds."""
    return fmean(run["tasks"][task]["final"] for run in method["runs"])


def orders() -> str:
    """Replay, and the only one of the papers' methods that forgot less than it in three orders: in six."""
    three, more = read("baselines")["methods"], read("baselines-orders")["methods"]
    figures = ("task_given", "after_learning", "forgetting")
    rows = [
        [f"`{name}`", str(len(method["runs"])), *(_with_interval(method[figure]) for figure in figures)]
        for name in more
        for method in (three[name], more[name])
    ]
    head = "method | orders of tasks | task told, % | task told, just after learning, % | forgotten, points"
    return f"{table(head, rows)}\n\n{source('baselines-orders')}"


def first_grid() -> str:
    """Plain springs that were tuned with strengths beyond what one task bears."""
    figures = ("task_given", "after_learning", "forgetting")
    rows = [
        [
            f"`{name}`",
            *(f"{method['settings'][setting]:g}" for setting in ("rate", "strength")),
            *(_with_interval(method[figure]) for figure in figures),
        ]
        for name, method in read("baselines-first-grid")["methods"].items()
    ]
    head = "method | rate | strength | task told, % | task told, just after learning, % | forgotten, points"
    return f"{table(head, rows)}\n\n{source('baselines-first-grid')}"


def beside_the_paper() -> str:
    """The paper's table 1, each of its rows with our runs of its kind; then what the paper does not have."""
    methods = dict(sorted(read("baselines")["methods"].items()))
    reference = methods["maha"]["macs"]["mean"]
    printed = _paper_rows()
    rows, left = [], dict(methods)
    for row, figures in printed.items():
        alike = [name for name in methods if row_of(methods[name]["settings"], printed) == row]
        ours = [_beside(name, left.pop(name), reference) for name in alike] or [["–"] * 4]
        rows += [[row, *figures, *ours[0]], *(["", "", "", "", *more] for more in ours[1:])]
    best_first = sorted(left, key=lambda name: -left[name]["final"]["mean"])
    rows += [["–"] * 4 + _beside(name, left[name], reference) for name in best_first]
    head = "paper | MACs | CPU usage | accuracy, % | ours | MACs | CPU usage | accuracy, %"
    return f"{table(head, rows)}\n\n{source('baselines')}"


def _paper_rows() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for cell in single_cells():
        if cell.printed.place.startswith("table") and cell.printed.column in COLUMNS:
            found.setdefault(cell.printed.row, []).append(cell.printed.figure.text.removesuffix("%"))
    return found


def _beside(name: str, method: dict[str, Any], reference: float) -> list[str]:
    macs = method["macs"]["mean"]
    return [f"`{name}`", f"{macs:.2E}", f"{macs / reference:.3g}x", _with_interval(method["final"])]


def tuning(name: str) -> str:
    found = read(name)
    rows = []
    for label, method in found["methods"].items():
        best = method["tried"][method["chosen"]]
        tries = [percent(tried["final_accuracy"]) for tried in method["tried"]]
        tries[method["chosen"]] = f"**{tries[method['chosen']]}**"
        ranges = _tried([tried["changes"] for tried in method["tried"]])
        rows.append(
            [f"`{label}`", ranges, " / ".join(tries), _words(best["changes"]), percent(best["after_learning"])]
        )
    head = "method | tried | validation, % | chosen | just after learning, %"
    tasks = ", ".join(found["tasks"])
    return f"{table(head, rows)}\n\nTasks: {tasks}. {source(name)}"


def _tried(changes: list[dict[str, Any]]) -> str:
    """Each value of each setting once, in order, where each was tried with each of the others; else try by try."""
    if len({tuple(change) for change in changes}) > 1 or len(changes) < _combinations(changes):
        return " / ".join(map(_words, changes))
    return "; ".join(f"{key} {_range([change[key] for change in changes])}" for key in changes[0])


def _combinations(changes: list[dict[str, Any]]) -> int:
    return prod(len({change[key] for change in changes}) for key in changes[0])


def _range(values: list[Any]) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in dict.fromkeys(values))


def _words(changes: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in changes.items()
    )
