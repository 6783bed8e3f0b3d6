"""Run the baselines and our method on one stream of tasks: tuned settings, several seeds, parallel runs.

    skillmesh challenge tune TASKS --method naive,joint,ewc,… --first 4 --out benchmarks/tuned
    python benchmarks/baselines.py TASKS --methods naive joint ewc … --out runs [--workers 14] [--device cuda]
    python benchmarks/baselines.py --gather runs --json docs/results/baselines.json [--keep] [--remark "…"]

A method with a file in `--settings` (`benchmarks/tuned`) uses the settings in it, any other its defaults. Runs are
those of `skillmesh challenge run --shuffle --seeds …`; an interrupted sweep resumes where it stopped. Each process
takes one run after the other in the given order of methods, so that a GPU plans its kernels once for many runs;
name the longest method first, so that the others need not wait for it at the end. `--keep` keeps results of the
file that the runs do not contain: other methods, and other seeds of the same methods, on the same data.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import skillmesh_challenge.baselines.methods  # noqa: F401  (registers the methods)
from skillmesh.data.folder import find_tasks
from skillmesh_challenge.baselines.settings import Baseline
from skillmesh_challenge.baselines.trials import run_jobs
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import Method, find_method
from skillmesh_challenge.metrics import Interval, after_learning, forgetting, pooled
from skillmesh_challenge.record import Record
from skillmesh_challenge.report.collect import Group, collect
from skillmesh_challenge.run import Plan, run

TUNED = Path(__file__).parent / "tuned"


@dataclass(frozen=True)
class Job:
    """A run of one method with one seed; small enough to send to another process."""

    method: str
    seed: int
    tasks: tuple[Path, ...]
    out: Path
    device: str | None
    settings: Path
    """Folder of the tuned methods' files."""

    def make(self) -> Record:
        method, name = self._method()
        options = f"--method {name} --seeds {self.seed} --shuffle --no-bound --agents 1"
        plan = Plan(
            paths=self.tasks,
            method=method,
            out=self.out / self.method / f"seed-{self.seed}",
            agents=1,
            seed=self.seed,
            shuffle=True,
            bound=False,
            workers=1,
            device=self.device,
            command=f"skillmesh challenge run TASKS {options}",
        )
        return run(plan)

    def _method(self) -> tuple[Method, str]:
        """Return the method, from its file if it has one, and its name in a command."""
        file = self.settings / f"{self.method}.toml"
        if file.exists():
            return find_method(str(file)), f"benchmarks/{file.parent.name}/{file.name}"
        method = find_method(self.method)
        if isinstance(method, Baseline) and method.settings_to_try():
            raise RunError(
                f"{self.method} was not tuned, expected {file}; make it with `skillmesh challenge tune`"
            )
        return method, self.method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path, nargs="*")
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device")
    parser.add_argument("--settings", type=Path, default=TUNED, help="folder of methods' files")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--gather", type=Path, help="folder of finished runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="leave other methods and seeds in --json")
    parser.add_argument("--remark", help="about the machine, beside what was gathered")
    options = parser.parse_args()
    if options.gather:
        if options.keep and not (options.json and options.json.exists()):
            parser.error("--keep takes a file that is there; name it with --json")
        before = json.loads(options.json.read_text()) if options.keep else None
        found = gathered(options.gather, options.settings, options.remark, before)
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        options.json.write_text(text) if options.json else print(text)
        return
    paths = tuple(path.resolve() for path in find_tasks(options.tasks))
    more = (options.out, options.device, options.settings)
    jobs = [Job(method, seed, paths, *more) for method in options.methods for seed in options.seeds]
    for job, record in run_jobs(jobs, options.workers):
        found = record.results or {}
        print(f"{job.method} {job.seed}: {100 * found['final_accuracy']:.1f} %", flush=True)


# Gather the results that the docs show.


