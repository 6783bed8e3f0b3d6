"""Measure what agents of 1 to 27 tasks do with images of tasks that they were never taught.

    python benchmarks/unknown.py TASKS

In each of three seeded splits, a third of the tasks is hidden: neither the agents nor the calibration see them.
Banks are drawn from the other tasks. The same is measured on `phone` views of all test images, and with more and
less lenience towards these. A last table asks agents of one task for images of a task that is like it, and of one
that is not, with a calibration from all other tasks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from skillmesh.anchors import gaussians
from skillmesh.answering.answering import Mapper
from skillmesh.backbone.backbone import DescriptorCache, default_folder
from skillmesh.backbone.calibrating import calibrate_on
from skillmesh.backbone.network import Network, load_network
from skillmesh.core import Core
from skillmesh.data.folder import TaskImages, find_tasks, task_name
from skillmesh.data.inputs import AnyImage
from skillmesh.data.views import ViewedImage
from skillmesh.evaluation.evaluate import calibration_error, open_measured
from skillmesh.evaluation.provenance import provenance
from skillmesh.numerics.arrays import Floats
from skillmesh.store.home import create_home

HERE = Path(__file__).parent
BANKS = {1: 10, 4: 6, 16: 2, 27: 1}
"""Number of banks that are drawn in each split, by their number of tasks."""
SEEDS = 3
BUDGET = 0.05
VIEWS = ("original", "phone")
LENIENCES = (gaussians.LENIENCE, 0.0, 0.06, 0.08)
"""The lenience of agents, and others that are measured too."""
ALIKE = {
    "mnist": "kannada_mnist",
    "devanagari_digits": "telugu_digits",
    "omniglot": "omniglot_b",
    "plantvillage": "plantdoc",
    "plant_seedlings": "coffee_leaf",
    "bccd_cells": "malaria_cells",
    "facial_expressions": "face_mask",
    "sign_digits": "asl_alphabet",
}
"""Tasks that are learned, and tasks like them that are asked for."""


@dataclass(frozen=True)
class Shown:
    """A task's test images, as they are or as a view."""

    x: Floats
    labels: list[str]
    images: list[AnyImage]


@dataclass(frozen=True)
class Asked:
    """The answers to the images of one task."""

    novelty: NDArray[np.float64]
    confidence: NDArray[np.float64]
    right: NDArray[np.bool_]
    unanswered: NDArray[np.bool_]
    unknown: NDArray[np.bool_]


def described(agent: Core, task: TaskImages, view: str) -> Shown:
    split = task.splits["test"]
    images = [image if view == "original" else ViewedImage(image, (view,)) for image in split.files]
    found = agent.backbone.describe(images)
    labels = [task.classes[label] for label in split.labels[found.readable]]
    x = agent.backbone.represent(found.raw, agent.config.representation)
    return Shown(x, labels, [images[i] for i in found.readable])


def asked(agent: Core, task: str, shown: Shown) -> Asked:
    answers = agent.answer_described(shown.x, shown.images)
    right = [(a.best.task, a.best.label) == (task, label) for a, label in zip(answers, shown.labels, strict=True)]
    return Asked(
        np.array([a.novelty for a in answers]),
        np.array([a.confidence for a in answers]),
        np.array(right),
        np.array([a.label is None for a in answers]),
        np.array([a.unknown for a in answers]),
    )


def hidden_at(known: Sequence[Asked], hidden: Sequence[Asked], budget: float = BUDGET) -> float:
    """Return the share of hidden images above the novelty that this share of known images exceeds."""
    novelty, weights = _weighted([task.novelty for task in known])
    order = np.argsort(novelty)
    threshold = np.interp(1 - budget, np.cumsum(weights[order]), novelty[order])
    return fmean(float(np.mean(task.novelty > threshold)) for task in hidden)


def auroc(known: Sequence[Asked], hidden: Sequence[Asked]) -> float:
    """Return the AUROC of novelty, every known and every hidden task with the same weight."""
    novelty, weights = _weighted([task.novelty for task in known])
    order = np.argsort(novelty)
    below = np.concatenate([[0], np.cumsum(weights[order])])

    def under(values: NDArray[np.float64]) -> float:
        left, right = (below[np.searchsorted(novelty[order], values, side)] for side in ("left", "right"))
        return float(np.mean(left + right) / 2)

    return fmean(under(task.novelty) for task in hidden)


def mixed_error(known: Sequence[Asked], hidden: Sequence[Asked]) -> float:
    """Return the error of the stated confidences if half of all images are of hidden tasks."""
    confidence, weights = zip(
        *(_weighted([task.confidence for task in side]) for side in (known, hidden)), strict=True
    )
    right = np.concatenate([task.right for task in (*known, *hidden)])
    return calibration_error(np.concatenate(confidence), right, np.concatenate(weights))


