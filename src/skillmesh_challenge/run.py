"""Make one run of the challenge, from folders of tasks to a complete record, or several over seeds and agents."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skillmesh.common.files import remove_abandoned
from skillmesh.data.folder import TaskImages
from skillmesh.errors import CalibrationError, SkillmeshError
from skillmesh.evaluation.evaluate import open_measured
from skillmesh.evaluation.provenance import provenance
from skillmesh.numerics.process import Progress
from skillmesh_challenge.entries import Circumstances, RunSettings, TaskFacts
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import Method, SkillMethod
from skillmesh_challenge.metrics import interval, results_of
from skillmesh_challenge.record import Record, refuse_file, write_json, write_settings, write_steps_table
from skillmesh_challenge.stage import WAYS, Stage, assign

if TYPE_CHECKING:
    from skillmesh.backbone.calibration import Calibration

PACKAGES = (
    "skillmesh",
    "torch",
    "timm",
    "numpy",
    "scipy",
    "scikit-learn",
    "pillow",
    "eclipse-zenoh",
    "distributed",
)
BEGUN = {"run.json", "log.txt", "times.json"}
"""Files of a run that has not learned anything yet."""


@dataclass(frozen=True)
class Plan:
    """Plan of a run. Fields after `bound` change no result."""

    paths: Sequence[Path]
    """Folders and zips of the tasks."""
    method: Method
    out: Path
    agents: int
    assign: str = "order"
    mesh: bool = False
    alpha: float = 1000.0
    seed: int = 0
    shuffle: bool = False
    """Whether to learn the tasks in a random order, set by the seed."""
    open: Callable[[int], Sequence[TaskImages]] | None = None
    """Function that opens the tasks with a seed; None: open the folders and zips at `paths`."""
    bound: bool = True
    """Whether to train one classifier on all data together."""
    workers: int | None = None
    threads: int | None = None
    cluster: str | None = None
    device: str | None = None
    cold: bool = False
    """Whether to start with an empty descriptor cache inside the run's folder."""
    reuse: tuple[Path, ...] = ()
    command: str = "skillmesh challenge run"
    progress: Progress | None = None
    tell: Callable[[str], None] = field(default=lambda _: None)


def run(plan: Plan) -> Record:
    """Make or resume the run and return its record; to a complete run, add only answers of older releases."""
    plan.method.refuse(plan)
    refuse_file(plan.out)
    folders = _in_order(plan)
    origin = provenance(plan.command, plan.paths, plan.seed)
    settings = _settings(plan, folders, origin["data_hash"])
    stage = _stage(plan, settings, folders)
    new = _begin(stage, _circumstances(stage, origin))
    before = stage.read()
    finished = before.complete and (before.answers is not None or not isinstance(plan.method, SkillMethod))
    if finished and (before.bounds is not None or not plan.bound):
        stage.log("this run is already complete; nothing to do")
        return before
    with _removed_if_empty(stage) if new else nullcontext(), stage.timed("total_seconds"):
        plan.method.play(stage)
        if plan.bound and stage.read().bounds is None:
            _keep_bound(plan.method, stage)
    record = stage.read()
    write_steps_table(stage.folder, record.steps)
    write_json(stage.folder / "results.json", results_of(record))
    stage.log("complete")
    return stage.read()


def _in_order(plan: Plan) -> list[TaskImages]:
    """Return all tasks, opened, in the order in which they are learned."""
    if plan.open is None:
        opened = [open_measured(path.resolve(), plan.seed) for path in plan.paths]
    else:
        opened = list(plan.open(plan.seed))
    if not plan.shuffle:
        return opened
    return [opened[i] for i in np.random.default_rng(plan.seed).permutation(len(opened))]


def _settings(plan: Plan, folders: list[TaskImages], data_hash: str) -> RunSettings:
    facts = tuple(
        TaskFacts(
            folder.name,
            str(getattr(getattr(folder.splits["test"].files[0], "source", None), "path", "")),
            folder.classes,
            *(len(folder.splits[split]) for split in ("train", "val", "test")),
        )
        for folder in folders
    )
    return RunSettings(
        method=plan.method.settings(),
        agents=plan.agents,
        assign=plan.assign if plan.assign in WAYS else Path(plan.assign).name,
        assignment=assign(
            [task.name for task in facts], plan.agents, plan.assign, [task.train + task.val for task in facts]
        ),
        sharing="mesh" if plan.mesh else "memory",
        alpha=plan.alpha,
        seed=plan.seed,
        tasks=facts,
        data_hash=data_hash,
        backbone=_fingerprint(plan.method),
    )


def _fingerprint(method: Method) -> str:
    """Return the fingerprint of a method's calibrated backbone; empty if it trains its own network."""
    settings = method.settings()
    if "calibration" not in settings:
        return ""
    from skillmesh.backbone.backbone import backbone_fingerprint

    return backbone_fingerprint(_calibration(settings))


def _calibration(settings: dict[str, Any]) -> Calibration:
    """Return the calibration of a method's backbone; raise `CalibrationError` if there is none."""
    from skillmesh.backbone.backbone import load_calibration

    given, weights = (Path(settings[name]) if settings.get(name) else None for name in ("calibration", "weights"))
    return load_calibration(settings["backbone"], given, weights)


