"""Several runs: over seeds, for confidence intervals, and over numbers of agents, for speedup against N."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from skillmesh_challenge.metrics import interval
from skillmesh_challenge.record import Record
from skillmesh_challenge.run import Plan, run
from skillmesh_challenge.writing import write_json

FIGURES = ("task_given_accuracy", "task_found_accuracy", "final_accuracy", "strict_accuracy", "known_unknown")


def folders_of(out: Path, agents: Sequence[int], seeds: Sequence[int]) -> dict[Path, int]:
    """The folder of every run of a sweep, and its seed."""
    return {out / _name(agents, count, seeds, seed): seed for seed in seeds for count in agents}


def sweep(plan: Plan, agents: Sequence[int], seeds: Sequence[int]) -> list[Record]:
    """Run every number of agents with every seed; one of each is a plain run in the folder itself.

    Tasks that one number of agents has learned are taken over by the next: what is learned does not depend on it.
    """
    if len(agents) == 1 and len(seeds) == 1:
        return [run(replace(plan, agents=agents[0], seed=seeds[0]))]
    records: list[Record] = []
    for seed in seeds:
        earlier: tuple[Path, ...] = plan.reuse
        for count in agents:
            folder = plan.out / _name(agents, count, seeds, seed)
            records.append(run(replace(plan, agents=count, seed=seed, out=folder, reuse=earlier)))
            earlier = (folder, *earlier)
    write_json(plan.out / "summary.json", summary_of(records))
    return records


def _name(agents: Sequence[int], count: int, seeds: Sequence[int], seed: int) -> str:
    parts = [f"agents-{count:03d}"] * (len(agents) > 1) + [f"seed-{seed}"] * (len(seeds) > 1)
    return "/".join(parts)


def summary_of(records: Sequence[Record]) -> dict[str, Any]:
    """Per number of agents: accuracy over seeds with its interval, cost and speedup."""
    counts = sorted({record.settings.agents for record in records})
    rows = []
    for count in counts:
        some = [r.results for r in records if r.settings.agents == count and r.results is not None]
        row: dict[str, Any] = {"agents": count, "half_of_agents": count / 2}
        for figure in FIGURES:
            values = [results[figure] for results in some if results[figure] is not None]
            row[figure] = asdict(interval(values)) if values else None
        for figure in ("speedup", "efficiency", "busiest_speedup"):
            row[figure] = asdict(interval([results["costs"][figure] for results in some]))
        rows.append(row)
    return {
        "method": records[0].settings.method["name"],
        "tasks": len(records[0].settings.tasks),
        "seeds": sorted({record.settings.seed for record in records}),
        "accuracy_independent_of_agents": _independent(records),
        "sweep": rows,
        "provenance": records[0].circumstances.provenance,
    }


def _independent(records: Sequence[Record]) -> bool:
    """Whether, seed by seed, all numbers of agents have the same accuracies to the last digit."""
    by_seed: dict[int, set[tuple[Any, ...]]] = {}
    for record in records:
        figures = tuple((record.results or {}).get(figure) for figure in FIGURES)
        by_seed.setdefault(record.settings.seed, set()).add(figures)
    return all(len(found) == 1 for found in by_seed.values())
