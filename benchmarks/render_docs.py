"""Put the committed results into the docs: tables between `<!-- table NAME -->` and `<!-- end -->` are made here.

python benchmarks/render_docs.py            # write the tables
python benchmarks/render_docs.py --check    # fail where a document and the results differ (CI does this)
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
BLOCK = re.compile(r"<!-- table ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)

PAPERS_WAY = "biases, the paper's way"
METHODS = {
    "sketch": "**sketch** on the descriptor (default)",
    "sketch-compact": "**sketch** `--compact`",
    "maha": "maha, m = 5, on features",
    "gmmc-floor": "gmmc, k = 25, variance floor 0.01, on sqrt-features",
    "gmmc": "gmmc, k = 25, scikit-learn's defaults, on features",
}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def kilobytes(count: float) -> str:
    return f"{count / 1000:.0f}"


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = [c.strip() for c in head.split("|")]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" + "---:|" * (len(columns) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def source(*names: str) -> str:
    """Where a table's rows come from; rows measured at several commits name all of these."""
    origins = [read(name)["provenance"] for name in names]
    first = origins[0]
    commits = ", ".join(sorted({origin["commit"] for origin in origins}))
    data = f"data {first['data_hash'][:12]}"
    line = f"`{first['command']}` · commit {commits} · seed {first['seed']} · {data} · {first['date']}"
    remarks = [origin["remark"] for origin in origins if "remark" in origin]
    return " · ".join([line, *remarks])


def accuracy() -> str:
    rows = []
    for name, label in METHODS.items():
        r = read(name)
        figures = (r["oracle_accuracy"], r["task_accuracy"], r["final_accuracy"])
        rows.append([label, *map(percent, figures), kilobytes(r["anchor_bytes"]), kilobytes(r["module_bytes"])])
    head = "mapper | task given, % | task found, % | final, % | anchor, KB | module, KB"
    return f"{table(head, rows)}\n\n{source(*METHODS)}"


def per_task() -> str:
    rows = []
    for t in read("sketch")["tasks"]:
        figures = map(percent, (t["oracle_accuracy"], t["task_accuracy"], t["final_accuracy"], t["known_unknown"]))
        taken = sorted(t["confusions"].items(), key=lambda item: -item[1])[:2]
        others = ", ".join(f"{name} ({n})" for name, n in taken) or "–"
        rows.append([t["task"], str(t["classes"]), str(t["test_images"]), *figures, others])
    head = "task | classes | test images | task given, % | task found, % | final, % | unknown, % | taken for"
    return table(head, rows)


def transfer() -> str:
    rows = []
    labels = {"sketch": "sketch", "maha": "maha", "gmmc-floor": "gmmc, floor 0.01", "gmmc": "gmmc, defaults"}
    labels["sketch-shipped"] = "sketch, the shipped calibration (it saw both halves)"
    labels["sketch-compact"] = "sketch `--compact`"
    for name, label in labels.items():
        halves = [read(f"half-{half}-{name}") for half in "ab"]
        cells = [percent(h[key]) for h in halves for key in ("oracle_accuracy", "task_accuracy", "final_accuracy")]
        rows.append([label, *cells])
    head = "calibration from the other half | A: given | A: task | A: final | B: given | B: task | B: final"
    return f"{table(head, rows)}\n\n{source(*(f'half-{half}-{name}' for name in labels for half in 'ab'))}"


def drawn() -> str:
    rows = []
    for name in ("sketch", "maha"):
        for key, label in ((name, "shipped"), (f"drawn-{name}", "drawn tasks alone")):
            r = read(key)
            figures = (r["oracle_accuracy"], r["task_accuracy"], r["final_accuracy"])
            rows.append([f"{name}, calibration from {label}", *map(percent, figures)])
    head = "mapper | task given, % | task found, % | final, %"
    return f"{table(head, rows)}\n\n{source('drawn-sketch', 'drawn-maha', 'sketch', 'maha')}"


