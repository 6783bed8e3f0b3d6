"""What adapts a frozen backbone to a task, on real tasks: accuracy, and what learning it cost.

    python benchmarks/biases.py TASKS --out docs/results/biases.json

Every method learns from the same images: training images, with validation images to choose and to stop on.
Accuracy is of test images, with the task given. Costs are all MACs of learning, in passes of the network over the
task's images; the pass that the task's anchor needs in any case is one of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skillmesh.backbone.backbone import load_calibration
from skillmesh.backbone.network import Network
from skillmesh.backbone.representation import represent
from skillmesh.backbone.toes import choose_toes, toe_features
from skillmesh.costs import pass_costs
from skillmesh.data.folder import find_tasks, open_task
from skillmesh.learning.biases import OURS, PAPER, train_biases
from skillmesh.learning.head import Fit, Head, fit_head
from skillmesh.learning.head2toe import fit_by_adam
from skillmesh.learning.pattern import reprogrammed, stored
from skillmesh.learning.reprogramming import SETTINGS, train_pattern
from skillmesh.learning.training import Examples, Space, Trained, TrainingSettings

FORWARD_BATCH = 128
PARTS = ("train", "val", "test")


@dataclass
class Row:
    """How one method did on one task."""

    val: float
    test: float
    passes: float
    right: str
    """Of each test image, whether it was called by its name: 1 or 0."""


class Bench:
    """One task, with what all methods share."""

    def __init__(self, network: Network, path: Path, pool: ThreadPoolExecutor) -> None:
        self.network, self.calibration = network, load_calibration(network.spec.name)
        folder = open_task(path)
        self.name, self.classes = folder.name, len(folder.classes)
        self.parts: dict[str, Examples] = {}
        for part in PARTS:
            split = folder.splits[part]
            pixels = list(pool.map(lambda file: file.pixels(file.content(), network.size), split.files))
            self.parts[part] = Examples(np.stack(pixels), np.asarray(split.labels))
        self.taught = self.parts["train"], self.parts["val"]
        self.spaces = {
            name: Space(self.calibration, name, False, network.device) for name in ("features", "descriptor")
        }
        self.pass_macs = pass_costs(network).forward * sum(map(len, self.taught))
        self.raw = self.described()
        self.plain = {name: self.fit(self.raw, name) for name in self.spaces}

    def described(self, biases: Any = None, pattern: Any = None) -> dict[str, Any]:
        return {part: self._described(self.parts[part].images, biases, pattern) for part in PARTS}

    def _described(self, images: Any, biases: Any, pattern: Any) -> Any:
        batches = (images[start : start + FORWARD_BATCH] for start in range(0, len(images), FORWARD_BATCH))
        shown = (batch if pattern is None else reprogrammed(batch, pattern) for batch in batches)
        return np.concatenate([self.network.forward(batch, biases) for batch in shown])

    def x(self, raw: Any, representation: Any) -> Any:
        return represent(raw, self.network.features, representation, self.calibration)

    def fit(self, raw: dict[str, Any], representation: Any) -> Fit:
        train, val = (self.x(raw[part], representation) for part in PARTS[:2])
        return fit_head(train, self.taught[0].labels, val, self.taught[1].labels, self.classes)

    def refitted(self, raw: dict[str, Any], representation: Any, spent: float) -> Row:
        """A head fitted to what the adapted network says of the images, which is a pass of its own."""
        fit = self.plain[representation] if raw is self.raw else self.fit(raw, representation)
        passes = 1 + (0 if raw is self.raw else 1) + spent / self.pass_macs
        return self.row(fit.head, self.x(raw["test"], representation), passes, fit.accuracy or 0.0)

    def row(self, head: Head, test: Any, passes: float, val: float) -> Row:
        right = head.logits(test).argmax(axis=1) == self.parts["test"].labels
        return Row(val, float(np.mean(right)), passes, "".join(map(str, right.astype(int))))

    def biases(self, where: str, settings: TrainingSettings, representation: str) -> Trained:
        head = self.plain[representation].before
        return train_biases(self.network, self.spaces[representation], self.taught, head, where, settings)


def as_trained(bench: Bench, trained: Trained, representation: Any) -> Row:
    """With the very head that was trained along, as the paper has it."""
    raw = bench.described(bench.network.biases(trained.values))
    val = trained.head.logits(bench.x(raw["val"], representation)).argmax(axis=1) == bench.taught[1].labels
    test = bench.x(raw["test"], representation)
    return bench.row(trained.head, test, 1 + trained.costs.total / bench.pass_macs, float(np.mean(val)))


def head2toe(bench: Bench, trained: Trained) -> Row:
    toes, biases = choose_toes(trained.values), bench.network.biases(trained.values)

    def seen(images: Any) -> Any:
        batches = (images[start : start + FORWARD_BATCH] for start in range(0, len(images), FORWARD_BATCH))
        return np.concatenate([toe_features(bench.network, batch, biases, toes) for batch in batches])

    x = {part: seen(bench.parts[part].images) for part in PARTS}
    train, val = bench.taught
    device = bench.network.device
    head, costs = fit_by_adam(x["train"], train.labels, x["val"], val.labels, bench.classes, device)
    right = head.logits(x["val"]).argmax(axis=1) == val.labels
    spent = (trained.costs.total + costs.total) / bench.pass_macs
    return bench.row(head, x["test"], 2 + spent, float(np.mean(right)))


def reprogramming(bench: Bench) -> Row:
    head = bench.plain["descriptor"].before
    trained = train_pattern(bench.network, bench.spaces["descriptor"], bench.taught, head, SETTINGS)
    raw = bench.described(pattern=stored(trained.values))
    return bench.refitted(raw, "descriptor", trained.costs.total)


def measured(bench: Bench) -> Iterator[tuple[str, Row]]:
    """All methods, one after the other."""

    def adapted(where: str, settings: TrainingSettings) -> Row:
        trained = bench.biases(where, settings, "descriptor")
        raw = bench.described(bench.network.biases(trained.values))
        return bench.refitted(raw, "descriptor", trained.costs.total)

    yield "head on features", bench.refitted(bench.raw, "features", 0)
    yield "head on descriptor", bench.refitted(bench.raw, "descriptor", 0)
    yield "biases, our way", adapted("all", OURS)
    yield "biases, our way, smaller steps", adapted("all", replace(OURS, rate=0.01))
    yield "biases, last half, smaller steps", adapted("last-half", replace(OURS, epochs=5, rate=0.01))
    trained = bench.biases("all", PAPER, "features")
    yield "biases, the paper's way", as_trained(bench, trained, "features")
    raw = bench.described(bench.network.biases(trained.values))
    yield "biases, the paper's way, + descriptor", bench.refitted(raw, "descriptor", trained.costs.total)
    yield "head2toe from biases", head2toe(bench, trained)
    yield "reprogramming", reprogramming(bench)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = Network("lite0", device=options.device)
    tasks: dict[str, Any] = {}
    with ThreadPoolExecutor(4) as pool:
        for path in find_tasks(options.tasks):
            bench = Bench(network, path, pool)
            found: dict[str, Any] = {}
            images = [len(bench.parts[part]) for part in PARTS]
            tasks[bench.name] = {"images": images, "classes": bench.classes, "methods": found}
            for name, row in measured(bench):
                found[name] = vars(row)
                print(f"{bench.name}: {name}: {100 * row.test:.1f} for {row.passes:.1f} passes", flush=True)
                options.out.write_text(json.dumps({"tasks": tasks}, indent=1) + "\n")


if __name__ == "__main__":
    main()
