"""The mapper at sizes for which there is no data: `skillmesh challenge simulate` for several, into one file.

    python benchmarks/scale.py TASKS --json docs/results/simulate.json [--sizes 100 1000 10000]

Each size is a process of its own. 10,000 tasks take about 6 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def simulated(tasks: Path, size: int) -> dict[str, Any]:
    words = ["challenge", "simulate", str(tasks), "--tasks", str(size), "--agents", str(size), "--json"]
    ran = subprocess.run([sys.executable, "-m", "skillmesh", *words], stdout=subprocess.PIPE, check=True)
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One file: the provenance of the first stands for all but the number of tasks."""
    origin = reports[0]["provenance"] | {"command": "python benchmarks/scale.py TASKS --json FILE"}
    runs = [{key: value for key, value in report.items() if key != "provenance"} for report in reports]
    return {"runs": runs, "provenance": origin | {"remark": "2 cores, shared with other work"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10_000])
    options = parser.parse_args()
    report = merged([simulated(options.tasks, size) for size in options.sizes])
    options.json.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
