"""What baselines tried when they were tuned, and how they did beside ours."""

from __future__ import annotations

from typing import Any

from tables import percent, read, source, table


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
            f"{method['seconds']['mean']:,.0f}",
        ]
        for name, method in methods
    ]
    head = (
        "method | nothing told, % | task told, % | task told, just after learning, % | forgotten, points | MACs | "
        "kept, MB | learning, s"
    )
    return f"{table(head, rows)}\n\nTasks: {', '.join(found['tasks'])}. {source('baselines')}"


def _with_interval(figure: dict[str, Any]) -> str:
    half = "" if figure["half_width"] is None else f" ± {percent(figure['half_width'])}"
    return f"{percent(figure['mean'])}{half}"


def tuning() -> str:
    found = read("baselines-tuning")
    rows = []
    for name, method in found["methods"].items():
        best = method["tried"][method["chosen"]]
        tries = [percent(tried["final_accuracy"]) for tried in method["tried"]]
        tries[method["chosen"]] = f"**{tries[method['chosen']]}**"
        varied = [key for key in best["changes"] if len({_changed(t, key) for t in method["tried"]}) > 1]
        ranges = "; ".join(f"{key} {_range([_changed(t, key) for t in method['tried']])}" for key in varied)
        rows.append(
            [f"`{name}`", ranges, " / ".join(tries), _words(best["changes"]), percent(best["after_learning"])]
        )
    head = "method | tried | validation, % | chosen | just after learning, %"
    tasks = ", ".join(found["tasks"])
    return f"{table(head, rows)}\n\nTasks: {tasks}. {source('baselines-tuning')}"


def _changed(tried: dict[str, Any], key: str) -> Any:
    return tried["changes"].get(key)


def _range(values: list[Any]) -> str:
    """Each value once, in order; a setting that a try leaves alone has none."""
    known = dict.fromkeys(value for value in values if value is not None)
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in known)


def _words(changes: dict[str, Any]) -> str:
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in changes.items()
    )
