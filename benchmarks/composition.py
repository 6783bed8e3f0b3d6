"""Measure composition: tasks made of all classes of two known tasks, without images and after few epochs.

    python benchmarks/composition.py ../shared/tasks

As in the paper's section 6: all 190 pairs of 20 tasks (every second by name), each pair as one task with the
classes of both. Our heads come from modules (int8 heads and anchors) and need no images; the paper's are rows
trained with W′x and concatenated. Both are then trained further on images, against a random start. One epoch of
ours is a round of L-BFGS at each regularisation strength that is tried; a round uses every image about once.

Each task's training and validation images are split in two: the source modules learn from one half, further
training uses the other, with at most 30 training images per class. With `--same-images` (as the paper seems to do)
a composed head is judged on the images that it was made from. Accuracies are averages over the two tasks' test
images without a task label, except for `given`, where each image is answered by its own task's head.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from synergy_tasks import Task, few, halves, load
from threadpoolctl import threadpool_limits

from skillmesh.anchors import AnchorSettings
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.calibration import Prior
from skillmesh.data.folder import find_tasks
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.head import Head, Labels, fit_head, log_loss
from skillmesh.learning.rows import EpochSettings, Norm, random_rows, train_rows
from skillmesh.numerics.arrays import Floats
from skillmesh.synergy.composition import FORMS, ComposedSource, compose, refine

HERE = Path(__file__).parent
EPOCHS = (0, 1, 2, 5, 10, 20, 30)
"""Epochs after which accuracy is reported."""
ROUNDS = {"ours, from blend": (0, 1, 2, 5, 30), "ours, from nothing": (0, 5, 30)}
"""The same for our heads, where each number of rounds is a separate fit."""
MOST = 30
"""Maximum of training images per class in each half: 190 pairs with all images would take hours."""
SHOWN: tuple[Norm, ...] = ("two", "infinity")


@dataclass(frozen=True)
class Known:
    """What is known of a task: the parts of its module, and the paper's rows for each norm."""

    task: Task
    """The task with the images for further training."""
    source: ComposedSource
    rows: dict[Norm, Floats]


def learned(task: Task, later: Task) -> Known:
    """Learn a task alone, as its module would store it; `later` has the images for further training."""
    classes = len(task.classes)
    x, labels = task.split("train")
    fit = fit_head(x, labels, *task.split("val"), classes)
    anchor = SketchAnchor.read(SketchAnchor.fit(x, labels, classes, AnchorSettings()).tensors())
    source = ComposedSource(Head.read(fit.head.tensors()), fit.temperature, anchor, tuple(range(classes)))
    start = random_rows(classes, x.shape[1], 0)
    seen = all_of(task)
    rows = {norm: train_rows(*seen, start, EpochSettings(EPOCHS[-1], norm=norm)) for norm in SHOWN}
    print(task.name, f"{fit.accuracy}", flush=True)
    return Known(later, source, rows)


def all_of(task: Task | Both) -> tuple[Floats, Labels]:
    """Return training and validation images together: our heads use both in the end, so the paper's may, too."""
    (x, labels), (more, others) = task.split("train"), task.split("val")
    return np.concatenate([x, more]), np.concatenate([labels, others])


def thinned(task: Task, seed: int) -> Task:
    """Return the task with at most `MOST` training images per class."""
    x, labels = task.split("train")
    chosen = np.sort(few(labels, MOST, np.random.default_rng(seed)))
    return replace(task, seen=task.seen | {"train": x[chosen]}, labels=task.labels | {"train": labels[chosen]})


@dataclass(frozen=True)
class Both:
    """The images of two tasks, as one task with the classes of both."""

    first: Known
    second: Known

    @property
    def classes(self) -> int:
        return len(self.first.task.classes) + len(self.second.task.classes)

    @property
    def sources(self) -> list[ComposedSource]:
        return [self.first.source, self.second.source]

    def split(self, name: str) -> tuple[Floats, Labels]:
        (x, labels), (other, others) = self.first.task.split(name), self.second.task.split(name)
        return np.concatenate([x, other]), np.concatenate([labels, others + len(self.first.task.classes)])

    def accuracy(self, logits: Floats) -> float:
        """Return the accuracy on test images, averaged over the two tasks."""
        right = logits.argmax(axis=1) == self.split("test")[1]
        cut = len(self.first.task.labels["test"])
        return round(50 * float(right[:cut].mean() + right[cut:].mean()), 3)

    def given(self) -> float:
        return 50 * sum(
            float(np.mean(k.source.head.logits(k.task.seen["test"]).argmax(axis=1) == k.task.labels["test"]))
            for k in (self.first, self.second)
        )


def without_images(both: Both, prior: Prior) -> dict[str, float]:
    x, labels = both.split("test")
    found = {"given": both.given()}
    for form in FORMS:
        composed = compose(both.sources, prior, form)
        logits = composed.head.logits(x)
        found[form] = both.accuracy(logits)
        found[f"{form}, log-loss"] = log_loss(logits / composed.temperature, labels)
    return found


def ours(both: Both, prior: Prior) -> dict[str, list[float]]:
    """Return the accuracy of the composed head, refined with it as prior, and of a cold start, by rounds."""
    composed = compose(both.sources, prior)
    parts, test = (*both.split("train"), *both.split("val")), both.split("test")[0]
    blended = [composed.head] + [refine(composed, *parts, n)[0].head for n in ROUNDS["ours, from blend"][1:]]
    cold = [fit_head(*parts, both.classes, n).head for n in ROUNDS["ours, from nothing"][1:]]
    chance = 100 / both.classes
    return {
        "ours, from blend": [both.accuracy(head.logits(test)) for head in blended],
        "ours, from nothing": [chance] + [both.accuracy(head.logits(test)) for head in cold],
    }


