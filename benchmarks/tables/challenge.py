"""Tables of the challenge: runs on the public tasks, and simulated banks of more tasks than there is data for."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

from tables import command_of, kilobytes, measured_by, percent, read, source, table

SHARING = {"memory": "in memory", "mesh": "over a mesh"}
EXECUTORS = {"processes of this machine": "local processes", "Dask": "Dask workers"}
YES_OR_NO = {True: "yes", False: "NO", None: "–"}


def challenge_headline() -> str:
    runs = read("challenge-runs")["runs"]
    rows = []
    for run in runs:
        accuracies = (run[f"{name}_accuracy"] for name in ("task_found", "final"))
        shares = (run["costs"][name] for name in ("efficiency", "efficiency_as_done"))
        rows.append([_short_name(run), *map(percent, accuracies), *(f"{share:.3f}" for share in shares)])
    head = "method | task found, % | final, % | efficiency, 40 mapper builds | efficiency, as run"
    return f"{table(head, rows)}\n\n{measured_by([run['provenance'] for run in runs], short=True)}"


def _short_name(run: dict[str, Any]) -> str:
    """Return the method, and what differs from sharing in memory on local processes."""
    differs = [SHARING["mesh"]] if run["sharing"]["how"] == "mesh" else []
    differs += [EXECUTORS["Dask"]] if run["executor"] == "Dask" else []
    return ", ".join([run["method"], *differs])


def challenge_runs() -> str:
    rows = []
    for run in read("challenge-runs")["runs"]:
        together = run["bounds"].get("all_data_together")
        rows.append(
            [
                _name(run),
                str(run["agents"]),
                percent(run["task_given_accuracy"]),
                "–" if together is None else percent(together["final_accuracy"]),
                percent(run["task_found_accuracy"]),
                percent(run["final_accuracy"]),
                YES_OR_NO[run["equals_eval"]],
                YES_OR_NO[run["sharing"]["same_answers"]],
            ]
        )
    head = (
        "method, sharing, workers | agents | task given, % | one classifier on all data, % | task found, % | "
        "final, % | same averages as `eval` | all agents answer alike"
    )
    return f"{table(head, rows)}\n\n{_commands()}"


def _name(run: dict[str, Any]) -> str:
    return f"{run['method']}, {SHARING[run['sharing']['how']]}, {EXECUTORS[run['executor']]}"


def _commands() -> str:
    """Return the line below the table, and the commands of the other runs."""
    results = read("challenge-runs")
    origins = [run["provenance"] for run in results["runs"]]
    line = f"{measured_by(origins, short=True)} · {results['provenance']['remark']}"
    return "\n".join([line, *(f"- `{command_of(origin)}`" for origin in origins[1:])])


def challenge_costs() -> str:
    rows = []
    for run in read("challenge-runs")["runs"]:
        costs = run["costs"]
        macs = (f"{costs[name]:.2e}" for name in ("teacher", "communication", "student", "trials"))
        shares = (f"{costs[name]:.4f}" for name in ("efficiency", "efficiency_as_done"))
        rows.append(
            [
                _name(run),
                str(run["agents"]),
                *macs,
                f"{costs['speedup']:.2f}",
                *shares,
                f"{costs['busiest_speedup']:.2f}",
            ]
        )
    head = (
        "method, sharing, workers | agents | teaching, MACs per agent | receiving, MACs | "
        "40 mapper builds, MACs | vetting, MACs | speedup | efficiency, 40 mapper builds | efficiency, as run | "
        "speedup of the busiest agent"
    )
    return f"{table(head, rows)}\n\n{_commands()}"


def challenge_sweep() -> str:
    rows = [
        [
            str(row["agents"]),
            percent(row["final_accuracy"]["mean"]),
            f"{row['speedup']['mean']:.2f}",
            f"{row['half_of_agents']:g}",
            f"{row['efficiency']['mean']:.4f}",
            f"{row['busiest_speedup']['mean']:.2f}",
        ]
        for row in read("challenge-sweep")["sweep"]
    ]
    head = "agents | final, % | speedup in MACs | 0.5 × agents | efficiency | speedup of the busiest agent"
    return f"{table(head, rows)}\n\n{source('challenge-sweep')}"


def challenge_speedup() -> str:
    rows = [
        [
            row["variant"],
            f"{row['seconds']:.1f}",
            f"{row['speedup']:.2f}",
            f"{row['startup_seconds']:.1f}",
            f"{row['images']:,}",
            percent(row["final_accuracy"]),
        ]
        for row in read("challenge-speedup")["variants"]
    ]
    head = "agents and threads | learning, sharing and mapper build, s | speedup | start-up, s | images | final, %"
    return f"{table(head, rows)}\n\n{source('challenge-speedup')}"


SCALE: dict[str, Callable[[dict[str, Any]], str]] = {
    "classes": lambda run: f"{run['classes']:,}",
    "answer to one image, ms": lambda run: f"{1000 * run['answer_seconds']:.1f}",
    "bare backbone, ms": lambda run: f"{1000 * run['bare_seconds']:.1f}",
    "**answer / bare backbone**": lambda run: f"**{run['answer_ratio']:.2f}**",
    "mapper, ms": lambda run: f"{1000 * run['mapper_seconds']:.1f}",
    "same task as with exact scores of all tasks, %": lambda run: percent(run["shortlist_agreement"]),
    "mapper build, s": lambda run: f"{run['build_seconds']:.0f}",
    "modules in memory, MB": lambda run: f"{run['memory']['module_bytes_held'] / 1e6:,.0f}",
    "mapper in memory, MB (peak during build)": lambda run: _memory_and_peak(run, "mapper"),
    "whole process, MB (peak during build)": lambda run: _memory_and_peak(run, "process"),
    "module size, KB": lambda run: kilobytes(run["bytes"]["module"]),
    "received by each agent, MB": lambda run: f"{run['bytes']['per_agent'] / 1e6:,.0f}",
    "extrapolated: task found / final, %": lambda run: _extrapolated(run),
}
"""Rows of the tables of simulated banks."""
SCALE_HEADLINE = (
    "answer to one image, ms",
    "**answer / bare backbone**",
    "mapper build, s",
    "whole process, MB (peak during build)",
    "received by each agent, MB",
    "extrapolated: task found / final, %",
)


def simulate() -> str:
    return _scale(tuple(SCALE))


def simulate_headline() -> str:
    return _scale(SCALE_HEADLINE)


def _scale(labels: tuple[str, ...]) -> str:
    runs = read("simulate")["runs"]
    head = " | ".join(["tasks (one per agent)", *(f"{run['plan']['tasks']:,}" for run in runs)])
    rows = [[label, *map(SCALE[label], runs)] for label in labels]
    return f"{table(head, rows)}\n\n{source('simulate')}"


def _memory_and_peak(run: dict[str, Any], part: str) -> str:
    memory = run["memory"]
    return f"{memory[f'{part}_bytes'] / 1e6:,.0f} ({memory[f'{part}_peak_bytes'] / 1e6:,.0f})"


def _extrapolated(run: dict[str, Any]) -> str:
    accuracy = run["extrapolated"]
    if not accuracy:
        return "none"
    return f"{percent(accuracy['task_found_accuracy'])} / {percent(accuracy['final_accuracy'])}"


def simulate_check() -> str:
    keys = ("alone", "among_real", "all_real", "grown")
    halves = read("simulate")["runs"][0]["check"]
    rows = [
        [str(n), *(percent(half[key]) for key in keys), f"{100 * half['gap']:+.1f}"]
        for n, half in enumerate(halves)
    ]
    means = {key: fmean(half[key] for half in halves) for key in keys}
    gap = f"{100 * fmean(half['gap'] for half in halves):+.1f}"
    rows.append(["mean", *(percent(means[key]) for key in keys), gap])
    head = (
        "half | its 20 tasks alone, % | its tasks among 40 real tasks, % | **all 40 real tasks, %** | "
        "**its tasks among 20 simulated ones, %** | simulated − all real, points"
    )
    return f"{table(head, rows)}\n\n{source('simulate')}"
