"""Choose how heads are merged, on tasks that are not in the bank of `merge.py`, and never on test images.

    python benchmarks/merge_choice.py ../shared/tasks

Merging two halves is judged for all these tasks on validation images that the heads have not seen. Ways to extend
a task are judged on every fourth training image, held out, of every third of these tasks with at most 700 images.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from merge import EVERY, HERE, rounded
from synergy_tasks import Task, halves, load
from threadpoolctl import threadpool_limits

from skillmesh.anchors import AnchorSettings
from skillmesh.anchors.gaussians import Statistics, merged, pooled_precision
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.calibration import Prior
from skillmesh.data.folder import find_tasks
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.head import Fit, Head, Labels, calibrate, closed_form, fit_head, fit_path
from skillmesh.numerics.arrays import Floats
from skillmesh.synergy import continuing
from skillmesh.synergy.continuing import Images, Known, joined
from skillmesh.synergy.merging import HeadPart, combined

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
STRENGTHS = (1.0, 0.1, 0.01)
MOST_IMAGES = 700
"""Maximum of training images of a task that is extended in twenty ways."""
HOLD_BACK = 4
"""One in this many training images is held out to judge extended tasks."""


def chosen_on_others(paths: Sequence[Path], seed: int) -> dict[str, Any]:
    """Return all figures of the choice: for merged tasks, and for some extended ones."""
    tasks, prior = load(paths, "descriptor")
    merging, going = [], []
    for number, task in enumerate(tasks):
        merging += [_shares(task, prior, seed)] if len(task.labels["val"]) else []
        if number % 3 == 1 and len(task.labels["train"]) <= MOST_IMAGES:
            going += _ways(task, prior, seed)
        print(task.name, flush=True)
    return {"merge": _averaged(merging), "continue": _averaged(going)}


def _averaged(found: list[dict[str, tuple[float, float]]]) -> dict[str, Any]:
    return {
        name: {
            "tasks": len(results),
            "accuracy": fmean(accuracy for accuracy, _ in results),
            "log_loss": fmean(loss for _, loss in results),
        }
        for name in dict.fromkeys(name for each in found for name in each)
        for results in [[each[name] for each in found if name in each]]
    }


def _judged(head: Head, x: Floats, labels: Labels) -> tuple[float, float]:
    """Return the accuracy, and the log-loss at the best temperature."""
    logits = head.logits(x)
    return 100 * float(np.mean(logits.argmax(axis=1) == labels)), calibrate(logits, labels)[1]


def _learned(train: Images, val: Images, classes: int) -> tuple[Fit, SketchAnchor, np.ndarray]:
    """Learn a task as in a module, but without the last fit that adds validation images."""
    fit = fit_head(*train, *val, classes)
    anchor = SketchAnchor.read(SketchAnchor.fit(*train, classes, AnchorSettings()).tensors())
    return fit, anchor, np.bincount(train[1], minlength=classes).astype(np.float64)


def _shares(task: Task, prior: Prior, seed: int) -> dict[str, tuple[float, float]]:
    """Judge merges of two halves by several weights of heads and closed form, on the validation images."""
    classes, val = len(task.classes), task.split("val")
    places = np.arange(classes)
    known = [_learned(half.split("train"), half.split("val"), classes) for half in halves(task, seed)]
    anchor = merged([(Statistics.of_gaussians(a, n), places) for _, a, n in known], classes).gaussians()
    closed = closed_form(anchor.means, pooled_precision([anchor], prior))
    parts = [HeadPart(Head.read(fit.before.tensors()), fit.temperature, places, n) for fit, _, n in known]
    found = {f"{s:g} heads": _judged(combined(parts, closed, anchor.means, s)[0], *val) for s in SHARES}
    whole = _learned(task.split("train"), val, classes)[0]
    return {"whole": _judged(whole.before, *val), "half": _judged(parts[0].head, *val)} | found


def _ways(task: Task, prior: Prior, seed: int) -> list[dict[str, tuple[float, float]]]:
    """Judge ways to extend a task, by images and by classes, on held-out training images."""
    classes, (x, labels), (val, val_labels) = len(task.classes), task.split("train"), task.split("val")
    back = _turn(labels) % HOLD_BACK == HOLD_BACK - 1
    judges, kept = (x[back], labels[back]), (x[~back], labels[~back])
    if np.bincount(kept[1], minlength=classes).min() < 2 or not len(judges[0]):
        return []
    whole = fit_head(*kept, val, val_labels, classes).head
    cuts = {"images": (_turn(kept[1]) % 2 == 0, _turn(val_labels) % 2 == 0, np.arange(classes))}
    if classes > 3:
        old = np.arange(classes // 2)
        cuts["classes"] = np.isin(kept[1], old), np.isin(val_labels, old), old
    found = []
    for name, (mine, mine_val, places) in cuts.items():
        parts = [(kept[0][m], kept[1][m]) for m in (mine, ~mine)]
        vals = [(val[m], val_labels[m]) for m in (mine_val, ~mine_val)]
        heads = _candidates(parts, vals, places, classes, prior, seed)
        row = {"whole": whole} | heads
        found.append({f"{name}: {way}": _judged(head, *judges) for way, head in row.items()})
    return found


def _candidates(
    parts: list[Images], vals: list[Images], places: np.ndarray, classes: int, prior: Prior, seed: int
) -> dict[str, Head]:
    fit, anchor, counts = _learned(parts[0], vals[0], len(places))
    old = Known(Head.read(fit.head.tensors()), fit.temperature, anchor, counts, vals[0])
    statistics = merged(continuing._statistics(old, places, parts[1]), classes)
    together = continuing._together(old, places, parts[1], vals[1], statistics, prior)
    rows = np.zeros_like(together.weight)
    rows[places] = old.head.weight / np.float32(old.temperature)
    drawn = continuing._drawn(old, places, seed)
    images = joined(joined(parts[1], vals[1]), joined(vals[0], drawn))
    ways = [
        (name, centre, strength)
        for strength in STRENGTHS
        for name, centre in (("nothing", None), ("the old head", rows), ("both heads and anchor", together.weight))
    ]
    found = {
        "new images alone, around the old head": fit_path(*parts[1], classes, [0.1], rows)[0],
        "both heads and anchor, no fit": together,
    }
    for name, centre, strength in ways:
        found[f"around {name}, strength {strength:g}"] = fit_path(*images, classes, [strength], centre)[0]
    before = [fit_path(*joined(parts[1], drawn), classes, [s], centre)[0] for _, centre, s in ways]
    losses = [_judged(head, *joined(vals[0], vals[1]))[1] for head in before]
    name, _, strength = ways[int(np.argmin(losses))]
    return found | {"what the kept images would choose": found[f"around {name}, strength {strength:g}"]}


def _turn(labels: Labels) -> np.ndarray:
    """Return how many images of its class precede each image."""
    turn = np.zeros(len(labels), dtype=np.int64)
    for c in np.unique(labels):
        turn[labels == c] = np.arange(int((labels == c).sum()))
    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "merge-choice.json")
    options = parser.parse_args()
    others = [path for index, path in enumerate(find_tasks([options.tasks])) if index % EVERY]
    origin = provenance("python benchmarks/merge_choice.py ../shared/tasks", others, seed=options.seed)
    with threadpool_limits(1, "blas"):
        report = rounded(chosen_on_others(others, options.seed)) | {"provenance": origin}
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
