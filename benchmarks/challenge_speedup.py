"""Measure wall-clock time of two agents against one, each with one thread and a cold cache; and of two threads.

    python benchmarks/challenge_speedup.py TASKS [--tasks 6] [--repeats 1] [--json FILE]

The smallest tasks are used, so that it ends in minutes. The time runs until every agent can answer everything:
learning, sharing, and building the mapper. Starting processes and loading the backbone is reported separately: its
cost does not grow with what is learned. Of several repeats the fastest counts, since other processes only make it
slower; run nothing else on the machine. The processor seconds of the agent that learns longest are reported too; a
busy machine hardly changes them.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from skillmesh.data.folder import find_tasks, open_task
from skillmesh.evaluation.provenance import provenance
from skillmesh_challenge.methods import METHODS
from skillmesh_challenge.record import Record
from skillmesh_challenge.run import Plan, run

VARIANTS = {
    "one agent, one thread": {"agents": 1, "workers": 1, "threads": 1},
    "two agents, one thread each": {"agents": 2, "workers": 2, "threads": 1},
    "one agent, two threads": {"agents": 1, "workers": 1, "threads": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--method", default="sketch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    paths = smallest(find_tasks(options.folders), options.tasks)
    fastest: dict[str, dict[str, Any]] = {}
    for _ in range(options.repeats):
        for name, settings in VARIANTS.items():
            found = measured(paths, options.method, settings)
            print(name, found, flush=True)
            if name not in fastest or found["seconds"] < fastest[name]["seconds"]:
                fastest[name] = found
    report = summary(fastest) | {
        "tasks": [path.stem for path in paths],
        "cores": len(os.sched_getaffinity(0)),
        "repeats": options.repeats,
        "provenance": provenance(
            f"python benchmarks/challenge_speedup.py TASKS --tasks {options.tasks} --repeats {options.repeats}",
            paths,
            0,
        ),
    }
    print(json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def smallest(paths: list[Path], count: int) -> list[Path]:
    sizes = {path: sum(len(split) for split in open_task(path).splits.values()) for path in paths}
    return sorted(sorted(paths, key=lambda path: sizes[path])[:count])


def measured(paths: list[Path], method: str, settings: dict[str, int]) -> dict[str, Any]:
    """Run the challenge in a temporary folder and return its times."""
    with TemporaryDirectory(prefix="skillmesh-speedup-") as folder:
        plan = Plan(
            paths, METHODS[method], Path(folder) / "run", agents=1, assign="balanced", cold=True, bound=False
        )
        record = run(replace(plan, **settings))
        rebuild = record.steps[-1].student_seconds
        assert record.results is not None
        return {
            "seconds": round(record.times["learning_seconds"] + record.times["sharing_seconds"] + rebuild, 2),
            "learning_seconds": record.times["learning_seconds"],
            "sharing_seconds": record.times["sharing_seconds"],
            "rebuild_seconds": rebuild,
            "startup_seconds": record.times["startup_seconds"],
            "busiest_cpu_seconds": round(busiest(record), 2),
            "images": record.results["wall_seconds"]["images"],
            "final_accuracy": record.results["final_accuracy"],
            "speedup_in_macs_of_busiest": record.results["costs"]["busiest_speedup"],
        }


def busiest(record: Record) -> float:
    """Return the CPU seconds of the agent that learned longest; other processes hardly change them."""
    agents = record.settings.assignment
    return max(sum(m.cpu_seconds or 0 for m in record.learned if m.agent == name) for name in agents)


def summary(fastest: dict[str, dict[str, Any]]) -> dict[str, Any]:
    one, one_cpu = (fastest["one agent, one thread"][name] for name in ("seconds", "busiest_cpu_seconds"))
    return {
        "variants": [
            {
                "variant": name,
                "speedup": round(one / found["seconds"], 3),
                "cpu_speedup": round(one_cpu / found["busiest_cpu_seconds"], 3),
            }
            | found
            for name, found in fastest.items()
        ]
    }


if __name__ == "__main__":
    main()
