"""Warm start against cold start."""

from __future__ import annotations

from typing import Any

from tables import read, source, table

NAME = "warm-start"
SORTS = {
    "same names": "same names",
    "same names, two or more": "same names, two or more",
    "whole bank": "several tasks of a bank",
    "cut in two": "same task, other images",
    "all pairs": "all pairs",
    "exp": "similar names (EXP)",
}
FORMS = {"plain": "Wx", "two": "W′x, 2-norm", "infinity": "W′x, infinity norm"}


def _ranged(figure: dict[str, Any], sign: bool = False) -> str:
    mean = f"{figure['mean']:+.1f}" if sign else f"{figure['mean']:.1f}"
    return f"{mean} ({figure['low']:.1f} … {figure['high']:.1f})"


def _of(way: str) -> list[dict[str, Any]]:
    rows = [row for row in read(NAME)["summary"] if row["way"] == way]
    return sorted(rows, key=lambda row: list(SORTS).index(row["pairs"]))


def _worst(pairs: str, shots: Any) -> str:
    """Return the smallest gain of a pair, averaged over seeds."""
    sorts = ("same names", "cut in two") if pairs == "all pairs" else (pairs.partition(",")[0],)
    least = 2 if "two or more" in pairs else 1
    gains = [
        r["gain"]["mean"]
        for r in read(NAME)["pairs"]
        if r["way"] == "head" and r["shots"] == shots and r["sort"] in sorts and r["matched"] >= least
    ]
    return f"{min(gains):+.1f}"


def short() -> str:
    """Return the headline of `shots`: warm accuracy, and the gain."""
    found = {(r["pairs"], r["shots"]): r for r in _of("head")}
    rows = []
    for pairs in ("same names", "whole bank", "cut in two"):
        by_shots = [found[pairs, shots] for shots in (1, 10, "all")]
        cells = [f"{r['warm']['mean']:.1f} ({r['gain']['mean']:+.1f})" for r in by_shots]
        rows.append([f"{SORTS[pairs]} ({by_shots[0]['count']})", *cells])
    return f"{table('warm accuracy % (gain) | 1 image per class | 10 | all', rows)}\n\n{source(NAME)}"


def shots() -> str:
    """Return accuracy by images per class."""
    rows = [
        [
            f"{SORTS[r['pairs']]} ({r['count']})",
            str(r["shots"]),
            f"{r['cold']['mean']:.1f}",
            f"{r['warm']['mean']:.1f}",
            _ranged(r["gain"], sign=True),
            _worst(r["pairs"], r["shots"]),
            f"{r['taken']['mean']:.0f} %",
        ]
        for r in _of("head")
    ]
    head = (
        "pairs (number) | images per class | cold % | warm % | gain (95 % interval) | worst pair | "
        "runs with rows used"
    )
    return f"{table(head, rows)}\n\n{source(NAME)}"


def pairs() -> str:
    """Return the gain of every pair with classes of the same name, and of every bank."""
    found: dict[tuple[Any, ...], dict[Any, dict[str, Any]]] = {}
    for r in read(NAME)["pairs"]:
        if r["way"] == "head" and r["sort"] in ("same names", "whole bank"):
            key = r["sort"], r["old"], r["new"], r["matched"], r["classes"]
            found.setdefault(key, {})[r["shots"]] = r
    rows = []
    for (_, old, new, matched, classes), by_shots in found.items():
        gains = [f"{by_shots[s]['gain']['mean']:+.1f}" for s in (1, 3, 5, 10, "all")]
        colds = [f"{by_shots[s]['cold']['mean']:.1f}" for s in (1, "all")]
        rows.append([f"{old} → {new}", f"{matched} of {classes}", *colds, *gains])
    head = (
        "known task → new task | classes matched | cold %, 1 image | cold %, all | "
        "gain, 1 image | 3 | 5 | 10 | all"
    )
    return f"{table(head, rows)}\n\n{source(NAME)}"


def epochs() -> str:
    """Return the paper's training from known rows and from random ones."""
    rows = []
    for way, form in FORMS.items():
        for r in (r for r in _of(way) if r["pairs"] != "same names, two or more"):  # all of them are that
            counts = [f"{r[f'{name}_epochs_to_95']['mean']:.1f}" for name in ("cold", "warm")]
            first = [f"{r[f'{name}_epoch_0']['mean']:.1f}" for name in ("cold", "warm")]
            last = [f"{r[f'{name}_last']['mean']:.1f}" for name in ("cold", "warm")]
            about = [f"{SORTS[r['pairs']]} ({r['count']})", form]
            rows.append([*about, *first, *counts, *last, _ranged(r["gain"], sign=True)])
    head = (
        "pairs (number) | forward pass | epoch 0: cold % | warm % | epochs to 95 %: cold | warm | "
        "last epoch: cold % | warm % | gain (95 % interval)"
    )
    return f"{table(head, rows)}\n\n{source(NAME)}"


def exp() -> str:
    """Return the paper's EXP-1 and EXP-2: five classes, each from a different known task."""
    found: dict[tuple[str, str], dict[Any, dict[str, Any]]] = {}
    for r in read(NAME)["pairs"]:
        if r["sort"] == "exp":
            found.setdefault((r["new"], r["old"]), {})[r["way"], r["shots"]] = r
    rows = []
    for (new, old), by_way in found.items():
        long = by_way["infinity", 10]
        counts = " → ".join(f"{long[f'{name}_epochs_to_95']['mean']:.1f}" for name in ("cold", "warm"))
        last = " → ".join(f"{long[f'{name}_last']['mean']:.1f}" for name in ("cold", "warm"))
        ours = [
            " → ".join(f"{by_way['head', s][name]['mean']:.1f}" for name in ("cold", "warm"))
            for s in (1, 10, "all")
        ]
        rows.append([f"{new}: {old}", counts, last, *ours])
    head = (
        "new task: class ← known task: class (similarity) | infinity norm, 10 images: epochs to 95 % | "
        "last epoch % | our prior: 1 image % | 10 | all"
    )
    return f"{table(head, rows)}\n\n{source(NAME)}"
