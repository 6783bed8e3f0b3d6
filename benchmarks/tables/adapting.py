"""What adapts the backbone."""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean, stdev
from typing import Any

from tables import read, source, table

PAPERS_WAY = "biases, the paper's way"


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
