"""What was tried against an agent: hostile files, the campaign and mutants."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tables import percent, read, source, table


def hostile_images() -> str:
    r = read("hostile-images")
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for row in r["rows"]:
        cases.setdefault(row["case"], {})[row["verb"]] = row
    rows = [
        [
            case,
            verbs["ask"]["outcome"].partition(":")[0].removeprefix("0 read; 1 "),
            *(f"{verbs[verb][what]:.{places}f}" for verb in ("ask", "learn") for what, places in FIGURES),
        ]
        for case, verbs in cases.items()
    ]
    head = "case | outcome | `ask`: s | MB over the base | `learn`: s | MB over the base"
    return f"{table(head, rows)}\n\n{source('hostile-images')}"


FIGURES = (("seconds", 1), ("megabytes", 0))


def campaign() -> str:
    parts = read("campaign")["parts"]
    rows = [[name, *cells(parts[name]), _minutes(parts[name])] for name, cells in PARTS.items() if name in parts]
    calls = "\n".join(
        f"- {name}: `{last['command']}` · commit {', '.join(_commits(parts[name]))} · seed {last['seed']} · "
        f"{last['date']}"
        for name in PARTS
        if name in parts
        for last in parts[name]["calls"][-1:]
    )
    return f"{table('part | tried | outcome | minutes', rows)}\n\n{calls}"


def _files(r: dict[str, Any]) -> list[str]:
    return [
        f"{r['files']:,} files of {len(r['kinds'])} kinds",
        f"{r['crashes']} crashes, {r['false_acceptances']} false acceptances, {r['over_time']} over time (worst "
        f"{r['worst_seconds']:.2f} s), {r['over_memory']} over memory (peak {r['peak_mb']:.0f} MB)",
    ]


def _kills(r: dict[str, Any]) -> list[str]:
    logs = f"{r['prefix_states']:,} prefixes of the write logs of {len(r['prefixes_by_command'])} commands"
    return [
        f"{r['kills']:,} kills of {len(r['kills_by_command'])} commands; {logs}, {r['power_cut_states']:,} states "
        "after power cuts",
        f"{r['losses']} losses, {r['failed']} failures",
    ]


def _peers(r: dict[str, Any]) -> list[str]:
    return [
        f"{r['moves']:,} random moves beside {r['attackers']} kinds of attackers, {r['asks']:,} questions",
        f"{len(r['failures'])} failures; {r['taught_and_arrived']} modules were taught and arrived, the slowest "
        f"after {r['arrived_seconds_most']:.1f} s; slowest answer {r['ask_ms_most'] / 1000:.1f} s",
    ]


def _soak(r: dict[str, Any]) -> list[str]:
    descriptors = max(node["fds"][1] - node["fds"][0] for node in r["nodes"].values())
    return [
        f"{r['cycles']} cycles of learning, sharing, forgetting and withdrawing; {r['asks']:,} questions",
        f"{len(r['failures'])} failures; memory {r['growth_percent']:+.1f} %, descriptors {descriptors:+.0f}",
    ]


PARTS = {"files": _files, "kills": _kills, "peers": _peers, "soak": _soak}


def _minutes(r: dict[str, Any]) -> str:
    return f"{r['seconds'] / 60:.0f}"


def _commits(r: dict[str, Any]) -> list[str]:
    return sorted({str(call["commit"]) for call in r["calls"]})


def mutated_files() -> str:
    """The mutated files by kind."""
    kinds = read("campaign")["parts"]["files"]["kinds"]
    rows = [
        [
            name,
            f"{kind['files']:,}",
            f"{sum(count for end, count in kind['ends'].items() if end.endswith('Error')):,}",
            f"{kind['worst_seconds']:.2f}",
            str(kind["failures"]),
        ]
        for name, kind in kinds.items()
    ]
    return table("kind | files | refused by an error of ours | slowest, s | failures", rows)


def mutants() -> str:
    r = read("mutants")
    folders: dict[str, Counter[str]] = {}
    for file, outcomes in r["files"].items():
        part = file.removeprefix("skillmesh/").split("/")[0]
        folders.setdefault(part, Counter()).update(outcomes)
    folders["all"] = sum(folders.values(), Counter())
    rows = [
        [part, str(c.total()), str(c["detected"]), str(c["timeout"]), str(c["survived"]), percent(_noticed(c))]
        for part, c in folders.items()
    ]
    named = r["named"]
    line = f"Of the {named['mutants']} changes that an attack found unnoticed, {named['survived']} survive now."
    head = "part | mutants | detected | by a timeout | survived | noticed, %"
    return f"{table(head, rows)}\n\n{line}\n\n{source('mutants')}"


def _noticed(counts: Counter[str]) -> float:
    return (counts["detected"] + counts["timeout"]) / counts.total()