def _weighted(parts: Sequence[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    weights = [np.full(len(part), 1 / (len(part) * len(parts))) for part in parts]
    return np.concatenate(parts), np.concatenate(weights)


def figures(known: Sequence[Asked], hidden: Sequence[Asked]) -> dict[str, float]:
    answered = np.concatenate([task.confidence[~task.unanswered] for task in hidden])
    return {
        "auroc": auroc(known, hidden),
        "hidden_at_5": hidden_at(known, hidden),
        "known_unanswered": fmean(float(task.unanswered.mean()) for task in known),
        "known_unknown": fmean(float(task.unknown.mean()) for task in known),
        "hidden_unanswered": fmean(float(task.unanswered.mean()) for task in hidden),
        "hidden_unknown": fmean(float(task.unknown.mean()) for task in hidden),
        "mixed_confidence_error": mixed_error(known, hidden),
        "final_accuracy": fmean(float(task.right.mean()) for task in known),
        "hidden_answered": len(answered),
        "hidden_confidence_sum": float(answered.sum()),
    }


def agent_of(network: Network, learned: Sequence[Path], calibrated_on: Sequence[Path], folder: Path) -> Core:
    """Return an agent that has learned some tasks, with a calibration from some."""
    cache = DescriptorCache(default_folder(), network.fingerprint, engine=network.engine)
    calibration = folder / "calibration.safetensors"
    calibrate_on(network, calibrated_on, cache).save(calibration)
    create_home(folder / "home", name="unknown", calibration=calibration)
    agent = Core(folder / "home")
    for path in learned:
        agent.learn(open_measured(path, agent.config.seed))
    agent.rebuilds_itself = False
    return agent


def with_bank(agent: Core, bank: Sequence[str]) -> None:
    """Let the agent answer with a part of its tasks only."""
    modules = [module for module in agent.tasks() if module.card.task in bank]
    agent.use(modules, Mapper(modules, agent.config.anchor, agent.prior, agent.config.unanswered))


def measure_split(network: Network, paths: Sequence[Path], seed: int) -> list[dict[str, Any]]:
    order = np.random.default_rng(seed).permutation(len(paths))
    hidden, known = ([paths[i] for i in sorted(part)] for part in np.split(order, [len(paths) // 3]))
    rows = []
    with TemporaryDirectory() as scratch:
        agent = agent_of(network, known, known, Path(scratch))
        opened = [open_measured(path, 0) for path in paths]
        shown = {(task.name, view): described(agent, task, view) for task in opened for view in VIEWS}
        unseen = [task_name(path) for path in hidden]
        for lenience, (size, count) in product(LENIENCES, BANKS.items()):
            rng = np.random.default_rng(100 * seed + size)
            for _ in range(count):
                bank = [task_name(known[i]) for i in sorted(rng.permutation(len(known))[:size])]
                with patch.object(gaussians, "LENIENCE", lenience):
                    with_bank(agent, bank)
                    for view in VIEWS:
                        sides = (
                            [asked(agent, name, shown[name, view]) for name in side] for side in (bank, unseen)
                        )
                        row = {"seed": seed, "lenience": lenience, "tasks": size, "view": view}
                        rows.append(row | figures(*sides))
            print(f"seed {seed}, lenience {lenience}, {size} tasks:", json.dumps(rows[-2]), flush=True)
    return rows


def measure_pairs(network: Network, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Ask agents of one task for images of a task like it, and of the next pair's, which is not."""
    by_name = {task_name(path): path for path in paths}
    pairs = {one: other for one, other in ALIKE.items() if {one, other} <= by_name.keys()}
    rest = [path for name, path in by_name.items() if name not in {*pairs, *pairs.values()}]
    rows = []
    with TemporaryDirectory() as scratch:
        agent = agent_of(network, [by_name[name] for name in pairs], rest, Path(scratch))
        names = [*pairs, *pairs.values()]
        shown = {name: described(agent, open_measured(by_name[name], 0), "original") for name in names}
        others = [*pairs.values()]
        for place, (name, like) in enumerate(pairs.items()):
            with_bank(agent, [name])
            known = asked(agent, name, shown[name])
            for kind, other in (("near", like), ("far", others[(place + 3) % len(others)])):
                row = figures([known], [asked(agent, other, shown[other])])
                rows.append({"known": name, "asked": other, "kind": kind} | row)
    return rows


def by_view_and_size(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"tasks": size, "view": view}
        | averaged([row for row in rows if (row["tasks"], row["view"]) == (size, view)])
        for view in VIEWS
        for size in BANKS
    ]


def averaged(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the means over banks; the confidence of hidden images that are answered is averaged over images."""
    mean = partial(_mean_of, rows)
    answered = sum(row["hidden_answered"] for row in rows)
    confidence = sum(row["hidden_confidence_sum"] for row in rows) / answered if answered else None
    names = [name for name in rows[0] if isinstance(rows[0][name], float) and name != "hidden_confidence_sum"]
    return {name: mean(name) for name in names} | {"hidden_confidence": confidence}


def _mean_of(rows: Sequence[dict[str, Any]], name: str) -> float:
    return round(fmean(row[name] for row in rows), 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "unknown.json")
    options = parser.parse_args()
    paths = find_tasks([options.tasks])
    origin = provenance("python benchmarks/unknown.py TASKS", paths, seed=0)
    network = load_network()
    rows = [row for seed in range(SEEDS) for row in measure_split(network, paths, seed)]
    groups, *others = (by_view_and_size([row for row in rows if row["lenience"] == each]) for each in LENIENCES)
    pairs = measure_pairs(network, paths)
    report = {"groups": groups, "other_leniences": others, "pairs": pairs, "banks": rows, "provenance": origin}
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