def _stage(plan: Plan, settings: RunSettings, folders: Sequence[TaskImages]) -> Stage:
    from skillmesh.backbone.backbone import default_folder
    from skillmesh.numerics.process import cores
    from skillmesh_challenge.agents import usual_workers

    alone = not isinstance(plan.method, SkillMethod)  # other methods learn in this process
    workers = 1 if alone else plan.workers or usual_workers(settings.assignment)
    return Stage(
        folder=plan.out,
        settings=settings,
        tasks=folders,
        cache_folder=(plan.out / "cache" if plan.cold else default_folder()).resolve(),
        workers=workers,
        threads=plan.threads or max(1, cores() // workers),
        cluster=plan.cluster,
        device=plan.device,
        reuse=plan.reuse,
        progress=plan.progress,
        tell=plan.tell,
    )


def _circumstances(stage: Stage, origin: dict[str, Any]) -> Circumstances:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    where = "this process" if stage.workers == 1 else "processes of this machine"
    return Circumstances("Dask" if stage.cluster else where, stage.workers, stage.threads, versions, origin)


def _begin(stage: Stage, circumstances: Circumstances) -> bool:
    """Start a record, or resume one of the same settings (RunError for others); return whether it is new."""
    for folder in (stage.folder, *stage.folder.glob("*/")):
        remove_abandoned(folder)
    if (stage.folder / "run.json").exists():
        _refuse_other_settings(stage.read().settings, stage)
        stage.log("resuming this run")
        return False
    if stage.folder.exists() and any(stage.folder.iterdir()):
        if sweep := sorted(path.name for word in ("seed-*", "agents-*") for path in stage.folder.glob(word)):
            raise RunError(
                f"{stage.folder} holds runs of several seeds or agents ({', '.join(sweep)}); give --seeds and "
                "--agents as before, or name another folder with --out"
            )
        raise RunError(f"{stage.folder} is not empty and holds no run; name another folder with --out")
    stage.folder.mkdir(parents=True, exist_ok=True)
    write_settings(stage.folder, stage.settings, circumstances)
    stage.log(f"{len(stage.tasks)} task(s), {stage.settings.agents} agent(s), {stage.settings.method['name']}")
    return True


@contextmanager
def _removed_if_empty(stage: Stage) -> Iterator[None]:
    """Remove the folder of a new run that fails before it learned anything: a corrected command can use it."""
    try:
        yield
    except SkillmeshError:
        if {path.name for path in stage.folder.iterdir()} <= BEGUN:
            shutil.rmtree(stage.folder)
        raise


def _refuse_other_settings(theirs: RunSettings, stage: Stage) -> None:
    before, asked = _comparable(theirs), _comparable(stage.settings)
    different = [name for name in asked if before.get(name) != asked[name]]
    if set(theirs.names) == set(stage.settings.names) and theirs.names != stage.settings.names:
        raise RunError(
            f"{stage.folder} holds a run of these tasks in another order: it was {', '.join(theirs.names)}; give "
            "--shuffle, --seeds and the tasks as before, or name another folder with --out"
        )
    if different:
        name = different[0]
        raise RunError(
            f"{stage.folder} holds a run of other settings: {name} was {_short(before.get(name))}, now it is "
            f"{_short(asked[name])}; name another folder with --out, or remove this one to start again"
        )


def _comparable(settings: RunSettings) -> dict[str, Any]:
    """Return settings by name, with the method's; the tasks' paths do not count, only their content."""
    tasks = tuple(replace(task, path="") for task in settings.tasks)
    flat = asdict(replace(settings, tasks=tasks))
    return {f"method.{name}": value for name, value in flat.pop("method").items()} | flat


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _keep_bound(method: Method, stage: Stage) -> None:
    """Train the joint classifier on the method's representation (or on the descriptor) and record its results."""
    from skillmesh_challenge.steps import joint_bound

    skill = method if isinstance(method, SkillMethod) else _beside(method.settings())
    if skill is None:
        stage.log("no classifier on all data together: this method has no calibrated backbone")
        return
    with stage.timed("bound_seconds"):
        bounds = joint_bound(skill, stage)
    stage.keep_bounds(bounds)
    stage.log(f"one classifier on all data together, in {bounds.seconds:.1f} s: {bounds.how}")


def _beside(settings: dict[str, Any]) -> SkillMethod | None:
    """Return our method with the same backbone; None if that starts at random or has no calibration."""
    given = {name: settings[name] for name in ("backbone", "weights", "calibration") if settings.get(name)}
    if settings.get("start") == "random":
        return None
    skill = SkillMethod("bound", representation=settings.get("representation", "descriptor"), **given)
    try:
        _calibration(skill.settings())
    except CalibrationError:
        return None
    return skill


# Several runs: over seeds, for confidence intervals, and over numbers of agents, for speedup against N.

FIGURES = ("task_given_accuracy", "task_found_accuracy", "final_accuracy", "strict_accuracy", "known_unanswered")


def folders_of(out: Path, agents: Sequence[int], seeds: Sequence[int]) -> dict[Path, int]:
    """Return the folder of every run of a sweep, with its seed."""
    return {out / _name(agents, count, seeds, seed): seed for seed in seeds for count in agents}


def sweep(plan: Plan, agents: Sequence[int], seeds: Sequence[int]) -> list[Record]:
    """Run every number of agents with every seed; a single combination runs in the folder itself.

    Tasks learned with one number of agents are reused with the next: what is learned does not depend on it.
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
    """Return, per number of agents, the accuracy over seeds with its interval, and the speedup."""
    counts = sorted({record.settings.agents for record in records})
    rows = []
    for count in counts:
        results_of_seeds = [r.results for r in records if r.settings.agents == count and r.results is not None]
        row: dict[str, Any] = {"agents": count, "half_of_agents": count / 2}
        for figure in FIGURES:
            values = [results[figure] for results in results_of_seeds if results[figure] is not None]
            row[figure] = asdict(interval(values)) if values else None
        for figure in ("speedup", "efficiency", "busiest_speedup"):
            row[figure] = asdict(interval([results["costs"][figure] for results in results_of_seeds]))
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
    return all(len(distinct) == 1 for distinct in by_seed.values())
