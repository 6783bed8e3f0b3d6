"""Measure views on another backbone: with a calibration of its own, an agent learns tasks and answers nine views.

    python benchmarks/views_backbone.py TASKS --backbone xception --weights FILE --out views-xception.json

The file is written anew after every view, because this takes long. `--learn-views 0` learns no views. With
`--jobs N`, N processes describe the images first, and all that follows finds them in the cache: one process
alone keeps a fast GPU waiting for decoded images.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from tables.agents import NINE

from skillmesh.backbone.backbone import DescriptorCache, default_folder
from skillmesh.backbone.calibrating import calibrate_on
from skillmesh.backbone.network import Network, cpu_workers, describe, load_network
from skillmesh.core import Core
from skillmesh.data.folder import find_tasks
from skillmesh.data.views import ViewedImage
from skillmesh.evaluation.evaluate import evaluate, open_measured
from skillmesh.evaluation.provenance import provenance
from skillmesh.evaluation.views import evaluate_views
from skillmesh.store.home import create_home

VIEWS = (*NINE[1:], "phone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--learn-views", type=float)
    parser.add_argument("--jobs", type=int, help="number of processes that describe images beforehand")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    paths = find_tasks([options.tasks])
    if options.jobs:
        describe_beforehand(paths, options.backbone, options.weights, options.jobs)
    network = load_network(options.backbone, options.weights)
    with TemporaryDirectory() as scratch:
        calibration = Path(scratch) / "calibration.safetensors"
        cache = cache_of(network)
        calibrate_on(network, paths, cache).save(calibration)
        say("calibrated")
        home = Path(scratch) / "home"
        create_home(
            home, name="views", backbone=options.backbone, weights=options.weights, calibration=calibration
        )
        agent = Core(home)
        original = evaluate(agent, paths, views=options.learn_views)
        rows = []
        for figures in evaluate_views(agent, original, VIEWS):
            rows.append(asdict(figures))
            say(f"{figures.view}: final {figures.final_accuracy}")
            finals = [row["final_accuracy"] for row in rows if row["view"] in NINE]
            report = {
                "backbone": options.backbone,
                "tasks": len(paths),
                "learn_views": options.learn_views,
                "nine": fmean(finals) if len(finals) == len(NINE) else None,
                "views": rows,
                "provenance": provenance(command(options), paths, 0),
            }
            options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def describe_beforehand(paths: Sequence[Path], backbone: str, weights: Path | None, jobs: int) -> None:
    """Put the descriptors of all images, and of the views of the test images, into the cache."""
    share = partial(describe_share, backbone, weights, max(cpu_workers() // jobs, 1))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        list(pool.map(share, [paths[job::jobs] for job in range(jobs)]))


def describe_share(backbone: str, weights: Path | None, threads: int, paths: Sequence[Path]) -> None:
    os.environ["SKILLMESH_THREADS"] = str(threads)
    network = load_network(backbone, weights)
    cache = cache_of(network)
    for path in paths:
        splits = open_measured(path).splits
        tested = splits["test"].files
        describe(network, [image for split in splits.values() for image in split.files], cache)
        describe(network, [ViewedImage(image, (view,)) for view in VIEWS for image in tested], cache)
        say(f"described {path.stem}")


def cache_of(network: Network) -> DescriptorCache:
    return DescriptorCache(default_folder(), network.fingerprint, engine=network.engine)


def command(options: argparse.Namespace) -> str:
    words = f"python benchmarks/views_backbone.py TASKS --backbone {options.backbone}"
    if options.weights is not None:
        words += f" --weights {options.weights.name}"
    return words if options.learn_views is None else f"{words} --learn-views {options.learn_views:g}"


def say(done: str) -> None:
    print(done, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
