"""Compare ONNX Runtime with PyTorch: accuracies, labels of all test images, and images per second.

    python benchmarks/engines.py TASKS --json docs/results/engines.json
    python benchmarks/engines.py THREE_TASKS --backbone xception --weights FILE --calibrate-on OTHER_TASKS \\
        --json docs/results/engines-xception.json

On each engine an agent learns all tasks and is tested on all test images, with no task label. Then each answers
with the modules that the other has learned. A backbone other than lite0 is exported first, with a calibration.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from skillmesh.backbone.backbone import DescriptorCache
from skillmesh.backbone.calibrating import calibrate_on
from skillmesh.backbone.exporting import export_network
from skillmesh.backbone.network import Network, cpu_workers, load_network
from skillmesh.backbone.spec import CALIBRATION, resolve
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.core import Core
from skillmesh.data.folder import find_tasks
from skillmesh.evaluation.evaluate import evaluate
from skillmesh.evaluation.provenance import provenance
from skillmesh.numerics.process import one_thread_each, process_is_ours
from skillmesh.store.home import create_home

ENGINES = ("onnx", "torch")
ROUNDS = 3
FASTEST_OF = 64
"""Number of images in a round that measures speed."""


@contextmanager
def engine(name: str) -> Iterator[None]:
    before = os.environ.get("SKILLMESH_ENGINE")
    os.environ["SKILLMESH_ENGINE"] = name
    try:
        yield
    finally:
        os.environ.pop("SKILLMESH_ENGINE")
        if before is not None:
            os.environ["SKILLMESH_ENGINE"] = before


def learned(home: Path, cache: Path, paths: Sequence[Path], on: str) -> dict[str, Any]:
    """Let an agent learn all tasks on an engine; return its accuracies."""
    with engine(on):
        agent = Core(home, device="cpu", cache_folder=cache)
        assert agent.backbone.network.engine == on
        result = evaluate(agent, paths)
    return {
        "task_given": result.task_given,
        "task_found": result.task_found,
        "final": result.final,
        "known_unknown": float(np.mean([task.known_unknown for task in result.tasks])),
    }


def answers_of(home: Path, cache: Path, paths: Sequence[Path], on: str) -> list[Any]:
    """Return an agent's answer to each test image on an engine: task, label, unknown."""
    with engine(on):
        agent = Core(home, device="cpu", cache_folder=cache)
        assert agent.backbone.network.engine == on
        result = evaluate(agent, paths, learn=False, keep_forced=True)
        threshold = agent.mapper()[1].threshold
    guesses = [guess for task in result.forced for guess in task.alone]
    unknown = np.concatenate(result.novelty_known) > threshold
    return [(guess.task, guess.label, bool(far)) for guess, far in zip(guesses, unknown, strict=True)]


def compared(ours: Sequence[Any], theirs: Sequence[Any]) -> dict[str, float]:
    """Return the shares of images with the same task and label, and with the same answer, "unknown" included."""
    labels = [a[:2] == b[:2] for a, b in zip(ours, theirs, strict=True)]
    answers = [a == b or (a[2] and b[2]) for a, b in zip(ours, theirs, strict=True)]
    return {"same_label": float(np.mean(labels)), "same_answer": float(np.mean(answers))}


def speed(network: Network, workers: int) -> float:
    """Return images per second of the bare pass, in the fastest of several rounds; on a CPU, one thread each."""
    images = np.random.default_rng(0).integers(0, 256, (FASTEST_OF, network.size, network.size, 3), dtype=np.uint8)
    seconds = []
    with one_thread_each(workers) as pool:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            list(pool.map(network.describe_one, images))
            seconds.append(time.perf_counter() - began)
    return FASTEST_OF / min(seconds)


def exported(folder: Path, name: str, weights: Path | None, paths: Sequence[Path], device: str) -> Path:
    """Export a backbone with a calibration made on the tasks; return its folder."""
    network = TorchNetwork(name, weights, "cpu")
    export_network(network, folder)
    fast = network if device == "cpu" else TorchNetwork(name, weights, device)
    cache = DescriptorCache(folder.parent / "calibrating", fast.fingerprint, engine="torch")
    calibrate_on(fast, paths, cache).save(folder / CALIBRATION)
    return folder


def measure(folder: Path, paths: Sequence[Path], settings: dict[str, Any]) -> dict[str, Any]:
    cache, name = folder / "cache", str(settings.get("backbone", "lite0"))
    for own in ENGINES:
        create_home(folder / own, name=own, **settings)
    with ProcessPoolExecutor(len(ENGINES), get_context("spawn")) as pool:
        learning = {own: pool.submit(learned, folder / own, cache, paths, own) for own in ENGINES}
        found = {own: each.result() for own, each in learning.items()}
        print(json.dumps(found), file=sys.stderr, flush=True)
        asking = {}
        for own, on in product(ENGINES, ENGINES):  # a home for each: an agent writes to its home
            home = Path(shutil.copytree(folder / own, folder / f"{own}-on-{on}"))
            asking[own, on] = pool.submit(answers_of, home, cache, paths, on)
        answers = {pair: each.result() for pair, each in asking.items()}
    for own in ENGINES:
        with engine(own):
            network = load_network(*resolve(name, settings.get("weights")), "cpu")
        found[own]["images_per_second"] = {str(n): speed(network, n) for n in sorted({1, cpu_workers()})}
    return {
        "tasks": len(paths),
        "images": len(answers["onnx", "onnx"]),
        "engines": found,
        "own_modules": compared(answers["onnx", "onnx"], answers["torch", "torch"]),
        "modules_of_torch": compared(answers["torch", "onnx"], answers["torch", "torch"]),
        "modules_of_onnx": compared(answers["onnx", "onnx"], answers["onnx", "torch"]),
        "versions": {package: version(package) for package in ("onnxruntime", "torch", "numpy")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--weights", type=Path)
    parser.add_argument(
        "--calibrate-on", type=Path, nargs="*", help="tasks for the calibration of another backbone"
    )
    parser.add_argument("--device", default="cpu", help="device to calibrate another backbone")
    parser.add_argument("--most", type=int, help="number of tasks, the first by name")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    process_is_ours()  # as in a command
    paths = find_tasks(options.tasks)[: options.most]
    origin = provenance(f"python benchmarks/engines.py {' '.join(sys.argv[1:])}", paths, 0)
    with tempfile.TemporaryDirectory() as name:
        folder, settings = Path(name), {}
        if options.backbone != "lite0":
            calibrating = find_tasks(options.calibrate_on) if options.calibrate_on else paths
            settings["backbone"] = str(
                exported(folder / "network", options.backbone, options.weights, calibrating, options.device)
            )
        report = measure(folder, paths, settings) | {"provenance": origin}
    text = json.dumps(report, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
