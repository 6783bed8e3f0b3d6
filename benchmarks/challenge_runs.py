"""Collect challenge runs for the docs: accuracy, costs, and whether they equal `skillmesh eval`.

    skillmesh challenge run TASKS --agents 20 --method sketch --out runs/sketch        # and maha, gmmc, …
    skillmesh eval TASKS --out runs/eval-sketch.json
    python benchmarks/challenge_runs.py runs --json docs/results/challenge-runs.json

Every run in the folder becomes a row. A file `eval-METHOD.json` in the folder is compared with the method's runs,
digit by digit.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from skillmesh_challenge.metrics import AVERAGED
from skillmesh_challenge.record import Record, find_records, read_record

FIGURES = (*AVERAGED.values(), "module_bytes", "anchor_bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    records = [read_record(path) for path in find_records([options.folder])]
    rows = [row(record, options.folder) for record in records if record.complete]
    report = {"runs": rows, "provenance": records[0].circumstances.provenance}
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    if options.json:
        options.json.write_text(text)
    else:
        print(text)


def row(record: Record, folder: Path) -> dict[str, Any]:
    results = record.results or {}
    lifelong = results["lifelong"]
    kept = {
        name: results[name] for name in (*FIGURES, "bytes_by_part", "bounds", "costs", "sharing", "wall_seconds")
    }
    return kept | {
        "run": str(record.folder.relative_to(folder)),
        "method": record.settings.method["name"],
        "agents": record.settings.agents,
        "tasks": len(record.settings.tasks),
        "seed": record.settings.seed,
        "executor": record.circumstances.executor,
        "assign": record.settings.assign,
        "equals_eval": compared(results, folder / f"eval-{record.settings.method['name']}.json"),
        "normalised_at_the_end": lifelong["normalised_at_the_end"],
        "forgetting": lifelong["forgetting"],
        "backward_transfer": lifelong["backward_transfer"],
        "mapper_line": lifelong["mapper_line"],
        "provenance": record.circumstances.provenance,
    }


def compared(results: dict[str, Any], path: Path) -> bool | None:
    """Return whether all macro averages equal those of `skillmesh eval`; None if it was not run."""
    if not path.exists():
        return None
    expected = json.loads(path.read_text())
    return all(results[name] == expected[name] for name in FIGURES)


if __name__ == "__main__":
    main()