def gathered(folder: Path, settings: Path, remark: str | None, before: dict[str, Any] | None) -> dict[str, Any]:
    """Return the results of all runs in a folder, with the results `before` that the runs do not contain."""
    comparison = collect([folder])
    first = comparison.groups[0].first
    if others := {r.settings.data_hash for r in comparison.records} - {first.settings.data_hash}:
        raise RunError(
            f"{folder} has runs on {len(others) + 1} different sets of tasks, expected one; gather each alone"
        )
    methods = {str(group.method["name"]): row(group) for group in comparison.groups}
    if before:
        if (data := before["provenance"]["data_hash"]) != first.circumstances.provenance["data_hash"]:
            raise RunError(f"what is kept was measured on other data, {data[:12]}; gather without --keep")
        rows = {name: together(before["methods"].get(name), row) for name, row in methods.items()}
        methods = dict(sorted((before["methods"] | rows).items()))
    changed = "" if settings == TUNED else f" --settings benchmarks/{settings.name}"
    made = {
        "command": f"python benchmarks/baselines.py TASKS --methods {' '.join(methods)}{changed} --out runs",
        "commit": ", ".join(sorted({commit for method in methods.values() for commit in method["commits"]})),
        "seed": ", ".join(sorted({str(run["seed"]) for method in methods.values() for run in method["runs"]})),
        "date": max(date for method in methods.values() for date in method["dates"]),
    }
    remark = remark or (before or {"provenance": {}})["provenance"].get("remark")
    origin = dict(first.circumstances.provenance) | made | ({"remark": remark} if remark else {})
    images = {
        task.name: task.train + task.val for task in sorted(first.settings.tasks, key=lambda task: task.name)
    }
    return {"tasks": list(images), "images": images, "methods": methods, "provenance": origin}


def row(group: Group) -> dict[str, Any]:
    """Return the results of one method over its seeds."""
    figures = {
        "after_learning": group.over_seeds(lambda record: after_learning(record.matrix("given"))),
        "task_given": group.figure("task_given_accuracy"),
        "final": group.figure("final_accuracy"),
        "forgetting": group.over_seeds(lambda record: forgetting(record.matrix("final"))),
        "first_task": group.over_seeds(first_task),
        "macs": group.figure("costs", "single"),
        "bytes_kept": group.over_seeds(lambda record: float(sum(one.module_bytes for one in record.learned))),
        "seconds": group.figure("wall_seconds", "teachers_seconds"),
    }
    return {name: as_json(value) for name, value in figures.items()} | {
        "told": group.has_task_label,
        "settings": group.method,
        "runs": [
            {"seed": r.settings.seed, "forgetting": forgetting(r.matrix("final")), "tasks": by_task(r)}
            for r in group.records
        ],
        "commits": sorted({record.circumstances.provenance["commit"] for record in group.records}),
        "dates": sorted({record.circumstances.provenance["date"] for record in group.records}),
    }


def together(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """Return a method's results over old and new seeds; the new ones alone if they include all old seeds."""
    if before is None:
        return now
    name, old, new = now["settings"]["name"], *({run["seed"] for run in row["runs"]} for row in (before, now))
    if old <= new:
        return now
    if old & new or before["settings"] != now["settings"]:
        raise RunError(
            f"the file has seeds {sorted(old)} of {name}, the runs have {sorted(new)}; with the same settings "
            "expected others, with other settings expected all of them"
        )
    figures = {
        name: asdict(pooled(Interval(**before[name]), Interval(**value))) if before[name] else None
        for name, value in now.items()
        if isinstance(value, dict) and "half_width" in value
    }
    lists = {name: sorted({*before[name], *now[name]}) for name in ("commits", "dates")}
    return now | figures | lists | {"runs": [*before["runs"], *now["runs"]]}


def first_task(record: Record) -> float:
    """Return the accuracy on the first task at the end of the stream."""
    return record.steps[-1].tasks[0].final


def by_task(record: Record) -> dict[str, dict[str, float]]:
    """Return each task's accuracy just after it was learned and at the end, in the order of learning."""
    learned, final = record.matrix("given").diagonal(), record.matrix("final")[-1]
    return {
        name: {"after_learning": round(float(then), 6), "final": round(float(now), 6)}
        for name, then, now in zip(record.settings.names, learned, final, strict=True)
    }


def as_json(value: Interval | None) -> dict[str, Any] | None:
    """Return an interval as a JSON-compatible dict."""
    return None if value is None else asdict(value)


if __name__ == "__main__":
    main()