def unknown() -> str:
    r = read("unknown")
    rows = []
    for split in [*r["splits"], r | {"seed": "mean"}]:
        keys = ("known_unknown", "hidden_unknown", "final_accuracy", "strict_accuracy")
        rows.append([str(split["seed"]), f"{split['unknown_auroc']:.3f}", *(percent(split[key]) for key in keys)])
    head = (
        "split | AUROC | known images called unknown, % | hidden ones called unknown, % | final, answer forced, % "
        "| final, unknown counted wrong, %"
    )
    return f"{table(head, rows)}\n\n{source('unknown')}"


def robustness() -> str:
    r = read("robustness")
    rows = []
    for change in r["mappers"]["sketch"]:
        cells = [
            f"{percent(m[change]['task_accuracy'])} / {percent(m[change]['final_accuracy'])}"
            for m in r["mappers"].values()
        ]
        rows.append([change, *cells])
    return f"{table('test images | ' + ' | '.join(r['mappers']), rows)}\n\n{source('robustness')}"


def xception() -> str:
    rows = []
    for name, label in METHODS.items():
        if name != "sketch-compact":
            r = read(f"xception-{name}")
            figures = (r["oracle_accuracy"], r["task_accuracy"], r["final_accuracy"])
            rows.append(
                [label, *map(percent, figures), kilobytes(r["anchor_bytes"]), kilobytes(r["module_bytes"])]
            )
    head = "mapper (Xception) | task given, % | task found, % | final, % | anchor, KB | module, KB"
    return (
        f"{table(head, rows)}\n\n{source(*(f'xception-{name}' for name in METHODS if name != 'sketch-compact'))}"
    )


def speed() -> str:
    r = read("speed")
    rows = [[row["what"], row["ours"], row["other"], f"{row['ratio']:.2f}", row["aim"]] for row in r["rows"]]
    return f"{table('what | ours | against | ratio | aim', rows)}\n\n{r['machine']} · {source('speed')}"


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
        f"{r['slowest_adoption_seconds']:.1f} s."
    )
    head = "answers | count | median, ms | p99, ms | slowest, ms"
    return f"{table(head, rows)}\n\n{line}\n\n{source('mesh-answers')}"


def mesh_networks() -> str:
    rows = [[event, f"{seconds:.1f}"] for event, seconds in read("mesh-networks")["seconds"].items()]
    return f"{table('all converge after | s', rows)}\n\n{source('mesh-networks')}"


def biases() -> str:
    tasks = read("biases")["tasks"].values()
    paper = sum(t["methods"][PAPERS_WAY]["passes"] * sum(t["images"][:2]) for t in tasks)
    rows = []
    for name in next(iter(tasks))["methods"]:
        cells = [
            mean_of(tasks, name, key, scale) for key, scale in (("test", 100), ("passes", 1), ("bytes", 1e-3))
        ]
        spent = sum(t["methods"][name]["passes"] * sum(t["images"][:2]) for t in tasks)
        rows.append([name, *cells, f"{spent / paper:.3f}"])
    head = "method | test, % | passes | module, KB | MACs against the paper's way"
    return f"{table(head, rows)}\n\n{source('biases')}"


def mean_of(tasks: Collection[dict[str, Any]], method: str, key: str, scale: float) -> str:
    """The average over tasks; nothing where not every task has the figure."""
    found = [task["methods"][method][key] for task in tasks]
    return "" if None in found else f"{scale * fmean(found):.1f}"


def paired(before: str, after: str) -> str:
    """The gain in points with its 95 % interval, from what was right of the same images."""
    gains = [int(b) - int(a) for a, b in zip(before, after, strict=True)]
    return f"{100 * fmean(gains):+.1f} ± {196 * stdev(gains) / len(gains) ** 0.5:.1f}"


