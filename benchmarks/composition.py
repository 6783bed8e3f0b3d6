"""Composition: tasks made of all classes of two known tasks, without an image and after few epochs.

    python benchmarks/composition.py ../shared/tasks

As the paper's section 6: all 190 pairs of 20 tasks. Ours come from modules (int8 heads and anchors) and need no
image; the paper's are rows trained with W′x and put beside each other, then trained on images of both tasks,
against random rows. Each task is cut in two: one half of its training and validation images is for what is known
of it, the other for whoever goes on with images. On the same images (`--same-images`, as the paper seems to have
it) a composed head is judged by what it was made from, and would never be changed. Every accuracy is the average
over the two tasks' test images, with no task told, but for `given`, where each image is answered by its own task's
head.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from synergy_tasks import Task, few, halves, interval, load
from threadpoolctl import threadpool_limits

from skillmesh.anchors import AnchorSettings
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.calibration import Prior
from skillmesh.challenge.provenance import provenance
from skillmesh.data.folder import find_tasks
from skillmesh.learning.head import Head, Labels, fit_head, log_loss
from skillmesh.synergy.compose import FORMS, Source, compose, refine
from skillmesh.synergy.epochs import EpochSettings, Norm, random_rows, train_rows
from skillmesh.tensors import Floats

HERE = Path(__file__).parent
NORMS: tuple[Norm, ...] = ("plain", "two", "infinity")


@dataclass(frozen=True)
class Known:
    """What is known of a task: its module's parts, and the paper's rows by norm."""

    task: Task
    """As whoever goes on with images has it."""
    source: Source
    rows: dict[Norm, Floats]


def learned(task: Task, later: Task, epochs: int) -> Known:
    """Learn a task alone, as its module would carry it; `later` has the images to go on with."""
    classes = len(task.classes)
    x, labels = task.split("train")
    fit = fit_head(x, labels, *task.split("val"), classes)
    anchor = SketchAnchor.read(SketchAnchor.fit(x, labels, classes, AnchorSettings()).tensors())
    source = Source(Head.read(fit.head.tensors()), fit.temperature, anchor, tuple(range(classes)))
    start = random_rows(classes, x.shape[1], 0)
    rows = (
        {norm: train_rows(x, labels, start, EpochSettings(epochs, norm=norm)) for norm in NORMS} if epochs else {}
    )
    print(task.name, f"{fit.accuracy}", flush=True)
    return Known(later, source, rows)


@dataclass(frozen=True)
class Both:
    """The images of two tasks, as one task with the classes of both."""

    first: Known
    second: Known

    @property
    def classes(self) -> int:
        return len(self.first.task.classes) + len(self.second.task.classes)

    def split(self, name: str) -> tuple[Floats, Labels]:
        (x, labels), (other, others) = self.first.task.split(name), self.second.task.split(name)
        return np.concatenate([x, other]), np.concatenate([labels, others + len(self.first.task.classes)])

    def accuracy(self, logits: Floats) -> float:
        """Of test images, the average of the two tasks'."""
        right = logits.argmax(axis=1) == self.split("test")[1]
        cut = len(self.first.task.labels["test"])
        return 50 * float(right[:cut].mean() + right[cut:].mean())

    def given(self) -> float:
        return 50 * sum(
            float(np.mean(k.source.head.logits(k.task.seen["test"]).argmax(axis=1) == k.task.labels["test"]))
            for k in (self.first, self.second)
        )


def without_images(both: Both, prior: Prior) -> dict[str, float]:
    x, labels = both.split("test")
    found = {"given": both.given()}
    for form in FORMS:
        composed = compose([both.first.source, both.second.source], prior, form)
        logits = composed.head.logits(x)
        found[form] = both.accuracy(logits)
        found[f"{form}, log-loss"] = log_loss(logits / composed.temperature, labels)
    return found


