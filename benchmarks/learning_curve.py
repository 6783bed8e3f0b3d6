"""Measure what more images of a task are worth: heads fitted to half of its training images and to all of them.

    python benchmarks/learning_curve.py ../shared/tasks --out docs/results/learning-curve.json

Half of each class's training images are drawn with a seed; the validation images are the same. Figures are on test
images, for the head after validation images are added, as in `skillmesh learn`. The accuracy on training images is
that of the head before they are added.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from skillmesh.backbone.backbone import Backbone, default_folder
from skillmesh.data.folder import TaskImages, find_tasks
from skillmesh.evaluation.evaluate import open_measured
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.examine import Part, examine
from skillmesh.learning.head import Head, fit_head
from skillmesh.numerics.arrays import Floats

SEED = 0


def measured(folder: TaskImages, backbone: Backbone) -> dict[str, Any]:
    parts = [
        Part.of(name, split.files, split.labels, backbone.describe(split.files))
        for name, split in folder.splits.items()
    ]
    sound = {part.split: part for part in examine(parts, folder.classes, backbone).parts}
    x = {name: backbone.represent(part.raw, "descriptor") for name, part in sound.items()}
    labels = {name: part.labels for name, part in sound.items()}
    classes = len(folder.classes)
    half = _half(labels["train"], classes)
    whole, fewer = (
        fit_head(x["train"][rows], labels["train"][rows], x["val"], labels["val"], classes)
        for rows in (np.arange(len(x["train"])), half)
    )
    counts = np.bincount(labels["train"], minlength=classes)
    return {
        "task": folder.name,
        "classes": classes,
        "training_images": len(x["train"]),
        "images_per_class": float(np.median(counts)),
        "validation_images": len(x["val"]),
        "test_images": len(x["test"]),
        "training_accuracy": _right(whole.before, x["train"], labels["train"]),
        "validation_accuracy": whole.accuracy,
        "test_accuracy": _right(whole.head, x["test"], labels["test"]),
        "test_accuracy_with_half": _right(fewer.head, x["test"], labels["test"]),
    }


def _half(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return the rows of half of each class's images, at least one per class."""
    chance = np.random.default_rng(SEED)
    rows = []
    for label in range(classes):
        mine = np.flatnonzero(labels == label)
        rows.append(chance.permutation(mine)[: max(1, len(mine) // 2)])
    return np.sort(np.concatenate(rows))


def _right(head: Head, x: Floats, labels: np.ndarray) -> float:
    return float(np.mean(head.logits(x).argmax(axis=1) == labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    paths = find_tasks(arguments.tasks)
    backbone = Backbone.load(cache_folder=default_folder())
    tasks = []
    with threadpool_limits(1):
        for path in paths:
            tasks.append(measured(open_measured(path, SEED), backbone))
            print(tasks[-1], flush=True)
    origin = provenance("python benchmarks/learning_curve.py ../shared/tasks", paths, SEED)
    arguments.out.write_text(json.dumps({"tasks": tasks, "provenance": origin}, indent=1) + "\n")


if __name__ == "__main__":
    main()
