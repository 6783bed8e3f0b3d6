"""Measure speed as ratios in one run: against the library a user would otherwise use, and against the floor.

    python benchmarks/speed.py [--task FOLDER_OR_ZIP] [--json docs/results/speed.json]

Each figure is the median of several rounds in which both sides take turns, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from skillmesh.anchors.gmmc import GmmcAnchor, GmmcScorer
from skillmesh.anchors.protocol import AnchorSettings
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.backbone import Backbone
from skillmesh.backbone.building import build
from skillmesh.backbone.network import cpu_workers, describe
from skillmesh.common.choices import WarmStart
from skillmesh.core import Core
from skillmesh.data.demo import write_demo_tasks
from skillmesh.data.folder import open_task
from skillmesh.data.images import Pixels
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.head import fit_head, probe_tensors
from skillmesh.module import Card, Module, now
from skillmesh.numerics.process import process_is_ours
from skillmesh.store.home import create_home
from skillmesh_challenge.bare import BareNetwork


@dataclass(frozen=True)
class Row:
    """Two things timed alternately."""

    what: str
    ours: str
    other: str
    ours_seconds: float
    other_seconds: float
    ratio: float
    """How many times faster than the other; for a floor, how many times the floor."""
    aim: str


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(ours: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the median seconds of each, after one round that is not counted."""
    pairs = [(timed(ours), timed(other)) for _ in range(rounds + 1)][1:]
    return median(p[0] for p in pairs), median(p[1] for p in pairs)


def anchor_row(task: Path, rounds: int) -> Row:
    """Time a sketch anchor against the mixture that the paper's mapper needs, on the descriptors of a task."""
    folder = open_task(task)
    backbone = Backbone.load(device="cpu")
    described = backbone.describe(folder.splits["train"].files)
    x = backbone.represent(described.raw, "descriptor")
    labels = folder.splits["train"].labels[described.readable]
    ours, other = in_turns(
        lambda: SketchAnchor.fit(x, labels, len(folder.classes), AnchorSettings()),
        lambda: GaussianMixture(25, covariance_type="diag", random_state=0).fit(x),
        rounds,
    )
    what = f"make a task anchor ({len(x):,} images, {x.shape[1]:,} numbers each)"
    return Row(what, "sketch", "scikit-learn mixture, k = 25", ours, other, other / ours, "≥ 10 × faster")


def scoring_rows(rounds: int, tasks: int = 102, dim: int = 1280) -> list[Row]:
    """Time scoring all clusters at once against a loop over scikit-learn's mixtures, one per task."""
    rng = np.random.default_rng(0)
    mixtures, anchors = [], []
    for _ in range(tasks):
        x = (rng.standard_normal((60, dim)) + 3 * rng.standard_normal(dim)).astype(np.float32)
        mixture = GaussianMixture(
            25, covariance_type="diag", max_iter=1, reg_covar=1e-2, random_state=0, init_params="random"
        )
        mixture.fit(x)
        mixtures.append(mixture)
        parts = (mixture.weights_, mixture.means_, mixture.covariances_)
        anchors.append(GmmcAnchor(*(part.astype(np.float32) for part in parts)))
    scorer = GmmcScorer(anchors)
    rows = []
    for images, aim in ((1, "≥ 20 × faster"), (1000, "≥ 2 × faster")):
        x = rng.standard_normal((images, dim)).astype(np.float32)
        ours, other = in_turns(
            lambda x=x: scorer.score(x),
            lambda x=x: [mixture.score_samples(x) for mixture in mixtures],
            rounds,
        )
        what = f"score {images:,} image(s) against {tasks} tasks × 25 clusters"
        rows.append(
            Row(what, "two matrix products", "loop of scikit-learn mixtures", ours, other, other / ours, aim)
        )
    return rows


def plain_timm(pixels: list[Pixels]) -> Callable[[], object]:
    """Return what a user would write: timm's network unchanged, batches of 32 on all cores."""
    from skillmesh.backbone.spec import spec_of

    model = build(spec_of("lite0"), None).eval()
    batch = torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2).float().contiguous()

    def run() -> None:
        torch.set_num_threads(cpu_workers())
        with torch.inference_mode():
            for start in range(0, len(batch), 32):
                model((batch[start : start + 32] - 127) / 128)

    return run


