"""Compare ways to adapt a frozen backbone, on real tasks: accuracy, bytes, and the cost of learning.

    python benchmarks/biases.py TASKS --out docs/results/biases.json

Every method learns from training images and uses validation images to choose settings and to stop; heads on
descriptors are fitted again with the validation images added, the paper's head and Head2Toe's are not.
Accuracy is on test images, with the task given. Costs are all MACs of learning, in passes of the network over the
task's images; they include the pass that the task's anchor needs in any case. Methods that an agent offers are run
by an agent; the paper's own method is trained in this file, with the library.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.spec import choose_toes
from skillmesh.common.choices import Adaptation, WarmStart
from skillmesh.core import Core
from skillmesh.data.folder import TaskImages, find_tasks, open_task
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.biases import PAPER, train_biases
from skillmesh.learning.head import Fit, Head, fit_head
from skillmesh.learning.head2toe import fit_by_adam
from skillmesh.learning.training import Examples, Space, Trained
from skillmesh.numerics.arrays import Floats, counted, spend
from skillmesh.store.home import create_home

FORWARD_BATCH = 128
PARTS = ("train", "val", "test")


@dataclass
class Row:
    """The results of one method on one task."""

    val: float
    test: float
    passes: float
    right: str
    """Whether each test image was classified correctly, as a string of 1 and 0."""
    bytes: int | None = None
    """Size of the module, if an agent made one."""
    trial: str | None = None
    """The trial as recorded on the module's card."""


class Bench:
    """One task, with the data that all methods share."""

    def __init__(self, backbone: Backbone, folder: TaskImages, work: Path, weights: Path | None) -> None:
        self.backbone, self.folder, self.classes = backbone, folder, len(folder.classes)
        self.agents = {}
        for representation in ("features", "descriptor"):
            home = work / representation
            settings = {"representation": representation, "backbone": backbone.name, "weights": weights}
            create_home(home, name="bench", calibration=work / "calibration", **settings)
            self.agents[representation] = Core(home, cache_folder=work / "cache")
            self.agents[representation]._backbone = backbone
        images = sum(len(folder.splits[part]) for part in PARTS[:2])
        self.pass_macs = backbone.network.forward_macs * images

    def learned(self, representation: str = "descriptor", **options: Any) -> Row:
        """Let an agent learn the task and return its results."""
        agent = self.agents[representation]
        module, lesson = agent.learn(self.folder, replace=True, **options, warm_start=WarmStart("never"))
        test = self.folder.splits["test"]
        x = agent.backbone.represent(agent.backbone.describe(test.files).raw, agent.config.representation)
        right = agent.head(module).logits(agent.seen_by(module, x, test.files)).argmax(axis=1) == test.labels
        row = self._row(right, module.card.validation_accuracy or 0.0, lesson.costs.total)
        row.bytes, row.trial = module.size, module.card.trial
        return row

    def measured(self, head: Head, seen: dict[str, Any], macs: float, val: float | None = None) -> Row:
        """Return the results of a head fitted here; `val`: its validation accuracy before the last fit."""
        right = [head.logits(seen[part]).argmax(axis=1) == self.parts[part].labels for part in PARTS[1:]]
        return self._row(right[1], float(np.mean(right[0])) if val is None else val, macs)

    def _row(self, right: Any, val: float, macs: float) -> Row:
        marks = "".join(map(str, right.astype(int)))
        return Row(val, float(np.mean(right)), macs / self.pass_macs, marks)

    @cached_property
    def parts(self) -> dict[str, Examples]:
        found, size = {}, self.backbone.torch_network.size
        with ThreadPoolExecutor(4) as pool:
            for part in PARTS:
                split = self.folder.splits[part]
                pixels = list(pool.map(lambda file: file.pixels(file.content(), size), split.files))
                found[part] = Examples(np.stack(pixels), np.asarray(split.labels))
        return found

    def described(self, added: Floats | None = None) -> dict[str, Any]:
        """Return raw descriptors of all splits; the pass over test images is not counted as learning."""
        network = self.backbone.torch_network
        spend("forward", self.pass_macs)
        return {part: np.concatenate([network.forward(b, added) for b in self._batches(part)]) for part in PARTS}

    def toes(self, added: Any) -> dict[str, Any]:
        network, toes = self.backbone.torch_network, choose_toes(added)
        spend("forward", self.pass_macs)
        return {
            part: np.concatenate([network.toe_features(b, added, toes) for b in self._batches(part)])
            for part in PARTS
        }

    def seen(self, raw: dict[str, Any], representation: Any) -> dict[str, Any]:
        return {part: self.backbone.represent(raw[part], representation) for part in PARTS}

    def fit(self, seen: dict[str, Any]) -> Fit:
        train, val = self.parts["train"].labels, self.parts["val"].labels
        return fit_head(seen["train"], train, seen["val"], val, self.classes)

    def _batches(self, part: str) -> Iterator[Any]:
        images = self.parts[part].images
        return (images[start : start + FORWARD_BATCH] for start in range(0, len(images), FORWARD_BATCH))


