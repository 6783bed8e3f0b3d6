"""The mesh and its quarantine."""

from __future__ import annotations

from tables import kilobytes, read, source, table


def mesh() -> str:
    r = read("mesh")
    runs = r["runs"]
    lines = {
        "modules, each of KB": lambda run: f"{run['modules']} × {kilobytes(run['module_bytes'])}",
        "all processes started after, s": lambda run: f"{run['ready_seconds']:.1f}",
        "every node holds every module after, s": lambda run: f"{run['hold_all_seconds']:.1f}",
        "module bytes to transfer, MB": lambda run: f"{run['moved_bytes'] / 1e6:.1f}",
        "bytes on the wire per module byte": lambda run: f"{run['wire_ratio']:.3f}",
        "idle traffic per node and minute, KB": lambda run: kilobytes(run["idle_bytes_per_minute_and_node"]),
        "memory of a node that was never asked, MB (peak)": lambda run: (
            f"{run['node_rss_mb']:.0f} ({run['node_peak_mb']:.0f})"
        ),
        "lower bound: the same bytes over one connection, s": lambda run: f"{run['floor_seconds']:.2f}",
    }
    rows = [[label, *map(cell, runs)] for label, cell in lines.items()]
    a = r["answering"]
    answering = (
        f"Memory of a node that answers: {a['node_mb']:.0f} MB; of a process with only backbone and mapper: "
        f"{a['process_mb']:.0f} MB."
    )
    head = " | ".join(["nodes", *(str(run["nodes"]) for run in runs)])
    return f"{table(head, rows)}\n\n{answering}\n\n{source('mesh')}"


def mesh_answers() -> str:
    r = read("mesh-answers")
    labels = {
        "at_rest": "at rest",
        "during_sync": "while modules arrive",
        "at_rest_after": "at rest, with all modules",
    }
    rows = [
        [label, str(r[key]["answers"]), *(f"{r[key][f]:.0f}" for f in ("median_ms", "p99_ms", "slowest_ms"))]
        for key, label in labels.items()
    ]
    line = (
        f"All {r['modules']} modules were in use after {r['sync_seconds']:.0f} s. The p99 while modules arrive is "
        f"{r['p99_ratio']:.2f} × that at rest. A verified module answers after at most "
        f"{r['slowest_import_seconds']:.1f} s."
    )
    head = "answers | count | median, ms | p99, ms | slowest, ms"
    return f"{table(head, rows)}\n\n{line}\n\n{source('mesh-answers')}"


def mesh_networks() -> str:
    healed = "a lan split in two and two agents heals", "the halves of a lan of four agents are connected again"
    rows = [
        [event.replace(*healed).replace(" lan", " local network"), f"{seconds:.1f}"]
        for event, seconds in read("mesh-networks")["seconds"].items()
    ]
    return f"{table('event | all agents converged after, s', rows)}\n\n{source('mesh-networks')}"


def mesh_headline() -> str:
    """The figures of all three mesh measurements that a reader asks for first."""
    answers, networks = read("mesh-answers"), read("mesh-networks")["seconds"]
    rows = [
        [
            f"{run['nodes']} nodes each hold all {run['modules']} modules after",
            f"{run['hold_all_seconds']:.1f} s",
        ]
        for run in read("mesh")["runs"]
    ]
    rest, sync = (answers[when]["p99_ms"] for when in ("at_rest", "during_sync"))
    ratio = max(run["wire_ratio"] for run in read("mesh")["runs"])
    rows += [
        ["bytes on the wire per module byte", f"{ratio:.3f}"],
        ["p99 of answers, at rest → while modules arrive", f"{rest:.0f} → {sync:.0f} ms"],
        [f"slowest convergence, {len(networks)} network events", f"{max(networks.values()):.1f} s"],
    ]
    return f"{table('measured | result', rows)}\n\n{source('mesh', 'mesh-answers', 'mesh-networks')}"


QUARANTINE_HEAD = "modules | held back | worst that passed: points lost on own tasks | on others' tasks"


def quarantine_headline() -> str:
    r = read("quarantine")
    honest = [r["honest"][key] for key in ("one_by_one", "together", "second_teachers")]
    rows = [
        ["honest", f"{sum(h['held'] for h in honest)} of {sum(h['tried'] for h in honest):,}", "–", "–"],
    ]
    attacks = r["attacks"].values()
    passed = [a["worst_that_passed"] for a in attacks if a["held"] < a["tried"]]
    worst = [f"{max(w[key] for w in passed):.1f}" for key in ("own", "others")]
    held, tried = (sum(a[key] for a in attacks) for key in ("held", "tried"))
    rows.append([f"forged, {len(attacks)} kinds", f"{held} of {tried}", *worst])
    for key, many in (("one_module", "one"), ("up_to_5_modules", "up to five")):
        costs = [r["tuned"][aim][key] for aim in ("own", "others")]
        rows.append(
            [f"tuned to pass, {many}", "none", *(f"{c['worst']:.1f} (mean {c['mean']:.1f})" for c in costs)]
        )
    return f"{table(QUARANTINE_HEAD, rows)}\n\n{source('quarantine')}"


def quarantine() -> str:
    r = read("quarantine")
    rows = []
    honest = {
        "one_by_one": "one by one",
        "together": "in batches",
        "second_teachers": "second teachers of the classes",
    }
    for key, label in honest.items():
        rows.append([f"honest, {label}", f"{r['honest'][key]['held']} of {r['honest'][key]['tried']}", "–", "–"])
    for name, a in r["attacks"].items():
        worst = a["worst_that_passed"] if a["held"] < a["tried"] else None
        cells = [f"{worst[key]:.1f}" if worst else "–" for key in ("own", "others")]
        rows.append([name, f"{a['held']} of {a['tried']}", *cells])
    for aim, label in (("own", "the agent's own tasks"), ("others", "others' tasks")):
        for key, many in (("one_module", "one module"), ("up_to_5_modules", "up to five modules")):
            figures = r["tuned"][aim][key]
            cost = f"{figures['mean']:.1f} on average, {figures['worst']:.1f}"
            rows.append(
                [f"tuned to pass, {many} against {label}", "none", *((cost, "–") if aim == "own" else ("–", cost))]
            )
    return f"{table(QUARANTINE_HEAD, rows)}\n\n{source('quarantine')}"
