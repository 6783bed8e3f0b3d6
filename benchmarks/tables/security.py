"""Tables of the attacks on agents: hostile files, a hostile client, the campaign and mutants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tables import measured_by, percent, read, source, table

Cases = dict[str, dict[str, dict[str, Any]]]
"""The rows of hostile images: by case, then by command."""


def hostile_images() -> str:
    rows = [
        [
            case,
            _outcome(verbs),
            *(f"{verbs[verb][what]:.{places}f}" for verb in VERBS for what, places in FIGURES),
        ]
        for case, verbs in _cases().items()
    ]
    head = "case | outcome | `ask`, s | `ask`, MB above base | `learn`, s | `learn`, MB above base"
    return f"{table(head, rows)}\n\n{source('hostile-images')}"


def hostile_images_worst() -> str:
    """Return the short table of hostile files: the worst figures of single files, and those of a whole folder."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for case, verbs in _cases().items():
        groups.setdefault(FOLDER if case == FOLDER else "one file", []).extend(verbs.values())
    rows = [
        [group, *(f"{max(row[what] for row in rows):.{places}f}" for what, places in FIGURES)]
        for group, rows in groups.items()
    ]
    return f"{table('input | slowest, s | most memory above base, MB', rows)}\n\n{source('hostile-images')}"


FOLDER = "a folder of 100 hostile files"
VERBS = ("ask", "learn")
FIGURES = (("seconds", 1), ("megabytes", 0))


def _cases() -> Cases:
    cases: Cases = {}
    for row in read("hostile-images")["rows"]:
        cases.setdefault(row["case"], {})[row["verb"]] = row
    return cases


def _outcome(verbs: dict[str, dict[str, Any]]) -> str:
    return str(verbs["ask"]["outcome"]).partition(":")[0].removeprefix("0 read; 1 ")


ATTACKS = {
    "": "none",
    "lies in lists": "false lists and notices",
    "lies in files": "false module files",
    "other names": "replay and impersonation",
    "keeping waiting": "silent and slow peers",
    "ghosts": "fake peers without keys",
    "ghosts with keys": "fake peers with keys",
    "lying ghosts": "fake peers that send wrong bytes",
    "teachers without modules": "fake teachers",
    "floods": "floods",
    "noise": "random bytes and giant replies",
    "harmful modules": "harmful modules",
    "at the door": "failed connections",
}
"""Names of the groups of attacks."""
INCREASES = ("peak_over_base_mb", "threads_over_base", "descriptors_over_base")
SET_UPS = {"plain": "listed teachers"}
"""Names of the set-ups, where they differ from those in the results."""


def hostile_client() -> str:
    rows = [
        [
            SET_UPS.get(c["setting"], c["setting"]),
            ATTACKS[c["group"] or ""],
            _arrived(c),
            f"{c['ask_median_ms']:.0f} ({c['ask_slowest_ms']:.0f})",
            *(f"{_most(c, what):.0f}" for what in INCREASES),
            f"{max(c['disk_mb'], 0.0):.1f}",
            str(len(c["adopted_wrongly"])),
        ]
        for c in read("hostile-client")["cells"]
    ]
    head = (
        "set-up | attacks | all modules arrived after, s | answers: median (slowest), ms | memory above base, "
        "MB | more threads | more descriptors | disk, MB | wrongly used tasks"
    )
    return f"{table(head, rows)}\n\n{source('hostile-client')}"


def hostile_client_worst() -> str:
    """Return the short table of the hostile client: the worst figures of each set-up."""
    set_ups: dict[str, list[dict[str, Any]]] = {}
    for cell in read("hostile-client")["cells"]:
        refused = cell["setting"].startswith("TLS") and "valid" not in cell["setting"]
        name = "TLS, no valid certificate" if refused else SET_UPS.get(cell["setting"], cell["setting"])
        set_ups.setdefault(name, []).append(cell)
    rows = []
    for name, cells in set_ups.items():
        alone, attacked = ([c for c in cells if bool(c["group"]) == beside] for beside in (False, True))
        rows.append(
            [
                name,
                f"{max(c['seconds'] for c in alone):.1f}",
                f"{max(c['seconds'] for c in attacked):.1f}" if all(c["all_came"] for c in attacked) else "never",
                f"{max(c['ask_slowest_ms'] for c in attacked) / 1000:.1f}",
                str(sum(len(c["adopted_wrongly"]) for c in attacked)),
            ]
        )
    head = "set-up | no attack, s | worst attack, s | slowest answer, s | wrongly used tasks"
    return f"{table(head, rows)}\n\n{source('hostile-client')}"


