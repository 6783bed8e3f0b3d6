"""Search for faults with mutated files, kills and power loss, hostile peers, and hours of ordinary load.

    python benchmarks/campaign.py --seconds 600 --seed 1 --kept campaign-out
    python benchmarks/campaign.py --only files --seconds 600 --json docs/results/campaign.json

Each part gets its share of the seconds. A second call with the same seed and folder resumes where the first
stopped, and its figures cover both. Failures are stored in KEPT/PART/failures, with the data to reproduce them;
the exit status is 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from skillmesh.evaluation.provenance import provenance

SHARES = {"files": 0.2, "kills": 0.2, "peers": 0.25, "soak": 0.35}
FIGURES = "figures.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="seconds for all parts together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(SHARES), default=list(SHARES), help="the parts to run")
    parser.add_argument("--kept", type=Path, default=Path("campaign-out"), help="folder for progress and findings")
    parser.add_argument("--json", type=Path, help="put the figures of these parts into this file")
    options = parser.parse_args()
    whole = sum(SHARES[part] for part in options.only)
    results = {}
    for part in options.only:
        seconds = options.seconds * SHARES[part] / whole
        results[part] = attack(part, seconds, options.seed, options.kept / part)
        if options.json is not None:
            publish(options.json, part, results[part])
    for part, figures in results.items():
        show(part, figures)
    return any(figures["failures"] for figures in results.values())


def attack(part: str, seconds: float, seed: int, kept: Path) -> dict[str, Any]:
    """Run one part for its seconds and return the figures of all calls on its folder, with their origin."""
    kept.mkdir(parents=True, exist_ok=True)
    file = kept / FIGURES
    earlier = json.loads(file.read_text()) if file.is_file() else {"seconds": 0.0, "calls": []}
    if any(call["seed"] != seed for call in earlier["calls"]):
        raise SystemExit(
            f"{kept} belongs to seed {earlier['calls'][0]['seed']}, not to {seed}: name another --kept"
        )
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{part} {time.monotonic() - began:6.0f} s  {line}", file=sys.stderr, flush=True)

    origin = provenance(" ".join(["python", "benchmarks/campaign.py", *sys.argv[1:]]), [], seed)
    figures = import_module(f"attacks.{part}").run(seconds, seed, kept, say)
    # A part may report a larger total, which includes interrupted calls.
    figures["seconds"] = round(max(figures.get("seconds", 0.0), earlier["seconds"] + time.monotonic() - began), 1)
    figures["calls"] = [*earlier["calls"], origin]
    file.write_text(json.dumps(figures, indent=1) + "\n")
    return figures


def publish(target: Path, part: str, figures: dict[str, Any]) -> None:
    """Replace a part's earlier figures; the provenance is that of its last call."""
    parts = json.loads(target.read_text())["parts"] if target.is_file() else {}
    parts[part] = figures
    target.write_text(json.dumps({"parts": parts, "provenance": figures["calls"][-1]}, indent=1) + "\n")


def show(part: str, figures: dict[str, Any]) -> None:
    print(f"\n{part}: {figures['seconds']:.0f} s, {len(figures['failures'])} failures")
    for name, value in figures.items():
        if name not in ("seconds", "calls", "failures"):
            print(f"  {name.replace('_', ' ')}: {value}")
    for failure in figures["failures"]:
        print(f"  FAILED {failure['what']}\n    repeat: {failure['repeat']}")


if __name__ == "__main__":
    sys.exit(main())
