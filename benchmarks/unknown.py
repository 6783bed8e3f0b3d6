"""Measure "unknown" answers on tasks never taught: three seeded splits each hide a third of the tasks.

    python benchmarks/unknown.py ../shared/tasks

The calibration, including its background, is made from the learned tasks alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from skillmesh.backbone.backbone import DescriptorCache, default_folder
from skillmesh.backbone.calibrating import calibrate_on
from skillmesh.backbone.network import Network, load_network
from skillmesh.core import Core
from skillmesh.data.folder import find_tasks, task_name
from skillmesh.evaluation.evaluate import evaluate
from skillmesh.evaluation.provenance import provenance
from skillmesh.store.home import create_home

HERE = Path(__file__).parent
FIGURES = (
    "unknown_auroc",
    "known_unknown",
    "hidden_unknown",
    "task_found_accuracy",
    "final_accuracy",
    "strict_accuracy",
    "task_given_accuracy",
)


def measure(network: Network, paths: list[Path], seed: int) -> dict[str, Any]:
    order = np.random.default_rng(seed).permutation(len(paths))
    hidden = sorted(task_name(paths[i]) for i in order[: len(paths) // 3])
    learned = [path for path in paths if task_name(path) not in hidden]
    cache = DescriptorCache(default_folder(), network.fingerprint)
    with TemporaryDirectory() as scratch:
        calibration = Path(scratch) / "calibration.safetensors"
        calibrate_on(network, learned, cache).save(calibration)
        create_home(Path(scratch) / "home", name="unknown", calibration=calibration)
        agent = Core(Path(scratch) / "home")
        summary = evaluate(agent, paths, hide=hidden).summary()
    result = {figure: summary[figure] for figure in FIGURES} | {"seed": seed, "hidden": summary["hidden"]}
    print(f"seed {seed}:", *(f"{figure} {result[figure]:.4f}" for figure in FIGURES), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "unknown.json")
    options = parser.parse_args()
    paths = find_tasks([options.tasks])
    origin = provenance("python benchmarks/unknown.py ../shared/tasks", paths, seed=0)
    network = load_network()
    splits = [measure(network, paths, seed) for seed in range(3)]
    report: dict[str, Any] = {"splits": splits}
    report |= {figure: round(fmean(split[figure] for split in splits), 6) for figure in FIGURES}
    report["provenance"] = origin
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
