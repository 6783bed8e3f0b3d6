"""Warm start against cold: new tasks whose classes somebody knows already, from few images to all.

    python benchmarks/warm_start.py ../shared/tasks

Pairs are of two sorts. A task cut in two: its old half teaches, its new half, of other images, is learned. Two
tasks with classes of the same name: the one teaches, the other is learned, and the name may deceive (a digit in
writing is no digit in sign language). Test images are those of the new task. Heads are ours (the old row as the
centre of the prior, against today's head on the same images); then the paper's epochs from old rows against random
ones.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from synergy_tasks import Task, accuracy, few, interval, load, row_accuracy, same_names
from threadpoolctl import threadpool_limits

from skillmesh.challenge.provenance import provenance
from skillmesh.data.folder import find_tasks
from skillmesh.learning.head import Head, Labels, fit_head
from skillmesh.synergy.epochs import EpochSettings, Norm, started_rows, train_rows
from skillmesh.synergy.warm import centre_of, fit_warm
from skillmesh.tensors import Floats

HERE = Path(__file__).parent
SHOTS: tuple[int | None, ...] = (1, 3, 5, 10, None)
HALF = 10
"""A task is cut in two if each half has so many images of every class."""
NORMS: tuple[Norm, ...] = ("plain", "two", "infinity")


@dataclass(frozen=True)
class Pair:
    """Somebody who knows, and a task to learn."""

    sort: str
    old: str
    new: str
    known: tuple[Floats, Labels, Floats, Labels]
    """What the old head learns from."""
    old_classes: int
    matches: dict[int, int]
    """New class → old class."""
    train: tuple[Floats, Labels]
    val: tuple[Floats, Labels]
    test: tuple[Floats, Labels]
    classes: int


def cut(task: Task, seed: int) -> Pair:
    """Half of each class's images are the old task's, the rest the new one's, other halves for each seed."""
    x, labels = task.split("train")
    chosen = np.random.default_rng(seed)
    old = np.concatenate(
        [(of := chosen.permutation(np.flatnonzero(labels == c)))[: len(of) // 2] for c in np.unique(labels)]
    )
    new = np.setdiff1d(np.arange(len(labels)), old)
    classes = len(task.classes)
    return Pair(
        "cut in two", task.name, task.name, (x[old], labels[old], x[:0], labels[:0]), classes,
        {c: c for c in range(classes)}, (x[new], labels[new]), task.split("val"), task.split("test"), classes,
    )  # fmt: skip


def named(old: Task, new: Task) -> Pair:
    return Pair(
        "same names", old.name, new.name, (*old.split("train"), *old.split("val")), len(old.classes),
        same_names(old.classes, new.classes), new.split("train"), new.split("val"), new.split("test"),
        len(new.classes),
    )  # fmt: skip


def pairs_of(tasks: list[Task], options: argparse.Namespace, seed: int) -> Iterator[Pair]:
    large = [task for task in tasks if np.bincount(task.labels["train"]).min() >= 2 * HALF]
    for task in large[: options.cut]:
        yield cut(task, seed)
    by_name = [
        (old, new)
        for old in tasks
        for new in tasks
        if old is not new and len(same_names(old.classes, new.classes)) >= options.least
    ]
    for old, new in by_name[: options.named]:
        yield named(old, new)


class Knowledge:
    """Old rows, learned once for each pair that asks: ours as a module carries them, and the paper's by norm."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._kept: dict[tuple[Any, ...], Floats] = {}

    def rows(self, pair: Pair, seed: int, norm: Norm | None) -> dict[int, Floats]:
        key = (pair.sort, pair.old, seed if pair.sort == "cut in two" else 0, norm)
        if key not in self._kept:
            self._kept[key] = self._learned(pair, norm)
        return {new: self._kept[key][old] for new, old in pair.matches.items()}

    def _learned(self, pair: Pair, norm: Norm | None) -> Floats:
        x, labels, _, _ = pair.known
        if norm is None:
            return Head.read(fit_head(*pair.known, pair.old_classes).head.tensors()).weight
        start = started_rows(pair.old_classes, x.shape[1], {}, 0)
        return train_rows(x, labels, start, EpochSettings(self._epochs, norm=norm))


def heads(pair: Pair, rows: dict[int, Floats], shots: int | None, seed: int) -> dict[str, Any]:
    """Our heads. Few images are all there is: with a number of shots there are no validation images."""
    x, labels = pair.train
    chosen = few(labels, shots, np.random.default_rng(1000 + seed))
    val = pair.val if shots is None else (x[:0], labels[:0])
    cold = fit_head(x[chosen], labels[chosen], *val, pair.classes)
    warm = fit_warm(x[chosen], labels[chosen], *val, centre_of(pair.classes, x.shape[1], rows))
    return {
        "cold": accuracy(cold.head, *pair.test),
        "warm": accuracy(warm.head, *pair.test),
        "pull": round(warm.pull, 4),
    }


def curves(pair: Pair, known: Knowledge, norm: Norm, shots: int | None, seed: int, epochs: int) -> dict[str, Any]:
    """Test accuracy after each epoch, from old rows and from random ones, and epochs to 95 % of the cold best."""
    x, labels = pair.train
    chosen = few(labels, shots, np.random.default_rng(1000 + seed))
    settings = EpochSettings(epochs, norm=norm, seed=seed)
    found: dict[str, list[float]] = {}
    for name, rows in {"cold": {}, "warm": known.rows(pair, seed, norm)}.items():
        curve = found[name] = []
        start = started_rows(pair.classes, x.shape[1], rows, seed)
        train_rows(
            x[chosen], labels[chosen], start, settings,
            lambda _, weight, curve=curve: curve.append(row_accuracy(weight, *pair.test)),
        )  # fmt: skip
    target = 0.95 * max(found["cold"])
    return {
        name: {
            "epochs_to_95": next((e for e, value in enumerate(curve) if value >= target), epochs + 1),
            "epoch_0": curve[0],
            "last": curve[-1],
            "curve": [round(value, 2) for value in curve],
        }
        for name, curve in found.items()
    }


def measure(tasks: list[Task], options: argparse.Namespace) -> list[dict[str, Any]]:
    found, known = [], Knowledge(options.epochs)
    for seed in range(options.seeds):
        for pair in pairs_of(tasks, options, seed):
            about = {"sort": pair.sort, "old": pair.old, "new": pair.new, "seed": seed}
            about |= {"matched": len(pair.matches), "classes": pair.classes}
            rows = known.rows(pair, seed, None)
            for shots in SHOTS:
                figures = heads(pair, rows, shots, seed)
                found.append(about | {"way": "head", "shots": shots or "all"} | figures)
                print(seed, pair.old, "→", pair.new, shots or "all", figures, flush=True)
            for norm in NORMS if options.epochs else ():
                for shots in options.epoch_shots:
                    figures = curves(pair, known, norm, shots or None, seed, options.epochs)
                    found.append(about | {"way": norm, "shots": shots or "all"} | figures)
    return found


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Averages over pairs of one sort, with intervals over seeds."""
    groups = defaultdict(lambda: defaultdict(list))
    for row in found:
        for sort in (row["sort"], "all pairs"):
            groups[sort, row["way"], row["shots"]][row["seed"]].append(row)
    return [_summed(key, seeds) for key, seeds in groups.items()]


def _summed(key: tuple[str, str, Any], seeds: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    def averaged(figure: Any) -> dict[str, Any]:
        return interval([float(np.mean([figure(row) for row in rows])) for rows in seeds.values()])

    about = dict(zip(("pairs", "way", "shots"), key, strict=True)) | {"count": len(next(iter(seeds.values())))}
    if key[1] == "head":
        figures = {name: averaged(lambda row, name=name: row[name]) for name in ("cold", "warm")}
        return about | figures | {"gain": averaged(lambda row: row["warm"] - row["cold"])}
    for name in ("cold", "warm"):
        for figure in ("epoch_0", "last", "epochs_to_95"):
            about[f"{name}_{figure}"] = averaged(lambda row, name=name, figure=figure: row[name][figure])
    return about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--cut", type=int, default=1000, help="at most so many tasks are cut in two")
    parser.add_argument("--named", type=int, default=1000, help="at most so many pairs with the same names")
    parser.add_argument("--least", type=int, default=2, help="names that two tasks must share")
    parser.add_argument("--epochs", type=int, default=30, help="of the paper's way; 0: leave it out")
    parser.add_argument("--epoch-shots", type=int, nargs="+", default=[10], help="images per class; 0: all")
    parser.add_argument("--representation", default="descriptor")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "warm-start.json")
    options = parser.parse_args()
    paths = find_tasks(options.tasks)
    told = {name: value for name, value in vars(options).items() if name not in ("tasks", "out")}
    origin = provenance("python benchmarks/warm_start.py ../shared/tasks", paths, seed=0) | {"settings": told}
    tasks, _ = load(paths, options.representation)
    with threadpool_limits(1, "blas"):  # as agents learn
        found = measure(tasks, options)
    report = {"summary": summary(found), "pairs": found, "provenance": origin}
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    for row in report["summary"]:
        print({name: value.get("mean") if isinstance(value, dict) else value for name, value in row.items()})


if __name__ == "__main__":
    main()
