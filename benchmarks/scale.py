"""Measure the mapper at several sizes for which there is no data, as `skillmesh challenge simulate` does.

    python benchmarks/scale.py TASKS --json docs/results/simulate.json [--sizes 100 1000 10000]

The tasks are learned, and the method of growing tasks is checked, only once. 10,000 tasks need about 6 GB of
memory.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from skillmesh.common.choices import WarmStart
from skillmesh.core import Core
from skillmesh.data.folder import find_tasks, open_task
from skillmesh.evaluation.provenance import provenance
from skillmesh.store.home import create_home
from skillmesh_challenge.scale import ScalePlan
from skillmesh_challenge.simulate import GrowthCheck, Half, learn_and_check, scaled


def learn_and_reuse_check(agent: Core, paths: list[Path], result: Path) -> GrowthCheck:
    """Learn the tasks; return the check from an earlier result, which does not depend on how a mapper is built."""
    for path in paths:
        agent.learn(open_task(path, hold_out=("val", "test")), warm_start=WarmStart("never"))
    run = json.loads(result.read_text())["runs"][0]
    halves = tuple(Half(**{key: value for key, value in half.items() if key != "gap"}) for half in run["check"])
    return GrowthCheck(len(paths), run["reach"], halves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument(
        "--proof", type=Path, help="earlier result whose check of the method of growing tasks is reused"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10_000])
    options = parser.parse_args()
    paths = find_tasks([options.tasks])
    origin = provenance("python benchmarks/scale.py TASKS --json FILE", paths, seed=0)
    origin["remark"] = "2 cores, shared with other work"
    if options.proof:
        earlier = json.loads(options.proof.read_text())["provenance"]["commit"]
        origin["remark"] += f"; the method of growing tasks was checked at commit {earlier}"
    with TemporaryDirectory() as fresh:
        create_home(Path(fresh), name="scale")
        agent = Core(Path(fresh), device="cpu")
        check = (
            learn_and_reuse_check(agent, paths, options.proof) if options.proof else learn_and_check(agent, paths)
        )
        runs = []
        for size in options.sizes:
            runs.append(scaled(agent, paths, ScalePlan(size, size), check))
            report = {"runs": runs, "provenance": origin}
            options.json.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