def _arrived(cell: dict[str, Any]) -> str:
    return f"{cell['seconds']:.1f} ({cell['ratio']:.1f} ×)" if cell["all_came"] else "not all arrived"


def _most(cell: dict[str, Any], what: str) -> float:
    return float(max(cell[what].values()))


def campaign() -> str:
    parts = read("campaign")["parts"]
    rows = [[name, *cells(parts[name]), _minutes(parts[name])] for name, cells in PARTS.items() if name in parts]
    calls = "\n".join(f"- {name}: {measured_by(parts[name]['calls'])}" for name in PARTS if name in parts)
    return f"{table('part | tried | outcome | minutes', rows)}\n\n{calls}"


def campaign_headline() -> str:
    """Return the short table of the campaign and of mutants: what was tried, and how often it failed."""
    parts, m = read("campaign")["parts"], read("mutants")
    rows = [[tried(parts[name]), str(len(parts[name]["failures"]))] for name, tried in TRIED.items()]
    rows.append([f"{m['mutants']} changed programs (mutants)", f"{m['survived']} undetected"])
    commits = sorted({*(c for name in TRIED for c in _commits(parts[name])), m["provenance"]["commit"]})
    again = "Repeat with `make campaign` and `make mutants`"
    return f"{table('tried | failures', rows)}\n\n{again} · commits {', '.join(commits)}"


TRIED: dict[str, Callable[[dict[str, Any]], str]] = {
    "files": lambda r: f"{r['files']:,} mutated files",
    "kills": lambda r: f"{r['kills']:,} kills and {r['power_cut_states']:,} simulated power cuts",
    "peers": lambda r: f"{r['moves']:,} hostile moves on the mesh",
    "soak": lambda r: f"{r['seconds'] / 60:.0f} minutes of constant load",
}


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
        f"{len(r['failures'])} failures; {r['taught_and_arrived']} modules were taught and arrived, the "
        f"slowest after {r['arrived_seconds_most']:.1f} s; slowest answer {r['ask_ms_most'] / 1000:.1f} s",
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
    """Return the table of the mutated files by kind."""
    part = read("campaign")["parts"]["files"]
    rows = [
        [
            KINDS.get(name, name),
            f"{kind['files']:,}",
            f"{sum(count for end, count in kind['ends'].items() if end.endswith('Error')):,}",
            f"{kind['worst_seconds']:.2f}",
            str(kind["failures"]),
        ]
        for name, kind in part["kinds"].items()
    ]
    head = "kind | files | refused with a proper error | slowest, s | failures"
    return f"{table(head, rows)}\n\n{measured_by(part['calls'])}"


KINDS = {
    "wire": "reply of a peer",
    "signature": "public key and signature",
    "key": "private key",
    "validation": "validation images",
    "caches": "cache",
    "certs": "TLS file",
    "home": "whole home",
    "foreign": "unsupported image format",
}
"""Names of the kinds of mutated files, where they differ from those in the results."""


def mutants() -> str:
    r = read("mutants")
    folders: dict[str, Counter[str]] = {}
    for file, outcomes in r["files"].items():
        part = file.removeprefix("skillmesh/").split("/")[0]
        folders.setdefault(part, Counter()).update(outcomes)
    folders["all"] = sum(folders.values(), Counter())
    rows = [
        [
            part,
            str(c.total()),
            str(c["detected"]),
            str(c["timeout"]),
            str(c["survived"]),
            percent(_share_detected(c)),
        ]
        for part, c in folders.items()
    ]
    named = r["named"]
    line = (
        f"Of the {named['mutants']} changes that an earlier search by hand found undetected, "
        f"{named['survived']} are undetected now."
    )
    head = "part | mutants | detected by a failing test | detected by a timeout | survived | detected, %"
    return f"{table(head, rows)}\n\n{line}\n\n{source('mutants')}"


def _share_detected(counts: Counter[str]) -> float:
    return (counts["detected"] + counts["timeout"]) / counts.total()