def the_papers(both: Both, norm: Norm) -> dict[str, list[float]]:
    """Return the accuracy from epoch 0 on, started from the two tasks' rows and from random ones."""
    x, labels = all_of(both)
    test = both.split("test")[0]
    starts = {
        "rows": np.concatenate([both.first.rows[norm], both.second.rows[norm]]),
        "nothing": random_rows(both.classes, x.shape[1], 1),
    }
    curves: dict[str, list[float]] = {}
    for name, start in starts.items():
        curve = curves[f"{norm}, from {name}"] = []

        def watch(epoch: int, weight: Floats, curve: list[float] = curve) -> None:
            if epoch in EPOCHS:
                curve.append(both.accuracy(test @ weight.T))

        train_rows(x, labels, start, EpochSettings(EPOCHS[-1], norm=norm), watch)
    return curves


def measure(both: Both, prior: Prior) -> dict[str, Any]:
    found: dict[str, Any] = {"tasks": [both.first.task.name, both.second.task.name], "classes": both.classes}
    found["without images"] = {k: round(v, 3) for k, v in without_images(both, prior).items()}
    found["epochs"] = ours(both, prior)
    for norm in SHOWN:
        found["epochs"] |= the_papers(both, norm)
    print(*found["tasks"], found["without images"], flush=True)
    return found


def over_tasks(values: Sequence[float], pairs: Sequence[Sequence[str]]) -> dict[str, float | int]:
    """Return the mean over pairs and its 95 % interval, by leaving out one task at a time: pairs share tasks."""
    mean, tasks = float(np.mean(values)), sorted({task for pair in pairs for task in pair})
    found: dict[str, float | int] = {"mean": round(mean, 3), "n": len(values)}
    if len(tasks) < 4:
        return found
    without = [np.mean([v for v, pair in zip(values, pairs, strict=True) if task not in pair]) for task in tasks]
    half = 1.96 * float(np.sqrt((len(tasks) - 1) * np.mean(np.square(np.array(without) - mean))))
    return found | {"low": round(mean - half, 3), "high": round(mean + half, 3)}


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return averages over pairs by epoch, and our advantage over each other method where both were measured."""
    pairs = [pair["tasks"] for pair in found]
    curves = {name: np.array([pair["epochs"][name] for pair in found]) for name in found[0]["epochs"]}

    def by_epoch(name: str) -> dict[int, np.ndarray]:
        return dict(zip(ROUNDS.get(name, EPOCHS), curves[name].T, strict=True))

    def less(name: str) -> dict[int, np.ndarray]:
        best, other = by_epoch("ours, from blend"), by_epoch(name)
        return {epoch: best[epoch] - other[epoch] for epoch in best if epoch in other}

    def along(values: dict[int, np.ndarray]) -> dict[int, dict[str, float | int]]:
        return {epoch: over_tasks(list(column), pairs) for epoch, column in values.items()}

    at_once = {name: [pair["without images"][name] for pair in found] for name in found[0]["without images"]}
    return {
        "without images": {name: over_tasks(values, pairs) for name, values in at_once.items()},
        "epochs": {name: along(by_epoch(name)) for name in curves},
        "ours less": {name: along(less(name)) for name in curves if name != "ours, from blend"},
    }


_known: list[Known] = []
_prior: list[Prior] = []
"""Inherited by forked processes: hundreds of megabytes that need not be sent."""


def _measured(pair: tuple[int, int]) -> dict[str, Any]:
    with threadpool_limits(1, "blas"):  # as in agents
        return measure(Both(*(_known[index] for index in pair)), _prior[0])


def _all_pairs(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    chosen = list(itertools.combinations(range(len(_known)), 2))[:: options.every]
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(_measured, chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=20, help="number of tasks, at most (every second by name)")
    parser.add_argument("--every", type=int, default=1, help="measure one in this many pairs")
    parser.add_argument(
        "--same-images", action="store_true", help="use the same images for learning and for further training"
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "composition.json")
    options = parser.parse_args()
    paths = find_tasks(options.tasks)[::2][: options.count]
    options_used = {"every": options.every, "same images": options.same_images, "most images of a class": MOST}
    command = "python benchmarks/composition.py ../shared/tasks"
    command += " --same-images" * options.same_images
    origin = provenance(command, paths, seed=options.seed) | {"settings": options_used}
    tasks, prior = load(paths, "descriptor")
    _prior.append(prior)
    with threadpool_limits(1, "blas"):
        for task in tasks:
            old, new = (thinned(half, options.seed) for half in halves(task, options.seed))
            _known.append(learned(old, old if options.same_images else new))
    found = []
    for pair in _all_pairs(options):
        found.append(pair)
        write({"summary": summary(found), "provenance": origin}, found, options.out)


def write(report: dict[str, Any], pairs: list[dict[str, Any]], out: Path) -> None:
    """Write the results with one line per pair."""
    lines = ",\n  ".join(json.dumps(pair, ensure_ascii=False) for pair in pairs)
    text = json.dumps(report | {"pairs": ["PAIRS"]}, indent=1, ensure_ascii=False)
    out.write_text(text.replace('"PAIRS"', lines) + "\n")


if __name__ == "__main__":
    main()
