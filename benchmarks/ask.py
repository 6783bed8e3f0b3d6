"""Measure `skillmesh ask` on many images: time to the first answer, and memory by number of images.

    python benchmarks/ask.py [--images 1000] [--json docs/results/ask.json]

`skillmesh ask FOLDER` runs as a process on drawn images that it has never seen; each line is timed as it arrives.
One run asks about a tenth of the images, another about all; if memory does not grow, both need the same amount.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from skillmesh.core import Core
from skillmesh.data.demo import LEARNED, write_demo_tasks
from skillmesh.evaluation.provenance import provenance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="skillmesh-bench-") as folder:
        place = Path(folder)
        tasks = list(LEARNED)[:4]
        write_demo_tasks(place / "tasks", train=12, val=4, test=4, names=tasks)
        paths = [place / "tasks" / task for task in tasks]
        origin = provenance(" ".join(["python", "benchmarks/ask.py", *sys.argv[1:]]), paths, 0)
        agent = Core.open(place / "agent")
        for path in paths:
            agent.learn(path)
        few = max(1, options.images // 10)
        runs = {count: asked(place, count) for count in (few, options.images)}
    facts = {"runs": list(runs.values()), "memory_ratio": round(growth(runs[few], runs[options.images]), 3)}
    if options.json is not None:
        options.json.write_text(json.dumps(facts | {"provenance": origin}, indent=1) + "\n")
    for run in facts["runs"]:
        print(
            f"{run['images']} images: first answer after {run['first_seconds']:.1f} s, half of them after "
            f"{run['half_seconds']:.1f} s, the last after {run['last_seconds']:.1f} s; {run['peak_mb']:.0f} MB"
        )
    print(f"memory for ten times the images: {facts['memory_ratio']:.3f} ×")


def asked(place: Path, count: int) -> dict[str, Any]:
    """Run the command on `count` new images, with an empty cache."""
    images = place / f"images-{count}"
    draw(images, place / "tasks", count)
    home = str(place / "agent")
    words = [sys.executable, "-m", "skillmesh", "--home", home, "ask", str(images)]
    environment = os.environ | {"SKILLMESH_CACHE": str(place / f"cache-{count}")}
    started, times = time.perf_counter(), []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        peak = 0
        for _ in process.stdout:
            times.append(time.perf_counter() - started)
            peak = max(peak, memory(process.pid))
    assert process.returncode == 0
    assert len(times) == count
    return {
        "images": count,
        "first_seconds": round(times[0], 2),
        "half_seconds": round(times[count // 2], 2),
        "last_seconds": round(times[-1], 2),
        "peak_mb": round(peak / 1e6, 1),
    }


def draw(into: Path, tasks: Path, count: int) -> None:
    """Write distinct images: drawn pictures, each with another last pixel."""
    from skillmesh.data.images import open_rgb

    into.mkdir()
    for number, path in enumerate(islice(drawn(tasks), count)):
        changed = open_rgb(path.read_bytes())
        changed.putpixel((0, 0), (number % 256, number // 256 % 256, 7))
        changed.save(into / f"{number:05}.png")


def drawn(tasks: Path) -> Iterator[Path]:
    return cycle(sorted(tasks.glob("*/test/*/*")))


def memory(pid: int) -> int:
    """Return the peak memory of a process so far, in bytes; 0 if it has just ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def growth(few: dict[str, Any], many: dict[str, Any]) -> float:
    return float(many["peak_mb"] / few["peak_mb"])


if __name__ == "__main__":
    main()