def learning_rows(task: Path, rounds: int) -> list[Row]:
    """Time learning a task from its files, without cache, against bare forward passes over the same images."""
    folder = open_task(task)
    with TemporaryDirectory() as scratch:
        create_home(Path(scratch) / "home", name="speed")
        agent = Core(Path(scratch) / "home", device="cpu")
        agent.backbone.cache = None
        images = [*folder.splits["train"].files, *folder.splits["val"].files]
        pixels = [image.pixels(image.content(), agent.backbone.network.size) for image in images]
        bare = BareNetwork()
        plain = plain_timm(pixels)
        learn = lambda: agent.learn(folder, replace=True, warm_start=WarmStart("never"))  # noqa: E731
        learned, floor = in_turns(learn, lambda: bare.run(pixels), rounds)
        described, _ = in_turns(lambda: describe(agent.backbone.network, images), lambda: None, 1)
        stock, _ = in_turns(plain, lambda: None, 1)
    what = f"learn a task of {len(images):,} images and {len(folder.classes)} classes, nothing cached"
    per_image = (
        f"{len(images) / described:.0f} images per second described, {len(images) / stock:.0f} by plain timm"
    )
    return [
        Row(
            what,
            f"learn ({per_image})",
            "bare forward pass",
            learned,
            floor,
            learned / floor,
            "≤ 1.25 × the floor",
        ),
        Row(what, "learn", "plain timm forward, batches of 32", learned, stock, learned / stock, "–"),
    ]


def answering_row(rounds: int, tasks: int = 40, classes: int = 15) -> Row:
    """Time one image through an agent that knows 40 tasks, against the bare network."""
    rng = np.random.default_rng(0)
    with TemporaryDirectory() as scratch:
        create_home(Path(scratch) / "home", name="speed")
        agent = Core(Path(scratch) / "home", device="cpu")
        agent.backbone.cache = None
        for index in range(tasks):
            agent.bank.add(_made_up_module(agent, f"task {index}", classes, rng))
        image = rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)
        bare = BareNetwork()
        agent.answer(image)
        ours, floor = in_turns(lambda: agent.answer(image), lambda: bare.run([image]), rounds)
    what = f"answer one image with {tasks} tasks of {classes} classes"
    return Row(what, "answer", "bare forward pass", ours, floor, ours / floor, "≤ 1.1 × the floor")


def _made_up_module(agent: Core, task: str, classes: int, rng: np.random.Generator) -> bytes:
    dim = agent.backbone.network.width
    labels = np.repeat(np.arange(classes), 4)
    x = (rng.standard_normal((classes, dim))[labels] + 0.5 * rng.standard_normal((len(labels), dim))).astype(
        np.float32
    )
    fit = fit_head(x, labels, x[:0], labels[:0], classes)
    tensors = fit.head.tensors() | SketchAnchor.fit(x, labels, classes, AnchorSettings()).tensors()
    tensors |= probe_tensors(x[:4])
    card = Card(
        task=task,
        classes=tuple(f"class {c}" for c in range(classes)),
        backbone=agent.bank.backbone,
        backbone_name="lite0",
        representation="descriptor",
        dim=dim,
        compact=False,
        anchors=("sketch",),
        counts=(4,) * classes,
        validation_images=len(x),
        temperature=1.0,
        version=1,
        created=now(),
        teacher=agent.name,
        teacher_key=agent.identity.public_key,
    )
    return Module.create(card, tensors, agent.identity)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", type=Path, help="a task to learn; default: a drawn one")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    process_is_ours()  # as in a command
    warnings.filterwarnings(
        "ignore", category=ConvergenceWarning
    )  # mixtures of one iteration, for their shape only
    with TemporaryDirectory() as scratch:
        task = options.task or write_demo_tasks(Path(scratch), names=["shapes"], train=40, val=8)[0]
        rows = [anchor_row(task, options.rounds), *scoring_rows(options.rounds)]
        rows += [answering_row(10 * options.rounds), *learning_rows(task, max(options.rounds // 2, 1))]
        table = Table("what", "ours", "against", "ours, s", "other, s", "ratio", "aim", box=None)
        for row in rows:
            times = (f"{row.ours_seconds:.4f}", f"{row.other_seconds:.4f}", f"{row.ratio:.2f}")
            table.add_row(row.what, row.ours, row.other, *times, row.aim)
        Console(width=200).print(table)
        if options.json:
            report = {"rows": [asdict(row) for row in rows], "workers": cpu_workers()}
            report["machine"] = f"{platform.machine()}, {cpu_workers()} cores, torch {torch.__version__}"
            name = "--task TASK " if options.task else ""
            report["provenance"] = provenance(f"python benchmarks/speed.py {name}--json FILE", [task], seed=0)
            options.json.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
