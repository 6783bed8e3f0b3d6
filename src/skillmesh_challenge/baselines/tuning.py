"""Tuning: every method gets the same budget, and test images are never used.

A method's `grid` lists the settings to try, equally many for all methods. Each is an ordinary run of the challenge
on the first few tasks, trained on their training images alone and tested on their validation images. The setting
with the best average over all tasks at the end of the stream wins; of equals, the first. The chosen setting is
written as a file for `skillmesh challenge run --method`, and all results beside it. The same command resumes a
killed sweep: complete runs are only read. If a grid has changed, only new settings are tried, and removed ones are
left out. This module does not import torch before a run begins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skillmesh.evaluation.provenance import provenance
from skillmesh.numerics.process import Progress
from skillmesh_challenge.baselines.settings import Baseline
from skillmesh_challenge.baselines.trials import Ground, Trial, Tried, run_jobs
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import Method
from skillmesh_challenge.record import refuse_file, write_bytes, write_json

BUDGET = 6
"""Number of settings tried for every method."""
CRITERION = "average accuracy of all tasks at the end of the stream, on validation images"


@dataclass(frozen=True)
class Tuned:
    """The results of all settings of a method."""

    method: Baseline
    tried: tuple[Tried, ...]

    @property
    def chosen(self) -> int:
        """Number of the best setting; of equals, the first."""
        return max(range(len(self.tried)), key=lambda number: self.tried[number].final_accuracy)

    @property
    def best(self) -> Baseline:
        return replace(self.method, **self.tried[self.chosen].changes)


def tune(
    methods: Sequence[Method],
    ground: Ground,
    out: Path,
    *,
    seed: int = 0,
    device: str | None = None,
    workers: int = 1,
    command: str = "skillmesh challenge tune",
    tell: Callable[[Trial, Tried], None] = lambda trial, tried: None,
    progress: Progress | None = None,
) -> list[Tuned]:
    """Try every setting of every method; write each method's best and, to `tuning.json`, all results.

    Parameters
    ----------
    workers
        Number of parallel processes, each with whole runs. They share the cores: on a CPU, the number of threads
        may change the last digit of a sum; nothing else depends on it.
    tell
        Called with every trial and its result when its run is complete.
    progress
        Reports every task of a run; only with one worker, because more workers are separate processes.
    """
    chosen = [_tunable(method) for method in methods]
    _refuse_duplicates([method.name for method in chosen])
    refuse_file(out)
    origin = provenance(command, ground.paths(), seed)
    facts = {"tasks": [task.name for task in ground(seed)], "seed": seed, "data_hash": origin["data_hash"]}
    earlier = _earlier(out, facts)
    known = {method: _tried_before(method, earlier.get(method.name), out) for method in chosen}
    origins = {method: [earlier[method.name]["provenance"]] if known[method] else [] for method in chosen}
    trials = [
        Trial(method, number, changes, ground, out, seed, device, command, progress)
        for method in chosen
        for number, changes in enumerate(method.settings_to_try())
        if number not in known[method]
    ]
    for method in {trial.method: None for trial in trials}:
        origins[method].append(origin)
    for trial, tried in run_jobs(trials, workers):
        known[trial.method][trial.number] = tried
        tell(trial, tried)
    tuned = [Tuned(method, tuple(known[method][number] for number in range(BUDGET))) for method in chosen]
    for result in tuned:
        _write_method(out / f"{result.method.name}.toml", result, facts["tasks"])
    entries = earlier | {result.method.name: _entry(result, origins[result.method]) for result in tuned}
    write_json(out / "tuning.json", facts | {"criterion": CRITERION, "methods": entries, "provenance": origin})
    return tuned


# Checks.


def _tunable(method: Method) -> Baseline:
    if not isinstance(method, Baseline) or not method.settings_to_try():
        raise RunError(f"the method {method.name!r} has no grid of settings to try; name a baseline that has one")
    if (count := len({replace(method, **changes) for changes in method.settings_to_try()})) != BUDGET:
        raise RunError(
            f"the method {method.name!r} has {count} different settings to try, expected {BUDGET}: all methods "
            "get the same budget; change its grid"
        )
    method.require_torch()
    return method


def _refuse_duplicates(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RunError(f"several methods are named {', '.join(twice)}; name each method once, or rename one")


def _earlier(out: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the methods tuned earlier in this folder; raise a RunError if that was on other data."""
    path = out / "tuning.json"
    if not path.exists():
        return {}
    with _refused(path):
        before = json.loads(path.read_text())
        methods: dict[str, Any] = dict(before["methods"])
    for name, value in facts.items():
        if before.get(name) != value:
            raise RunError(
                f"{out} holds tuning results with {name} = {before.get(name)}, expected {value}; name "
                "another folder with --out, or remove this one to start over"
            )
    return methods


def _tried_before(method: Baseline, entry: dict[str, Any] | None, out: Path) -> dict[int, Tried]:
    """Return earlier results by the number of the setting; none if another setting of the method has changed."""
    if entry is None:
        return {}
    with _refused(out / "tuning.json"):
        tried = [Tried(**one) for one in entry["tried"]]
        if not all(isinstance(one.final_accuracy, float) for one in tried):
            raise ValueError("a setting has no accuracy")
        _commits(entry["provenance"])  # checked before any trial runs
        if replace(method, **tried[entry["chosen"]].changes).settings() != entry["settings"]:
            return {}
        by_settings = {replace(method, **one.changes): one for one in tried}
    numbered = enumerate(method.settings_to_try())
    return {
        number: replace(by_settings[whole], changes=changes)
        for number, changes in numbered
        if (whole := replace(method, **changes)) in by_settings
    }


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{path} cannot be read as tuning results ({error}); remove it: complete trials beside it are not "
            "run again"
        ) from error


# Output files.


def _entry(tuned: Tuned, origins: Sequence[dict[str, Any]]) -> dict[str, Any]:
    commits = sorted({commit for origin in origins for commit in _commits(origin)})
    return {
        "chosen": tuned.chosen,
        "settings": tuned.best.settings(),
        "tried": [vars(tried) for tried in tuned.tried],
        "provenance": origins[-1] | {"commit": ", ".join(commits) or None},
    }


def _commits(origin: dict[str, Any]) -> list[str]:
    """Return the commits of the source; none if it was not a checkout."""
    return origin["commit"].split(", ") if origin["commit"] else []


def _write_method(path: Path, tuned: Tuned, tasks: Sequence[str]) -> None:
    """Write a file for `--method`. The path of a weights file is relative to this file's folder."""
    settings = {name: value for name, value in tuned.best.settings().items() if value is not None}
    if "weights" in settings:
        settings["weights"] = os.path.relpath(settings["weights"], path.parent)
    about = (
        f"# The best of {BUDGET} settings on validation images of {', '.join(tasks)}; tuning.json has them all.\n"
    )
    lines = "".join(f"{name} = {_toml(value)}\n" for name, value in settings.items())
    write_bytes(path, (about + lines).encode())


def _toml(value: Any) -> str:
    """Return the value as TOML; strings, booleans, lists and numbers look the same in JSON."""
    return json.dumps(value, ensure_ascii=False)
