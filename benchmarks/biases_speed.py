"""Measure answering when half of the tasks have biases, against one bare forward pass; and swapping biases.

    python benchmarks/biases_speed.py

An agent that knows eight drawn tasks, four of them with biases, is asked about 256 images of all of them. The bare
pass processes the same images, already decoded, with the same network and threads.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from skillmesh.backbone.network import cpu_workers
from skillmesh.common.choices import Adaptation, WarmStart
from skillmesh.core import Core
from skillmesh.data.demo import LEARNED, write_demo_tasks
from skillmesh.data.inputs import as_image
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.adaptation import Biases
from skillmesh.numerics.process import one_thread_each, process_is_ours
from skillmesh.store.home import create_home

HERE = Path(__file__).parent
IMAGES = 256
ROUNDS = 3


def fastest(work: Callable[[], Any]) -> float:
    """Return the fastest of several rounds, in seconds: other processes can only add time."""
    durations = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        durations.append(time.perf_counter() - began)
    return min(durations)


def measure(folder: Path) -> dict[str, Any]:
    names = LEARNED[:8]
    write_demo_tasks(folder / "tasks", train=6, val=3, test=8, names=list(names))
    create_home(folder / "home", name="speed")
    agent = Core(folder / "home", device="cpu", cache_folder=folder / "cache")
    for index, name in enumerate(names):
        agent.learn(
            folder / "tasks" / name,
            adaptation=Adaptation(mode="always" if index % 2 else "none"),
            warm_start=WarmStart("never"),
        )
    agent.backbone.cache = None  # so that no descriptor comes from the cache
    paths = sorted((folder / "tasks").glob("*/test/*/*.jpg"))
    chosen = [paths[i] for i in np.random.default_rng(0).permutation(len(paths))[:IMAGES]]
    network = agent.backbone.network
    images = [as_image(path) for path in chosen]
    pixels = [image.pixels(image.content(), network.size) for image in images]
    biased = agent.bank.find(names[1])

    def bare() -> None:
        with one_thread_each(cpu_workers()) as pool:
            list(pool.map(network.describe_one, pixels))

    def swap() -> None:
        assert biased.card.biases is not None
        network.describe_one(pixels[0], Biases.read(biased.tensors, biased.card.biases[0]).added)

    answers = agent.answer(list(chosen))
    with_biases = sum(agent.bank.find(answer.best.task).card.biases is not None for answer in answers)
    found = {"bare_seconds": fastest(bare), "answer_seconds": fastest(lambda: agent.answer(list(chosen)))}
    return found | {
        "ratio": round(found["answer_seconds"] / found["bare_seconds"], 2),
        "images": len(chosen),
        "second_passes": with_biases,
        "swap_milliseconds": round(1000 * fastest(swap), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "biases-speed.json")
    options = parser.parse_args()
    process_is_ours()  # as in a command
    origin = provenance("python benchmarks/biases_speed.py", [], 0)
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder)) | {"provenance": origin}
    print(json.dumps(report, indent=1))
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
