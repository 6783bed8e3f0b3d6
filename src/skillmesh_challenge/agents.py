"""A run of agents that share modules: they learn in parallel, share everything, and are tested task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skillmesh.backbone.backbone import Backbone
from skillmesh.common.config import FILE as CONFIG_FILE
from skillmesh.core import Core
from skillmesh.evaluation.shown import Shown, show
from skillmesh.module import Module
from skillmesh.numerics.threads import cores
from skillmesh.store.home import create_home
from skillmesh.store.parts import specs_for
from skillmesh_challenge.executors import BackboneRef, worker_backbone
from skillmesh_challenge.learning import learn_missing
from skillmesh_challenge.methods import SkillMethod
from skillmesh_challenge.sharing import share
from skillmesh_challenge.stage import Stage
from skillmesh_challenge.steps import measure_steps

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings import Frozen


def play(method: SkillMethod, stage: Stage) -> None:
    """Do what is not done yet: learn, share, test."""
    homes = _homes(method, stage)
    learn_missing(method, stage, homes)
    shown: list[Shown] | None = None
    record = stage.read()
    untested = len(record.steps) < len(stage.tasks) or record.confusions is None or record.answers is None
    if record.sharing is None or untested:
        backbone = worker_backbone(backbone_ref(method, stage))
        modules = _modules(stage)
        tester = _tester(stage, homes, backbone)
        with stage.timed("describing_tests_seconds"):
            shown = [show(tester, folder, progress=stage.progress) for folder in stage.tasks]
        if record.sharing is None:
            share(stage, homes, backbone, modules, shown)
        measure_steps(stage, tester, modules, shown)


def backbone_ref(method: SkillMethod | Frozen, stage: Stage) -> BackboneRef:
    return BackboneRef(
        method.backbone,
        None if method.weights is None else Path(method.weights).resolve(),
        None if method.calibration is None else Path(method.calibration).resolve(),
        stage.device,
        stage.cache_folder,
    )


def _homes(method: SkillMethod, stage: Stage) -> dict[str, Path]:
    """A home with a key of its own for every agent."""
    homes = {name: stage.folder / "agents" / name for name in stage.settings.assignment}
    for name, home in homes.items():
        if not (home / CONFIG_FILE).exists():
            config = method.config(name, stage.settings.seed)
            calibration = None if method.calibration is None else Path(method.calibration)
            create_home(home, **(config.model_dump() | {"calibration": calibration}))
    return homes


def _modules(stage: Stage) -> list[Module]:
    """What was learned, in the order of the tasks, as anyone reads it."""
    return [Module.load(stage.module_file(position), specs_for) for position in range(len(stage.tasks))]


def _tester(stage: Stage, homes: dict[str, Path], backbone: Backbone) -> Core:
    """Any agent will do: with the same modules all answer the same."""
    return Core(next(iter(homes.values())), cache_folder=stage.cache_folder, backbone=backbone)


def usual_workers(assignment: Mapping[str, Sequence[str]]) -> int:
    """As many processes as there are cores, but no more than agents with something to learn."""
    return max(1, min(cores(), sum(bool(tasks) for tasks in assignment.values())))
