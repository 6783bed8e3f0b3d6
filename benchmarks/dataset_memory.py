"""Measure how much memory learning a large dataset takes in addition to the agent itself.

    python benchmarks/dataset_memory.py [--images 20000] [--lazy] [--json docs/results/dataset-memory.json]

Images are drawn on demand, in a separate process with an empty cache. Without --lazy the dataset does not give its
labels in advance, so its images are first stored on disk; with --lazy it has `targets` and is read in place. The
peak is compared with that of an agent that has loaded its backbone and answered one image. --json adds to the
file's runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from skillmesh.evaluation.provenance import provenance

CLASSES, SIDE, MOST = 10, 96, 800
"""MOST: megabytes that learning may need in addition to the agent; descriptors of 20,000 images alone need 120."""


class Drawn:
    """A torch map-style dataset: noisy stripes whose direction and colour depend on the class."""

    classes = [f"stripes {index}" for index in range(CLASSES)]  # noqa: RUF012

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        label, random = index % CLASSES, np.random.default_rng([7, index])
        across, down = np.meshgrid(np.arange(SIDE), np.arange(SIDE))
        angle = np.pi * label / CLASSES + random.normal(0, 0.08)
        wave = np.sin(
            (across * np.cos(angle) + down * np.sin(angle)) / random.uniform(2, 5) + random.uniform(0, 6)
        )
        colour = random.uniform(0.3, 1, 3)
        noise = random.normal(0, 0.15, (SIDE, SIDE, 3))
        return (np.clip(0.5 + 0.4 * wave[..., None] * colour + noise, 0, 1) * 255).astype(np.uint8), label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--lazy", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measured(options.measure, options.images, options.lazy)))
        return
    command = " ".join(["python", "benchmarks/dataset_memory.py", *sys.argv[1:]])
    origin = provenance(command, [], 0)  # before the work, so that it describes the source that runs
    with TemporaryDirectory(prefix="skillmesh-bench-") as folder:
        words = [sys.executable, __file__, "--measure", folder, "--images", str(options.images)]
        environment = os.environ | {"SKILLMESH_CACHE": f"{folder}/cache"}
        done = subprocess.run(
            words + ["--lazy"] * options.lazy, env=environment, stdout=subprocess.PIPE, check=True, text=True
        )
    run = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(run, indent=1))
    if options.json is not None:
        run["provenance"] = origin
        runs = json.loads(options.json.read_text())["runs"] if options.json.exists() else []
        runs = [other for other in runs if other["lazy"] != run["lazy"]] + [run]
        options.json.write_text(json.dumps({"limit_mb": MOST, "runs": runs}, indent=1) + "\n")
    if run["learning_mb"] > MOST:
        sys.exit(f"learning took {run['learning_mb']} MB in addition to the agent, expected at most {MOST}")


def measured(place: Path, count: int, lazy: bool) -> dict[str, Any]:
    """Learn the dataset in this process and return its peak memory."""
    from skillmesh import Agent

    agent = Agent(place / "agent")
    few = Drawn(4 * CLASSES)
    agent.learn([few[i] for i in range(len(few))], name="few")
    agent.predict(few[0][0])
    agent.forget("few")
    empty = peak()
    dataset = Drawn(count)
    if lazy:
        dataset.targets = [index % CLASSES for index in range(count)]  # type: ignore[attr-defined]
    started = time.perf_counter()
    result = agent.learn(dataset, name="stripes")
    return {
        "images": count,
        "lazy": lazy,
        "learned_images": result.images,
        "validation_accuracy": result.accuracy,
        "agent_mb": round(empty / 1e6, 1),
        "learning_mb": round((peak() - empty) / 1e6, 1),
        "seconds": round(time.perf_counter() - started, 1),
    }


def peak() -> int:
    """Return the peak memory of this process so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
