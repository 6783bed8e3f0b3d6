"""Measure accuracy over a folder of tasks: each row of docs/appendix/accuracy.md is one `skillmesh eval`.

    python benchmarks/accuracy.py ../shared/tasks

Calibrations for the transfer rows are made first: from each random half of the tasks (measured on the other half),
and from the drawn demo tasks. Results go to docs/results/, one JSON file each; an existing result is kept, unless
its row is named with --only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from skillmesh.data.demo import HIDDEN, LEARNED, write_demo_tasks
from skillmesh.data.folder import find_tasks

HERE = Path(__file__).parent
SKETCH: list[str] = []
AS_THEY_ARE = ["--learn-views", "0"]
"""The paper's kinds learn images as they are."""
GMMC = ["--anchor", "gmmc", "--representation", "features", *AS_THEY_ARE]
GMMC_FLOOR = ["--anchor", "gmmc", "--representation", "sqrt-features", "--variance-floor", "0.01", *AS_THEY_ARE]
MAHA = ["--anchor", "maha", "--representation", "features", *AS_THEY_ARE]
METHODS = {"sketch": SKETCH, "gmmc": GMMC, "gmmc-floor": GMMC_FLOOR, "maha": MAHA}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results")
    parser.add_argument(
        "--only", nargs="*", default=[], help="names of rows to measure, even if there are results"
    )
    parser.add_argument("--jobs", type=int, default=1, help="evaluations to run in parallel")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        rows = _rows(find_tasks([options.tasks]), options.tasks, Path(scratch))
        wanted = {n: r for n, r in rows.items() if _is_wanted(n, options.only, options.out)}
        _make_calibrations(wanted, Path(scratch))
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda row: _evaluate(*row, options.out), wanted.items()))


def _rows(paths: list[Path], folder: Path, scratch: Path) -> dict[str, list[str]]:
    """Return the arguments of `skillmesh eval` for each row, by its name."""
    order = np.random.default_rng(0).permutation(len(paths))
    halves = [
        _linked(scratch / half, [paths[i] for i in part])
        for half, part in zip("ab", np.array_split(order, 2), strict=True)
    ]
    demo = scratch / "demo"
    rows = {name: [str(folder), *arguments] for name, arguments in METHODS.items()}
    rows["sketch-features"] = [str(folder), "--representation", "features"]
    rows["sketch-compact"] = [str(folder), "--compact"]
    for name, arguments in METHODS.items():
        for own, other in (halves, halves[::-1]):
            rows[f"half-{own.name}-{name}"] = [str(own), *arguments, "--calibration", f"{other}.safetensors"]
    for own, other in (halves, halves[::-1]):
        rows[f"half-{own.name}-sketch-shipped"] = [str(own)]
        rows[f"half-{own.name}-sketch-compact"] = [str(own), "--compact", "--calibration", f"{other}.safetensors"]
    for name in ("sketch", "maha"):
        rows[f"drawn-{name}"] = [str(folder), *METHODS[name], "--calibration", f"{demo}.safetensors"]
    return rows


def _linked(folder: Path, paths: list[Path]) -> Path:
    """Make a folder of links to some of the tasks, so that one path names half of them."""
    folder.mkdir()
    for path in paths:
        (folder / path.name).symlink_to(path.resolve())
    return folder


def _is_wanted(name: str, only: list[str], out: Path) -> bool:
    return name in only if only else not (out / f"{name}.json").exists()


def _make_calibrations(rows: dict[str, list[str]], scratch: Path) -> None:
    wanted = {arguments[-1] for arguments in rows.values() if arguments[-1].endswith(".safetensors")}
    for target in sorted(wanted):
        folder = Path(target).with_suffix("")
        if folder.name == "demo":
            write_demo_tasks(folder, names=(*LEARNED, *HIDDEN))
        _skillmesh("calibrate", str(folder), "--out", target)


def _evaluate(name: str, arguments: list[str], out: Path) -> None:
    _skillmesh("eval", *arguments, "--out", str(out / f"{name}.json"))
    print(name, "measured", flush=True)


def _skillmesh(*arguments: str) -> None:
    command = [sys.executable, "-m", "skillmesh", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    main()
