"""Compare warm and cold start on new tasks whose classes are already known, from few images to all.

    python benchmarks/warm_start.py ../shared/tasks

The pairs of old and new tasks are in `warm_pairs.py`. Test images are those of the new task. Our heads use the old
rows as the centre of the prior, as in `learn --warm-start auto`, against `never` on the same images. Then the
paper's epochs are run from old rows and from random ones, in three forms.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from synergy_tasks import accuracy, few, interval, load, row_accuracy
from threadpoolctl import threadpool_limits
from warm_pairs import Knowledge, Pair, Pairs

from skillmesh.backbone.backbone import default_folder
from skillmesh.data.folder import find_tasks
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.class_names.encoders import name_encoder
from skillmesh.learning.head import fit_head
from skillmesh.learning.rows import EpochSettings, Norm, started_rows, train_rows
from skillmesh.learning.warm_start import fit_from, level

HERE = Path(__file__).parent
SHOTS: tuple[int | None, ...] = (1, 3, 5, 10, None)
NORMS: tuple[Norm, ...] = ("plain", "two", "infinity")
FEW_MATCHES = 2
"""Minimum number of shared classes for which the paper's epochs are run ..."""
EVERY = 3
"""... and on every third split task, since they take long."""

shared: dict[str, Any] = {}
"""Tasks and what was learned of them; inherited by forked processes."""


def heads(pair: Pair, known: Knowledge, shots: int | None, seed: int) -> dict[str, Any]:
    """Return the accuracy of our heads. With a number of shots there are no validation images."""
    x, labels = pair.train
    chosen = few(labels, shots, np.random.default_rng(1000 + seed))
    train, val = (x[chosen], labels[chosen]), pair.val if shots is None else (x[:0], labels[:0])
    cold = fit_head(*train, *val, pair.classes)
    warm, _ = fit_from(known.sources(pair), train, val, pair.classes)
    return {
        "cold": accuracy(cold.head, *pair.test),
        "warm": accuracy(warm.head, *pair.test),
        "pull": round(warm.pull, 4),
    }


def curves(pair: Pair, known: Knowledge, norm: Norm, shots: int | None, seed: int, epochs: int) -> dict[str, Any]:
    """Return test accuracy by epoch, from old and from random rows, and the epochs to 95 % of the cold best."""
    x, labels = pair.train
    chosen = few(labels, shots, np.random.default_rng(1000 + seed))
    settings = EpochSettings(epochs, norm=norm, seed=seed)
    old = known.surest(pair, norm)
    found: dict[str, list[float]] = {}
    for name, rows in {"cold": {}, "warm": old if norm == "plain" else level(old)}.items():
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
            "epoch_0": round(curve[0], 3),
            "last": round(curve[-1], 3),
        }
        for name, curve in found.items()
    }


def measure_seed(seed: int) -> list[dict[str, Any]]:
    pairs, known, options = shared["pairs"], shared["known"], shared["options"]
    found = []
    with threadpool_limits(1, "blas"):  # as in agents
        cut = list(pairs.cut(seed))
        long = {pair.new for pair in cut[::EVERY]}
        for pair in (*pairs.named(seed), *pairs.bank(seed), *cut, *pairs.exp(seed)):
            about = {"sort": pair.sort, "old": pair.old, "new": pair.new, "seed": seed}
            about |= {"matched": pair.matched, "classes": pair.classes}
            found += [about | row for row in _heads(pair, known, seed)]
            if _goes_long(pair, long) and options.epochs:
                found += [about | row for row in _curves(pair, known, options, seed)]
            print(f"seed {seed}: {pair.sort}: {pair.old[:60]} → {pair.new}", flush=True)
    return found


def _goes_long(pair: Pair, cut: set[str]) -> bool:
    if pair.sort == "cut in two":
        return pair.new in cut
    return pair.sort != "whole bank" and pair.matched >= FEW_MATCHES


