"""Tables of the baselines: tuning, results, and comparison with our methods and with the paper."""

from __future__ import annotations

from math import prod
from statistics import fmean
from typing import Any

from skillmesh_challenge.paper.single import single_cells
from skillmesh_challenge.report.paper_tables import row_of
from tables import measured_by, percent, read, source, table

OURS = ("sketch-auto", "sketch")
COLUMNS = ("training MACs", "CPU usage", "average accuracy")
GIVEN = "task given, % | task given, just after learning, % | forgetting, points"
"""Heads of the three columns that `_given` fills."""
HEADLINE = {
    "joint": "joint training",
    "sketch-auto": "skillmesh + biases",
    "sketch": "skillmesh",
    "supsup": "SupSup",
    "er": "replay",
    "psp": "PSP",
    "mas": "MAS",
    "lwf": "LwF",
    "ewc": "EWC",
    "si": "SI",
    "ewc-online": "Online EWC",
    "naive": "fine-tuning",
}
"""Methods of the short table, with the names that the field uses."""


def headline() -> str:
    """Return a short table of our methods, the paper's eight baselines and both bounds, best first."""
    results = read("baselines")
    methods = {name: method for name, method in results["methods"].items() if name in HEADLINE}
    best_first = sorted(methods, key=lambda name: -methods[name]["final"]["mean"])
    rows = [
        [
            HEADLINE[name],
            "given" if methods[name]["told"] else "none",
            *(_with_interval(methods[name][figure]) for figure in ("final", "forgetting")),
            f"{methods[name]['macs']['mean']:.1e}",
        ]
        for name in best_first
    ]
    head = "method | task label | accuracy, % | forgetting, points | MACs"
    origin = results["provenance"]
    where = origin["remark"].partition(";")[0]  # the rest is about methods and columns not shown here
    remark = f"{len(methods)} of {len(results['methods'])} methods shown; {where}"
    return f"{table(head, rows)}\n\n{measured_by([origin | {'remark': remark}])}"


def runs() -> str:
    """Return the table of all methods: first those without the task label, then those with it, each best first."""
    results = read("baselines")
    methods = sorted(results["methods"].items(), key=lambda item: (item[1]["told"], -item[1]["final"]["mean"]))
    rows = [
        [
            f"`{name}`",
            "–" if method["told"] else _with_interval(method["final"]),
            *_given(method),
            f"{method['macs']['mean']:.2e}",
            f"{method['bytes_kept']['mean'] / 1e6:.1f}",
        ]
        for name, method in methods
    ]
    head = f"method | no task label, % | {GIVEN} | training MACs | stored, MB"
    return f"{table(head, rows)}\n\nTasks: {', '.join(results['tasks'])}. {source('baselines')}"


def _given(method: dict[str, Any]) -> list[str]:
    """Return the cells of the columns `GIVEN`."""
    return [_with_interval(method[figure]) for figure in ("task_given", "after_learning", "forgetting")]


def _with_interval(figure: dict[str, Any]) -> str:
    half = "" if figure["half_width"] is None else f" ± {percent(figure['half_width'])}"
    return f"{percent(figure['mean'])}{half}"


def by_task() -> str:
    """Return the table of accuracies at the end of the stream: ours, and the best other method on each task."""
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
    head = f"task | {ours} | best other without task label, % | method | best other with task given, % | method"
    return f"{table(head, rows)}\n\n{source('baselines')}"


def _best(methods: dict[str, Any], task: str) -> list[str]:
    """Return the best accuracy on a task, and the names of the methods that reach it."""
    accuracies = {name: _final(method, task) for name, method in methods.items()}
    best = max(accuracies.values())
    return [percent(best), ", ".join(f"`{name}`" for name, value in accuracies.items() if value == best)]


def _final(method: dict[str, Any], task: str) -> float:
    """Return the mean over seeds of the accuracy on a task at the end of the stream."""
    return fmean(run["tasks"][task]["final"] for run in method["runs"])


def orders() -> str:
    """Return the table of three and six orders of tasks, for replay and for MAS, which forgets less in three."""
    three, more = read("baselines")["methods"], read("baselines-orders")["methods"]
    rows = [
        [f"`{name}`", str(len(method["runs"])), *_given(method)]
        for name in more
        for method in (three[name], more[name])
    ]
    return f"{table(f'method | orders of tasks | {GIVEN}', rows)}\n\n{source('baselines-orders')}"


def first_grid() -> str:
    """Return the table of EWC, Online EWC, SI and MAS tuned with the first grid, whose strengths were too high."""
    rows = [
        [
            f"`{name}`",
            *(f"{method['settings'][setting]:g}" for setting in ("rate", "strength")),
            *_given(method),
        ]
        for name, method in read("baselines-first-grid")["methods"].items()
    ]
    return f"{table(f'method | learning rate | strength | {GIVEN}', rows)}\n\n{source('baselines-first-grid')}"


def beside_the_paper() -> str:
    """Return the paper's table 1 with our runs of the same kind beside each row, then our other methods."""
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
    head = "paper's method | MACs | CPU usage | accuracy, % | our run | MACs | CPU usage | accuracy, %"
    return f"{table(head, rows)}\n\n{source('baselines')}"


def _paper_rows() -> dict[str, list[str]]:
    """Return the printed figures of each row of the paper's table 1."""
    rows: dict[str, list[str]] = {}
    for cell in single_cells():
        if cell.printed.place.startswith("table") and cell.printed.column in COLUMNS:
            rows.setdefault(cell.printed.row, []).append(cell.printed.figure.text.removesuffix("%"))
    return rows


def _beside(name: str, method: dict[str, Any], reference: float) -> list[str]:
    """Return our half of a row beside the paper's; CPU usage is in multiples of the reference's MACs."""
    macs = method["macs"]["mean"]
    return [f"`{name}`", f"{macs:.2E}", f"{macs / reference:.3g}x", _with_interval(method["final"])]


def tuning(name: str) -> str:
    """Return the table of the settings that were tried for each method; the chosen one's accuracy is bold."""
    results = read(name)
    rows = []
    for label, method in results["methods"].items():
        best = method["tried"][method["chosen"]]
        tries = [percent(tried["final_accuracy"]) for tried in method["tried"]]
        tries[method["chosen"]] = f"**{tries[method['chosen']]}**"
        ranges = _tried([tried["changes"] for tried in method["tried"]])
        rows.append(
            [f"`{label}`", ranges, " / ".join(tries), _words(best["changes"]), percent(best["after_learning"])]
        )
    head = "method | settings tried | validation accuracy at the end, % | chosen | the same just after learning, %"
    tasks = ", ".join(results["tasks"])
    remark = {"remark": results["provenance"]["remark"]}
    origins = [method["provenance"] | remark for method in results["methods"].values()]
    return f"{table(head, rows)}\n\nTasks: {tasks}. {measured_by(origins)}"


def _tried(changes: list[dict[str, Any]]) -> str:
    """Return the values of each setting if all combinations were tried; otherwise list the trials one by one."""
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
