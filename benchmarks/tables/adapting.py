"""Tables on adapting the backbone to a task: accuracy, cost, memory and sizes."""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean, stdev
from typing import Any

from tables import read, source, table

PAPERS_WAY = "biases, the paper's way"
METHODS = {
    "head on features": "no adaptation, head on features",
    "head on descriptor": "no adaptation, head on descriptor (default)",
    "biases, our way": "biases, `--adapt always`",
    "biases, our way, auto": "biases, `--adapt auto`",
    "biases, our way, last half": "biases, `--adapt always --layers last-half`",
    PAPERS_WAY: "biases, trained as in the paper",
    "biases, the paper's way, + descriptor": "biases, trained as in the paper, then a head on the descriptor",
    "head2toe, from our biases": "Head2Toe, `--adapt always`",
    "head2toe, from the paper's biases": "Head2Toe, from biases trained as in the paper",
    "reprogramming": "reprogramming, `--adapt always`",
}
"""Methods by their names in the results, and what the tables call them."""
HEADLINE = (
    "head on descriptor",
    "biases, our way, auto",
    "biases, our way",
    PAPERS_WAY,
    "head2toe, from our biases",
    "reprogramming",
)


def biases() -> str:
    tasks = read("biases")["tasks"].values()
    rows = []
    for name in next(iter(tasks))["methods"]:
        cells = [
            mean_of(tasks, name, key, scale) for key, scale in (("test", 100), ("passes", 1), ("bytes", 1e-3))
        ]
        rows.append([METHODS[name], *cells, f"{share_of_papers_cost(tasks, name):.3f}"])
    head = "method | test accuracy, % | cost, passes over the images | module, KB | MACs as a share of the paper's"
    return f"{table(head, rows)}\n\n{source('biases')}"


def biases_headline() -> str:
    tasks = read("biases")["tasks"].values()
    rows = [
        [
            METHODS[name],
            mean_of(tasks, name, "test", 100),
            f"{share_of_papers_cost(tasks, name):.2f}",
            mean_of(tasks, name, "bytes", 1e-3) or "–",
        ]
        for name in HEADLINE
    ]
    head = "method | test accuracy, % | cost of learning, paper = 1 | module, KB"
    return f"{table(head, rows)}\n\n{source('biases')}"


def share_of_papers_cost(tasks: Collection[dict[str, Any]], method: str) -> float:
    """Return a method's MACs over all tasks, divided by those of the paper's training."""
    spent, paper = (
        sum(task["methods"][name]["passes"] * sum(task["images"][:2]) for task in tasks)
        for name in (method, PAPERS_WAY)
    )
    return float(spent / paper)


def mean_of(tasks: Collection[dict[str, Any]], method: str, key: str, scale: float) -> str:
    """Return the average over tasks, or nothing if some task lacks the figure."""
    found = [task["methods"][method][key] for task in tasks]
    return "" if None in found else f"{scale * fmean(found):.1f}"


def paired(before: str, after: str) -> str:
    """Return the gain in points with its 95 % interval, paired by image."""
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
    head = (
        "task | training images | no adaptation, % | biases, always, % | gain with 95 % interval, points "
        "| biases, auto, % | kept by auto | biases as in the paper, %"
    )
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
        rows.append([METHODS[name], *cells, passes, f"{max(larger) / 1000:+.1f}" if larger else ""])
    columns = ["method", *(f"{task}, %" for task in tasks), "cost, passes over the images"]
    head = " | ".join([*columns, "module against no adaptation, KB, at most"])
    return f"{table(head, rows)}\n\n{source('biases-xception')}"


ADDING = {
    "plain": "one image, one thread: no biases",
    "constants": "biases as constants of a session made for the task (as it is)",
    "inputs": "biases as inputs of one session for all tasks",
}


def biases_cost() -> str:
    speed, memory = read("biases-speed"), read("biases-memory")
    full = memory["mb"]["full fine-tuning"]
    rows = [
        [f"memory for training with batches of {memory['batch']}: {way}", f"{mb:,.0f} MB", f"{mb / full:.2f}"]
        for way, mb in memory["mb"].items()
    ]
    what = f"answering {speed['images']} images of 8 tasks, 4 with biases, against a plain forward pass"
    rows.append([what, f"{speed['answer_seconds']:.1f} s", f"{speed['ratio']:.2f}"])
    ways = speed["milliseconds"]
    rows += [[what, f"{ways[way]:.1f} ms", f"{ways[way] / ways['plain']:.2f}"] for way, what in ADDING.items()]
    rows.append(["making a task's session, at its first image", f"{ways['making']:.0f} ms", "–"])
    head = "what was measured | result | ratio"
    return f"{table(head, rows)}\n\n{source('biases-memory')} · {source('biases-speed')}"


def biases_counts() -> str:
    found = read("biases-counts")
    networks = [name for name in found if name != "provenance"]
    giga = {
        "forward pass of one image, GMACs": "forward_macs",
        "backward pass, biases in all layers, GMACs": "backward_macs_all",
        "backward pass, biases in the last half, GMACs": "backward_macs_last_half",
        "training as in the paper (20 epochs), GMACs per image": "paper_macs_per_image",
        "training here (3 epochs), GMACs per image": "our_macs_per_image",
    }
    rows = [["layers that can have biases", *(str(found[name]["layers"]) for name in networks)]]
    rows.append(["channels of these layers", *(f"{found[name]['channels']:,}" for name in networks)])
    rows.append(
        ["bytes of biases in a module, at most", *(f"{found[name]['bytes_at_most']:,}" for name in networks)]
    )
    rows += [[label, *(f"{found[name][key] / 1e9:.2f}" for name in networks)] for label, key in giga.items()]
    return f"{table(' | '.join(['quantity', *networks]), rows)}\n\n{source('biases-counts')}"