def biases_per_task() -> str:
    rows = []
    for name, task in read("biases")["tasks"].items():
        methods = task["methods"]
        plain, ours = methods["head on descriptor"], methods["biases, our way"]
        auto = methods["biases, our way, auto"]
        rows.append(
            [
                name,
                str(task["images"][0]),
                f"{100 * plain['test']:.1f}",
                f"{100 * ours['test']:.1f}",
                paired(plain["right"], ours["right"]),
                f"{100 * auto['test']:.1f}",
                "yes" if auto["trial"].endswith("; kept") else "no",
                f"{100 * methods[PAPERS_WAY]['test']:.1f}",
            ]
        )
    head = "task | training images | descriptor | our biases | gain, 95 % paired | auto | kept | the paper's way"
    return f"{table(head, rows)}\n\n{source('biases')}"


def biases_xception() -> str:
    tasks = read("biases-xception")["tasks"]
    rows = []
    for name in next(iter(tasks.values()))["methods"]:
        found = [task["methods"][name] for task in tasks.values()]
        plain = [task["methods"]["head on descriptor"] for task in tasks.values()]
        larger = [a["bytes"] - b["bytes"] for a, b in zip(found, plain, strict=True) if a["bytes"]]
        cells = [f"{100 * row['test']:.1f}" for row in found]
        passes = f"{fmean(row['passes'] for row in found):.1f}"
        rows.append([name, *cells, passes, f"{max(larger) / 1000:+.1f}" if larger else ""])
    head = " | ".join(["method", *tasks, "passes", "KB more than the descriptor's, at most"])
    return f"{table(head, rows)}\n\n{source('biases-xception')}"


def biases_cost() -> str:
    speed, memory = read("biases-speed"), read("biases-memory")
    full = memory["mb"]["full fine-tuning"]
    rows = [
        [f"memory of training, batch {memory['batch']}: {way}", f"{mb:,.0f} MB", f"{mb / full:.2f}"]
        for way, mb in memory["mb"].items()
    ]
    what = f"answering {speed['images']} images of 8 tasks, 4 with biases, against a bare pass"
    rows.append([what, f"{speed['answer_seconds']:.1f} s", f"{speed['ratio']:.2f}"])
    rows.append(["swapping biases", f"{speed['swap_milliseconds']:.2f} ms", "–"])
    return f"{table('what | measured | ratio', rows)}\n\n{source('biases-memory')} · {source('biases-speed')}"


def biases_counts() -> str:
    found = read("biases-counts")
    networks = [name for name in found if name != "provenance"]
    giga = {
        "forward pass of one image, GMACs": "forward_macs",
        "backward, all layers biased": "backward_macs_all",
        "backward, last half": "backward_macs_last_half",
        "the paper's 20 epochs, per training image": "paper_macs_per_image",
        "our 3 epochs, per training image": "our_macs_per_image",
    }
    rows = [["layers with biases", *(str(found[name]["layers"]) for name in networks)]]
    rows.append(["channels", *(f"{found[name]['channels']:,}" for name in networks)])
    rows.append(["bytes in a module, at most", *(f"{found[name]['bytes_at_most']:,}" for name in networks)])
    rows += [[label, *(f"{found[name][key] / 1e9:.2f}" for name in networks)] for label, key in giga.items()]
    return f"{table(' | '.join(['', *networks]), rows)}\n\n{source('biases-counts')}"


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
                percent(r["oracle_accuracy"]),
                "–" if together is None else percent(together["final_accuracy"]),
                percent(r["task_accuracy"]),
                percent(r["final_accuracy"]),
                equal,
                "all alike" if shared["same_answers"] else "DIFFERENT",
            ]
        )
    head = (
        "method, sharing, executor | agents | task given, % | all data together, % | task found, % | final, % | "
        "macro averages against `eval` | agents' answers"
    )
    return f"{table(head, rows)}\n\n{source('challenge-runs')}"