def _heads(pair: Pair, known: Knowledge, seed: int) -> Iterator[dict[str, Any]]:
    for shots in SHOTS:
        yield {"way": "head", "shots": shots or "all"} | heads(pair, known, shots, seed)


def _curves(pair: Pair, known: Knowledge, options: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    for norm in NORMS:
        for shots in options.epoch_shots:
            figures = curves(pair, known, norm, shots or None, seed, options.epochs)
            yield {"way": norm, "shots": shots or "all"} | figures


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return averages over pairs of one kind, with intervals over seeds."""
    groups = defaultdict(lambda: defaultdict(list))
    for row in found:
        sorts = [row["sort"], *(["all pairs"] if row["sort"] in ("same names", "cut in two") else [])]
        if row["sort"] == "same names" and row["matched"] >= FEW_MATCHES:
            sorts.append("same names, two or more")
        for sort in sorts:
            groups[sort, row["way"], row["shots"]][row["seed"]].append(row)
    return [_summed(key, seeds) for key, seeds in groups.items()]


def per_pair(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each pair's averages over seeds, instead of a hundred thousand single figures."""
    groups = defaultdict(lambda: defaultdict(list))
    for row in found:
        key = row["sort"], row["old"], row["new"], row["matched"], row["classes"], row["way"], row["shots"]
        groups[key][row["seed"]].append(row)
    names = ("sort", "old", "new", "matched", "classes")
    return [
        dict(zip(names, key[:5], strict=True)) | _summed((key[0], *key[5:]), seeds)
        for key, seeds in groups.items()
    ]


def _summed(key: tuple[str, str, Any], seeds: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    def averaged(figure: Any) -> dict[str, Any]:
        return interval([float(np.mean([figure(row) for row in rows])) for rows in seeds.values()])

    about = dict(zip(("pairs", "way", "shots"), key, strict=True)) | {"count": len(next(iter(seeds.values())))}
    if key[1] == "head":
        figures = {name: averaged(lambda row, name=name: row[name]) for name in ("cold", "warm")}
        gain = averaged(lambda row: row["warm"] - row["cold"])
        return about | figures | {"gain": gain, "taken": averaged(lambda row: 100.0 * (row["pull"] > 0))}
    for name in ("cold", "warm"):
        for figure in ("epoch_0", "last", "epochs_to_95"):
            about[f"{name}_{figure}"] = averaged(lambda row, name=name, figure=figure: row[name][figure])
    return about | {"gain": averaged(lambda row: row["warm"]["last"] - row["cold"]["last"])}


def _print(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(
            {name: value["mean"] if isinstance(value, dict) else value for name, value in row.items()}, flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=30, help="epochs of the paper's method; 0: skip it")
    parser.add_argument("--epoch-shots", type=int, nargs="+", default=[10], help="images per class; 0: all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--representation", default="descriptor")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "warm-start.json")
    options = parser.parse_args()
    paths = find_tasks(options.tasks)
    chosen = {name: value for name, value in vars(options).items() if name not in ("tasks", "out", "workers")}
    origin = provenance("python benchmarks/warm_start.py ../shared/tasks", paths, seed=0) | {"settings": chosen}
    tasks, _ = load(paths, options.representation)
    encoder = name_encoder(default_folder())
    shared.update(pairs=Pairs(tasks, encoder), known=Knowledge(options.epochs), options=options)
    with threadpool_limits(1, "blas"):
        for pair in (*shared["pairs"].named(0), *shared["pairs"].exp(0)):  # once for all processes
            shared["known"].sources(pair)
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(options.workers, mp_context=fork) as pool:
        found = []
        for rows in pool.map(measure_seed, range(options.seeds)):
            found += rows
            _print(summary(found))
    report = {"encoder": encoder.name, "threshold": encoder.threshold, "summary": summary(found)}
    report |= {"pairs": per_pair(found), "provenance": origin}
    options.out.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