def with_images(both: Both, prior: Prior, shots: list[int], seed: int) -> dict[str, float]:
    """The composed head, refined, and today's, from so many images of each class; 0: all."""
    composed = compose([both.first.source, both.second.source], prior)
    (x, labels), test = both.split("train"), both.split("test")[0]
    found = {}
    for each in shots:
        chosen = few(labels, each or None, np.random.default_rng(seed))
        val = (x[:0], labels[:0]) if each else both.split("val")
        parts = (x[chosen], labels[chosen], *val)
        found[f"scratch, {each or 'all'}"] = both.accuracy(fit_head(*parts, both.classes).head.logits(test))
        found[f"refined blend, {each or 'all'}"] = both.accuracy(refine(composed, *parts)[0].head.logits(test))
    return found


def epochs_of(both: Both, norm: Norm, epochs: int) -> dict[str, list[float]]:
    """Accuracy from epoch 0 on, from the two tasks' rows and from random ones."""
    x, labels = both.split("train")
    test = both.split("test")[0]
    starts = {
        "rows": np.concatenate([both.first.rows[norm], both.second.rows[norm]]),
        "random": random_rows(both.classes, x.shape[1], 1),
    }
    curves: dict[str, list[float]] = {}
    for name, start in starts.items():
        curve = curves[f"{norm}, from {name}"] = []

        def watch(_: int, weight: Floats, curve: list[float] = curve) -> None:
            curve.append(round(both.accuracy(test @ weight.T), 3))

        train_rows(x, labels, start, EpochSettings(epochs, norm=norm), watch)
    return curves


def averaged(found: list[dict[str, Any]], part: str, read: Callable[[Any], Any] = lambda value: value) -> dict:
    return {name: interval([read(pair[part][name]) for pair in found]) for name in found[0][part]}


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Averages over pairs. Intervals are over pairs, which share tasks: they are narrower than they should be."""
    curves = {
        name: [interval([pair["epochs"][name][epoch] for pair in found]) for epoch in range(len(curve))]
        for name, curve in found[0]["epochs"].items()
    }
    return {part: averaged(found, part) for part in ("without images", "with images")} | {"epochs": curves}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=20, help="tasks, chosen by the seed")
    parser.add_argument("--pairs", type=int, default=190, help="at most so many pairs of them, chosen by the seed")
    parser.add_argument("--alone", type=int, default=30, help="epochs in which the paper's rows are learned")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the composed task; 0: none")
    parser.add_argument("--shots", type=int, nargs="*", default=[1, 5, 0], help="images per class; 0: all")
    parser.add_argument("--representation", default="descriptor")
    parser.add_argument("--same-images", action="store_true", help="learn and go on with the same images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "composition.json")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    paths = find_tasks(options.tasks)
    paths = [paths[i] for i in sorted(rng.permutation(len(paths))[: options.count])]
    told = {name: value for name, value in vars(options).items() if name not in ("tasks", "out", "seed")}
    command = "python benchmarks/composition.py ../shared/tasks"
    origin = provenance(command, paths, seed=options.seed) | {"settings": told}
    tasks, prior = load(paths, options.representation)
    with threadpool_limits(1, "blas"):  # as agents learn
        alone = options.alone if options.epochs else 0
        cut = [(task, task) if options.same_images else halves(task, options.seed) for task in tasks]
        known = [learned(old, new, alone) for old, new in cut]
        pairs = list(itertools.combinations(known, 2))
        chosen = sorted(rng.permutation(len(pairs))[: options.pairs])
        found = [measure(Both(*pairs[i]), prior, options) for i in chosen]
    report = {"summary": summary(found), "pairs": found, "provenance": origin}
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(report["summary"], ensure_ascii=False))


def measure(both: Both, prior: Prior, options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"tasks": [both.first.task.name, both.second.task.name], "classes": both.classes}
    found["without images"] = without_images(both, prior)
    found["with images"] = with_images(both, prior, options.shots, options.seed)
    found["epochs"] = {}
    for norm in NORMS if options.epochs else ():
        found["epochs"] |= epochs_of(both, norm, options.epochs)
    print(*found["tasks"], {name: round(value, 1) for name, value in found["without images"].items()}, flush=True)
    return found


if __name__ == "__main__":
    main()
