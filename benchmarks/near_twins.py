"""Measure how well the two limits of `learning/examine.py` distinguish copies of images from other images.

    python benchmarks/near_twins.py ../shared/tasks --out docs/results/near-twins.json

Images of each task are saved again in several ways and added as validation images; those that `learn` would leave
out count as found. `found_of_views` is the share that is found of copies of images that were learned as views.
Then all images of a task, of all splits, are compared with one another unchanged; pairs within the limits are
counted, with pairs of two classes counted separately. `left_out` is the number of images that `learn` and `eval`
leave out.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from PIL import Image
from threadpoolctl import threadpool_limits

from skillmesh.backbone.backbone import Backbone, default_folder
from skillmesh.data.folder import find_tasks, open_task
from skillmesh.data.images import open_rgb
from skillmesh.data.inputs import AnyImage, as_image
from skillmesh.data.views import LEARNED, ViewedImage
from skillmesh.evaluation.evaluate import open_measured
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning import examine
from skillmesh.learning.examine import Part

COPIES = 20
"""Number of images of each task that are saved again."""


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def sized(image: Image.Image, factor: float) -> Image.Image:
    size = tuple(max(8, round(side * factor)) for side in image.size)
    return image.resize(size, Image.Resampling.BICUBIC)


WAYS: dict[str, Callable[[Image.Image], bytes]] = {
    "another format": lambda image: saved(image, "BMP"),
    "JPEG, quality 95": lambda image: saved(image, "JPEG", quality=95),
    "JPEG, quality 75": lambda image: saved(image, "JPEG", quality=75),
    "JPEG, quality 50": lambda image: saved(image, "JPEG", quality=50),
    "twice the size": lambda image: saved(sized(image, 2), "PNG"),
    "three quarters of the size": lambda image: saved(sized(image, 0.75), "PNG"),
    "half the size": lambda image: saved(sized(image, 0.5), "PNG"),
}


def measured(path: Path, backbone: Backbone) -> dict[str, Any]:
    task = open_task(path, hold_out=())
    files = [file for split in task.splits.values() for file in split.files]
    labels = np.concatenate([split.labels for split in task.splits.values()])
    described = backbone.describe(files)
    whole = Part.of("train", files, labels, described)
    codes = examine._codes([whole], backbone)
    chosen = np.random.default_rng(0).choice(len(files), min(COPIES, len(files)), replace=False)
    found = {way: _found(backbone, whole, chosen, save, task.classes) for way, save in WAYS.items()}
    learned = list(files)
    for row in chosen:
        learned[row] = ViewedImage(files[row], LEARNED)
    viewed = Part.of("train", files, labels, backbone.describe(learned, thumbnails=True))
    as_views = {way: _found(backbone, viewed, chosen, save, task.classes) for way, save in WAYS.items()}
    return {
        "task": task.name,
        "images": len(files),
        "found": found,
        "found_of_views": as_views,
        "left_out": _left_out(path, backbone),
    } | _pairs(whole, codes, backbone.network.size)


def _left_out(path: Path, backbone: Backbone) -> dict[str, int]:
    """Count the images left out of each split, as in learning and evaluation."""
    task = open_measured(path, seed=0)
    parts = [
        Part.of(name, split.files, split.labels, backbone.describe(split.files))
        for name, split in task.splits.items()
    ]
    kept = examine.examine(parts, task.classes, backbone).parts
    return {part.split: len(part) - len(rest) for part, rest in zip(parts, kept, strict=True)}


def _opened(file: AnyImage) -> Image.Image:
    return open_rgb(file.content())


def _found(
    backbone: Backbone,
    whole: Part,
    chosen: np.ndarray,
    save: Callable[[Image.Image], bytes],
    classes: Sequence[str],
) -> float:
    copies = [as_image(save(_opened(whole.images[row])), index) for index, row in enumerate(chosen)]
    added = Part.of("val", copies, whole.labels[chosen], backbone.describe(copies))
    twins = examine.find_twins([whole, added], classes, backbone)
    found = {*twins.across_splits["val in train"], *twins.across_classes}
    return fmean(copy.name in found for copy in copies)


def _pairs(whole: Part, codes: np.ndarray, size: int) -> dict[str, Any]:
    """Return pairs of the task's own images within the limits; each image is a split, so that all are compared."""
    every = np.arange(len(codes))
    pairs = sorted({pair for _, pair in examine._near(codes, every, np.zeros_like(every), every)})
    small = examine._thumbnails([whole], sorted({index for pair in pairs for index in pair}), size)
    alike = [(a, b) for a, b in pairs if examine._alike(small[a], small[b])]
    names = [[whole.images[a].name, whole.images[b].name] for a, b in alike]
    crossing = [pair for pair, (a, b) in zip(names, alike, strict=True) if whole.labels[a] != whole.labels[b]]
    return {"near_pairs": len(pairs), "pairs": names, "pairs_of_two_classes": crossing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    paths = find_tasks(arguments.tasks)
    backbone = Backbone.load(cache_folder=default_folder())
    tasks = []
    with threadpool_limits(1):
        for path in paths:
            tasks.append(measured(path, backbone))
            t = tasks[-1]
            counts = {way: round(share, 2) for way, share in t["found"].items()}
            print(t["task"], t["images"], len(t["pairs"]), len(t["pairs_of_two_classes"]), counts, flush=True)
    report = {
        "near": examine.NEAR,
        "alike": examine.ALIKE,
        "copies": COPIES,
        "found": {way: round(fmean(t["found"][way] for t in tasks), 4) for way in WAYS},
        "found_of_views": {way: round(fmean(t["found_of_views"][way] for t in tasks), 4) for way in WAYS},
        "left_out": {name: sum(t["left_out"][name] for t in tasks) for name in ("train", "val", "test")},
        "tasks": tasks,
        "provenance": provenance("python benchmarks/near_twins.py ../shared/tasks", paths, seed=0),
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