def challenge_costs() -> str:
    rows = []
    for r in read("challenge-runs")["runs"]:
        c = r["costs"]
        macs = (f"{c[name]:.2e}" for name in ("teacher", "communication", "student"))
        shares = (f"{c[name]:.4f}" for name in ("efficiency", "efficiency_with_one_rebuild"))
        rows.append(
            [
                f"{r['method']}, {r['sharing']['how']}",
                str(r["agents"]),
                *macs,
                f"{c['speedup']:.2f}",
                *shares,
                f"{c['busiest_speedup']:.2f}",
                f"{r['wall_seconds']['learning_seconds']:.0f}",
            ]
        )
    head = (
        "method, sharing | agents | teacher, MACs | communication, MACs | student, MACs | speedup | efficiency | "
        "efficiency, one rebuild | speedup of the busiest | learning, s (warm cache)"
    )
    return f"{table(head, rows)}\n\n{source('challenge-runs')}"


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


def paper(name: str) -> str:
    """A table of the paper, each figure beside ours, and the notes that its cells refer to."""
    content = read("paper")["tables"][name]
    rows = []
    for cell in content["cells"]:
        figures = [cell[key] or "–" for key in ("printed", "ours", "reached")]
        verdict = f"{cell['verdict']} ({cell['note']})" if cell["note"] else cell["verdict"]
        rows.append([f"{cell['row']}: {cell['column']}", *figures, verdict, cell["formula"] or "–"])
    notes = "\n".join(f"{number}. {note}" for number, note in enumerate(content["notes"], start=1))
    head = "figure | paper | by its formula | by an assumption | verdict | formula"
    return f"{table(head, rows)}\n\n{notes}\n\n{source('paper')}"


def paper_datasets() -> str:
    account = read("paper")["datasets"]
    sizes = ("tasks", "classes", "train", "val", "test", "images")
    rows = [[step["what"], *(f"{step[size]:,}" for size in sizes)] for step in account["steps"]]
    parts = [table(f"rows | {' | '.join(sizes)}", rows)]
    for key in ("known", "unknown"):
        parts += [f"What is {key}:", "\n".join(f"- {line}" for line in account[key])]
    return "\n\n".join([*parts, source("paper")])


def study(name: str) -> str:
    found = read(f"study-{name}")
    rows = [[_figure(value) for value in row.values()] for row in found["rows"]]
    notes = "\n".join(f"- {note}" for note in found["notes"])
    return f"{table(' | '.join(found['rows'][0]), rows)}\n\n{notes}\n\n{source(f'study-{name}')}"


def _figure(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.2E}" if abs(value) >= 1e6 or 0 < abs(value) < 1e-3 else f"{value:,.4g}"
    return str(value)


TABLES: dict[str, Callable[[], str]] = {
    "challenge-runs": challenge_runs,
    "challenge-costs": challenge_costs,
    "challenge-sweep": challenge_sweep,
    "challenge-speedup": challenge_speedup,
    "accuracy": accuracy,
    "per-task": per_task,
    "transfer": transfer,
    "drawn": drawn,
    "unknown": unknown,
    "robustness": robustness,
    "xception": xception,
    "speed": speed,
    "mesh": mesh,
    "mesh-answers": mesh_answers,
    "mesh-networks": mesh_networks,
    "quarantine": quarantine,
    "biases": biases,
    "biases-per-task": biases_per_task,
    "biases-xception": biases_xception,
    "biases-cost": biases_cost,
    "biases-counts": biases_counts,
    "paper-single": partial(paper, "single"),
    "paper-parallel": partial(paper, "parallel"),
    "paper-replay": partial(paper, "replay"),
    "paper-sharing": partial(paper, "sharing"),
    "paper-mapper": partial(paper, "mapper"),
    "paper-datasets": paper_datasets,
    "study-ewc-shipping": partial(study, "ewc-shipping"),
    "study-replay": partial(study, "replay"),
    "study-maha-macs": partial(study, "maha-macs"),
    "study-macs": partial(study, "macs"),
}


def rendered(text: str) -> str:
    return BLOCK.sub(lambda found: f"<!-- table {found[1]} -->\n{TABLES[found[1]]()}\n<!-- end -->", text)


def main() -> None:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = document.read_text()
        if (new := rendered(text)) != text:
            stale.append(document.relative_to(ROOT))
            if not check:
                document.write_text(new)
    for document in stale:
        print(f"{document}: {'its tables are not what docs/results says; run make docs' if check else 'written'}")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
