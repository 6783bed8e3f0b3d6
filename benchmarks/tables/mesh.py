"""The mesh and its quarantine."""

from __future__ import annotations

from tables import kilobytes, read, source, table


def mesh() -> str:
    r = read("mesh")
    runs = r["runs"]
    lines = {
        "modules, each of KB": lambda run: f"{run['modules']} × {kilobytes(run['module_bytes'])}",
        "all processes run after, s": lambda run: f"{run['ready_seconds']:.1f}",
        "all hold all after, s": lambda run: f"{run['hold_all_seconds']:.1f}",
        "bytes of modules that had to move, MB": lambda run: f"{run['moved_bytes'] / 1e6:.1f}",
        "bytes on the wire / bytes of modules": lambda run: f"{run['wire_ratio']:.3f}",
        "idle traffic per node and minute, KB": lambda run: kilobytes(run["idle_bytes_per_minute_and_node"]),
        "memory of a node that only carries, MB (peak)": lambda run: (
            f"{run['node_rss_mb']:.0f} ({run['node_peak_mb']:.0f})"
        ),
        "floor: the same bytes, one connection, s": lambda run: f"{run['floor_seconds']:.2f}",
    }
    rows = [[label, *map(cell, runs)] for label, cell in lines.items()]
    a = r["answering"]
    answering = (
        f"A node that answers: {a['node_mb']:.0f} MB; a process with backbone and mapper alone: "
        f"{a['process_mb']:.0f} MB."
    )
    head = " | ".join(["nodes", *(str(run["nodes"]) for run in runs)])
    return f"{table(head, rows)}\n\n{answering}\n\n{source('mesh')}"


def mesh_answers() -> str:
    r = read("mesh-answers")
    labels = {"at_rest": "at rest", "during_sync": "during the sync", "at_rest_after": "at rest, with all modules"}
    rows = [
        [label, str(r[key]["answers"]), *(f"{r[key][f]:.0f}" for f in ("median_ms", "p99_ms", "slowest_ms"))]
        for key, label in labels.items()
    ]
    line = (
        f"{r['modules']} modules in use after {r['sync_seconds']:.0f} s; p99 during the sync is "
        f"{r['p99_ratio']:.2f} × that at rest; from verified to answering at most "
        f"{r['slowest_import_seconds']:.1f} s."
    )
    head = "answers | count | median, ms | p99, ms | slowest, ms"
    return f"{table(head, rows)}\n\n{line}\n\n{source('mesh-answers')}"


def mesh_networks() -> str:
    rows = [[event, f"{seconds:.1f}"] for event, seconds in read("mesh-networks")["seconds"].items()]
    return f"{table('all converge after | s', rows)}\n\n{source('mesh-networks')}"


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
    head = "modules | held back | worst that passed: points lost on own tasks | on others' tasks"
    return f"{table(head, rows)}\n\n{source('quarantine')}"


def hostile_client() -> str:
    r = read("hostile-client")
    rows = []
    for c in r["cells"]:
        seconds = f"{c['seconds']:.1f} ({c['ratio']:.1f} ×)" if c["all_came"] else "not all came"
        most = [
            f"{max(c[key].values()):.0f}"
            for key in ("peak_over_base_mb", "threads_over_base", "descriptors_over_base")
        ]
        asked = f"{c['ask_median_ms']:.0f} ({c['ask_slowest_ms']:.0f})"
        wrong = str(len(c["adopted_wrongly"]))
        rows.append(
            [c["setting"], c["group"] or "nobody", seconds, asked, *most, f"{max(c['disk_mb'], 0.0):.1f}", wrong]
        )
    head = (
        "set-up | client | all modules there, s | answers, ms (slowest) | memory over base, MB | threads | "
        "descriptors | disk, MB | adopted wrongly"
    )
    return f"{table(head, rows)}\n\n{source('hostile-client')}"
