"""Measure how long an answer to one image takes, at rest and during a sync of 200 modules.

    sudo python benchmarks/mesh_answers.py

A node is asked about one new image after the other through its socket. Meanwhile another node appears that holds
200 modules of 100 teachers, all really learned; the first imports them while it answers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from nodes import fresh_copies, namespace, runs, start, status, taught_homes, until

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.evaluation.provenance import provenance
from skillmesh.mesh.calling import call
from skillmesh.mesh.process import stop_all
from skillmesh.module.notice import announce
from skillmesh.store.home import create_home

HERE = Path(__file__).parent
REST = 30.0
"""Seconds for which answers at rest are timed."""


def carrier(homes: list[Path], into: Path) -> Path:
    """Make the home of an agent that holds the modules of all others, with their teachers' announcements."""
    shutil.rmtree(into, ignore_errors=True)
    create_home(into, name="carrier")
    MeshSettings.of({"trust": "open"}).save(into)
    agent = Core(into)
    for home in homes:
        teacher = Core(home)
        for module in teacher.bank:
            data = teacher.bank.file_of(module)
            agent.ledger.merge([announce(module.card, module.id, data, teacher.identity)], "benchmark")
            agent.import_bytes(data)
    return into


class Asker(threading.Thread):
    """Asks about one image after the other and records the time of each answer."""

    def __init__(self, home: Path, images: list[Path]) -> None:
        super().__init__(daemon=True)
        self._home, self._images = home, cycle(images)
        self.times: list[tuple[float, float]] = []
        self.enough = threading.Event()

    def run(self) -> None:
        for image in self._images:
            if self.enough.is_set():
                return
            began = time.monotonic()
            call(self._home, "ask", images=[str(image)])
            self.times.append((began, time.monotonic() - began))

    def between(self, begin: float, end: float) -> dict[str, Any]:
        durations = [seconds for at, seconds in self.times if begin <= at < end]
        middle, late = np.percentile(durations, [50, 99])
        return {
            "answers": len(durations),
            "median_ms": round(1000 * middle, 1),
            "p99_ms": round(1000 * late, 1),
            "slowest_ms": round(1000 * max(durations), 1),
        }


def measure(receiver: Path, giver: Path, images: list[Path], modules: int) -> dict[str, Any]:
    with namespace() as net:
        nodes = [start(receiver, net)]
        try:
            until(lambda: runs(receiver))
            call(receiver, "ask", timeout=None, images=[str(images[0])])  # loads the backbone
            asker = Asker(receiver, images[1:])
            asker.start()
            time.sleep(3)
            before = time.monotonic()
            time.sleep(REST)
            began = time.monotonic()
            nodes.append(start(giver, net))
            until(lambda: runs(giver))
            met = time.monotonic()
            until(lambda: status(receiver)["in_use"] == modules)
            ended = time.monotonic()
            time.sleep(REST)
            after = time.monotonic()
            asker.enough.set()
            asker.join(30)
            stood = status(receiver)
        finally:
            stop_all(nodes, grace=60)
    report = {
        "at_rest": asker.between(before, began),
        "during_sync": asker.between(met, ended),
        "at_rest_after": asker.between(ended + 2, after),
    }
    return report | {
        "modules": modules,
        "sync_seconds": round(ended - met, 1),
        "p99_ratio": round(report["during_sync"]["p99_ms"] / report["at_rest"]["p99_ms"], 2),
        "p99_ratio_to_after": round(report["during_sync"]["p99_ms"] / report["at_rest_after"]["p99_ms"], 2),
        "slowest_import_seconds": stood["slowest_import_seconds"],
        "held": stood["declined"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teachers", type=int, default=100, help="number of teachers, with two modules each")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "skillmesh-bench")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "mesh-answers.json")
    options = parser.parse_args()
    homes = taught_homes(options.work, options.teachers + 1)
    origin = provenance("python benchmarks/mesh_answers.py", [], 0)
    giver = carrier(homes[:-1], options.work / "run" / "carrier")
    receiver = fresh_copies(homes[-1:], options.work / "run" / "receiver")[0]
    images = sorted((options.work / "tasks").rglob("train/*/*.jpg"))
    np.random.default_rng(0).shuffle(images)
    os.environ["SKILLMESH_CACHE"] = str(options.work / "empty-cache")  # so that no descriptor comes from the cache
    shutil.rmtree(options.work / "empty-cache", ignore_errors=True)
    report = measure(receiver, giver, images, 2 * options.teachers + 2) | {"provenance": origin}
    print(json.dumps(report, indent=1))
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