def paper_biases(bench: Bench) -> tuple[Trained, float]:
    """Return biases after all layers, trained for twenty epochs with a head on the features, and the cost."""
    network = bench.backbone.torch_network
    space = Space(bench.backbone.calibration, "features", False, network.device)
    with counted() as costs:
        head = Head(np.zeros((bench.classes, network.features), np.float32), np.zeros(bench.classes, np.float32))
        spend("forward", bench.pass_macs)  # for the task's anchor
        trained = train_biases(network, space, (bench.parts["train"], bench.parts["val"]), head, "all", PAPER)
    return trained, costs.total


def by_the_paper(bench: Bench) -> Iterator[tuple[str, Row]]:
    """Yield results with the head trained along, with one on the descriptor, and with one on Head2Toe features."""
    trained, spent = paper_biases(bench)
    raw = bench.described(trained.values)
    yield "biases, the paper's way", bench.measured(trained.head, bench.seen(raw, "features"), spent)
    with counted() as costs:
        seen = bench.seen(bench.described(trained.values), "descriptor")
        fit = bench.fit(seen)
    row = bench.measured(fit.head, seen, spent + costs.total, fit.accuracy)
    yield "biases, the paper's way, + descriptor", row
    with counted() as costs:
        seen = bench.toes(trained.values)
        labels = bench.parts["train"].labels, bench.parts["val"].labels
        device = bench.backbone.torch_network.device
        head = fit_by_adam(seen["train"], labels[0], seen["val"], labels[1], bench.classes, device)
    yield "head2toe, from the paper's biases", bench.measured(head, seen, spent + costs.total)


LEARNED: dict[str, dict[str, Any]] = {
    "head on features": {"representation": "features"},
    "head on descriptor": {},
    "biases, our way": {"adaptation": Adaptation("always")},
    "biases, our way, auto": {"adaptation": Adaptation("auto")},
    "biases, our way, last half": {"adaptation": Adaptation("always", layers="last-half")},
    "head2toe, from our biases": {"adaptation": Adaptation("always", "head2toe")},
    "reprogramming": {"adaptation": Adaptation("always", "reprogramming")},
}
"""Settings of `learn` for each method that an agent offers."""
PAPER_S = "the paper's"


def rows(bench: Bench, only: list[str]) -> Iterator[tuple[str, Row]]:
    """Yield the results of all methods, or of those requested, one after the other."""
    for name, options in LEARNED.items():
        if not only or name in only:
            yield name, bench.learned(**options)
    if not only or PAPER_S in only:
        yield from by_the_paper(bench)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--only", nargs="+", default=[], choices=[*LEARNED, PAPER_S], metavar="METHOD")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    paths, tasks = find_tasks(options.tasks), {}
    found = {"tasks": tasks, "provenance": provenance("python benchmarks/biases.py", paths, 0)}
    with TemporaryDirectory() as work:
        calibration = options.calibration
        backbone = Backbone.load(options.backbone, options.weights, calibration, options.device, Path(work))
        backbone.calibration.save(Path(work) / "calibration")
        for path in paths:
            bench = Bench(backbone, open_task(path), Path(work), options.weights)
            images = [len(bench.folder.splits[part]) for part in PARTS]
            methods: dict[str, Any] = {}
            tasks[bench.folder.name] = {"images": images, "classes": bench.classes, "methods": methods}
            for name, row in rows(bench, options.only):
                methods[name] = vars(row)
                print(f"{bench.folder.name}: {name}: {100 * row.test:.1f} for {row.passes:.1f}", flush=True)
                options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
