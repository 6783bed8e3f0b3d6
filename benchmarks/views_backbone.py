"""Measure views on another backbone: with a calibration of its own, an agent learns tasks and answers nine views.

    python benchmarks/views_backbone.py TASKS --backbone xception --weights FILE --out views-xception.json

The file is written anew after every view, because this takes long. `--learn-views 0` learns no views.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from tables.agents import NINE

from skillmesh.backbone.backbone import DescriptorCache, default_folder
from skillmesh.backbone.calibrating import calibrate_on
from skillmesh.backbone.network import load_network
from skillmesh.core import Core
from skillmesh.data.folder import find_tasks
from skillmesh.evaluation.evaluate import evaluate
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
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    paths, network = find_tasks([options.tasks]), load_network(options.backbone, options.weights)
    with TemporaryDirectory() as scratch:
        calibration = Path(scratch) / "calibration.safetensors"
        cache = DescriptorCache(default_folder(), network.fingerprint, engine=network.engine)
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


def command(options: argparse.Namespace) -> str:
    words = f"python benchmarks/views_backbone.py TASKS --backbone {options.backbone}"
    if options.weights is not None:
        words += f" --weights {options.weights.name}"
    return words if options.learn_views is None else f"{words} --learn-views {options.learn_views:g}"


def say(done: str) -> None:
    print(done, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
