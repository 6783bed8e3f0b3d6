"""Runs of the challenge, and banks beyond the data there is."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

from tables import kilobytes, percent, read, source, table


def challenge_runs() -> str:
    rows = []
    for r in read("challenge-runs")["runs"]:
        shared = r["sharing"]
        together = r["bounds"].get("all_data_together")
        equal = {True: "equal", False: "DIFFERENT", None: "–"}[r["equals_eval"]]
        rows.append(
            [
                f"{r['method']}, {shared['how']}, {r['executor']}",
                str(r["agents"]),
                percent(r["task_given_accuracy"]),
                "–" if together is None else percent(together["final_accuracy"]),
                percent(r["task_found_accuracy"]),
                percent(r["final_accuracy"]),
                equal,
                "all alike" if shared["same_answers"] else "DIFFERENT",
            ]
        )
    head = (
        "method, sharing, executor | agents | task given, % | all data together, % | task found, % | final, % | "
        "macro averages against `eval` | agents' answers"
    )
    return f"{table(head, rows)}\n\n{_commands()}"


def _commands() -> str:
    """Every run's own command."""
    runs = read("challenge-runs")["runs"]
    return "\n".join([source("challenge-runs"), *(f"- `{run['provenance']['command']}`" for run in runs)])


def challenge_costs() -> str:
    rows = []
    for r in read("challenge-runs")["runs"]:
        c = r["costs"]
        macs = (f"{c[name]:.2e}" for name in ("teacher", "communication", "student"))
        shares = (f"{c[name]:.4f}" for name in ("efficiency", "efficiency_as_done"))
        rows.append(
            [
                f"{r['method']}, {r['sharing']['how']}, {r['executor']}",
                str(r["agents"]),
                *macs,
                f"{c['trials']:.2e}",
                f"{c['speedup']:.2f}",
                *shares,
                f"{c['busiest_speedup']:.2f}",
            ]
        )
    head = (
        "method, sharing, executor | agents | teacher, MACs | communication, MACs | student, 40 rebuilds | "
        "trials | speedup | efficiency, 40 rebuilds | efficiency, as done | speedup of the busiest"
    )
    return f"{table(head, rows)}\n\n{_commands()}"


def challenge_sweep() -> str:
    found = read("challenge-sweep")
    rows = [
        [
            str(r["agents"]),
            percent(r["final_accuracy"]["mean"]),
            f"{r['speedup']['mean']:.2f}",
            f"{r['half_of_agents']:g}",
            f"{r['efficiency']['mean']:.4f}",
            f"{r['busiest_speedup']['mean']:.2f}",
        ]
        for r in found["sweep"]
    ]
    head = "agents | final, % | speedup in MACs | 0.5 × agents | efficiency | speedup of the busiest"
    return f"{table(head, rows)}\n\n{source('challenge-sweep')}"


def challenge_speedup() -> str:
    rows = [
        [
            r["variant"],
            f"{r['seconds']:.1f}",
            f"{r['speedup']:.2f}",
            f"{r['startup_seconds']:.1f}",
            f"{r['images']:,}",
            percent(r["final_accuracy"]),
        ]
        for r in read("challenge-speedup")["variants"]
    ]
    head = "who learns | learning, sharing, mapper, s | speedup | start-up, s | images | final, %"
    return f"{table(head, rows)}\n\n{source('challenge-speedup')}"


def simulate() -> str:
    runs = read("simulate")["runs"]
    memory = {"mapper": "mapper", "process": "whole process"}

    def rest_and_peak(run: dict[str, Any], what: str) -> str:
        found = run["memory"]
        return f"{found[f'{what}_bytes'] / 1e6:,.0f} ({found[f'{what}_peak_bytes'] / 1e6:,.0f})"

    def accuracy_of(run: dict[str, Any]) -> str:
        found = run["extrapolated"]
        return f"{percent(found['task_found_accuracy'])} / {percent(found['final_accuracy'])}" if found else "none"

    lines: dict[str, Callable[[dict[str, Any]], str]] = {
        "classes": lambda run: f"{run['classes']:,}",
        "answer one image, ms": lambda run: f"{1000 * run['answer_seconds']:.1f}",
        "the bare backbone, ms": lambda run: f"{1000 * run['bare_seconds']:.1f}",
        "**answer / bare backbone**": lambda run: f"**{run['answer_ratio']:.2f}**",
        "the mapper alone, ms": lambda run: f"{1000 * run['mapper_seconds']:.1f}",
        "same task as looking closely at all, %": lambda run: percent(run["shortlist_agreement"]),
        "build the mapper, s": lambda run: f"{run['build_seconds']:.0f}",
        "modules in memory, MB": lambda run: f"{run['memory']['module_bytes_held'] / 1e6:,.0f}",
    }
    for what, label in memory.items():
        lines[f"{label}, MB (peak while it is built)"] = lambda run, what=what: rest_and_peak(run, what)
    lines["a module, KB"] = lambda run: kilobytes(run["bytes"]["module"])
    lines["received by each agent, MB"] = lambda run: f"{run['bytes']['per_agent'] / 1e6:,.0f}"
    lines["extrapolated: task found / final, %"] = accuracy_of
    head = " | ".join(["tasks = agents", *(f"{run['plan']['tasks']:,}" for run in runs)])
    return f"{table(head, [[label, *map(cell, runs)] for label, cell in lines.items()])}\n\n{source('simulate')}"


def simulate_check() -> str:
    runs = read("simulate")["runs"]
    keys = ("alone", "among_real", "all_real", "grown")
    halves = runs[0]["check"]
    rows = [
        [str(n), *(percent(half[key]) for key in keys), f"{100 * half['gap']:+.1f}"]
        for n, half in enumerate(halves)
    ]
    means = {key: fmean(half[key] for half in halves) for key in keys}
    gap = f"{100 * fmean(half['gap'] for half in halves):+.1f}"
    rows.append(["mean", *(percent(means[key]) for key in keys), gap])
    head = "half | its 20 tasks alone | among the real 40 | **all real 40** | **grown to 40** | grown − all real"
    return f"{table(head, rows)}\n\n{source('simulate')}"
