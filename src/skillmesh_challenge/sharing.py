"""Agents share: every module goes to every agent, handed over in memory or really sent over the mesh.

Then all agents hold the same; that they also answer the same is checked, each with a mapper of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skillmesh.backbone.backbone import Backbone
from skillmesh.common.progress import begin
from skillmesh.core import Core
from skillmesh.errors import RunError
from skillmesh.module import Module, read_file
from skillmesh_challenge.entries import Sharing
from skillmesh_challenge.nodes import leave_nothing_received, share_over_mesh

if TYPE_CHECKING:
    from skillmesh.evaluation.shown import Shown
    from skillmesh_challenge.stage import Stage

SAMPLE = 5
"""Test images of each task that every agent is asked about."""


def share(
    stage: Stage,
    homes: dict[str, Path],
    backbone: Backbone,
    modules: Sequence[Module],
    shown: Sequence[Shown],
) -> None:
    """Bring all modules to all agents, and compare what they say."""
    with stage.timed("sharing_seconds") as timer:
        if stage.settings.sharing == "mesh":
            leave_nothing_received(homes.values())
        for name, home in homes.items():
            own = [p for p, module in enumerate(modules) if module.card.teacher == name]
            _take(Core(home), stage, modules, own)
        if stage.settings.sharing == "mesh":
            sharing = share_over_mesh(stage, homes, len(modules))
        else:
            sharing = _hand_over(stage, homes, modules)
        seconds = timer.seconds
    with stage.timed("comparing_answers_seconds"):
        answers, asked = _answers(stage, homes, backbone, modules, shown)
    sharing = Sharing(**{**vars(sharing), "answers": answers, "asked": asked, "seconds": round(seconds, 3)})
    stage.keep_sharing(sharing)
    told = "all agents answer alike" if sharing.same_answers else "agents answer DIFFERENTLY"
    stage.log(f"shared by {sharing.how} in {seconds:.1f} s; {told}, asked about {asked} images each")


def _take(agent: Core, stage: Stage, modules: Sequence[Module], positions: Sequence[int]) -> None:
    held = {module.id for module in agent.bank}
    for position in positions:
        if modules[position].id not in held:
            agent.take(read_file(stage.module_file(position)))


def _hand_over(stage: Stage, homes: dict[str, Path], modules: Sequence[Module]) -> Sharing:
    received = {}
    advance = begin(stage.progress, "sharing (agents)", len(homes))
    for name, home in homes.items():
        _take(Core(home), stage, modules, range(len(modules)))
        received[name] = sum(module.size for module in modules if module.card.teacher != name)
        if advance is not None:
            advance(1)
    return Sharing("memory", received, {}, 0, 0.0)


def _answers(
    stage: Stage, homes: dict[str, Path], backbone: Backbone, modules: Sequence[Module], shown: Sequence[Shown]
) -> tuple[dict[str, str], int]:
    """Ask every agent about the same images, one after the other, each with a mapper that it built itself."""
    x = np.concatenate([task.x[:SAMPLE] for task in shown])
    images = [image for task in shown for image in task.images[:SAMPLE]]
    expected = sorted(module.id for module in modules)
    found = {}
    advance = begin(stage.progress, "comparing answers (agents)", len(homes))
    for name, home in homes.items():
        agent = Core(home, cache_folder=stage.cache_folder, backbone=backbone)
        if sorted(module.id for module in agent.bank) != expected:
            raise RunError(
                f"{name} holds {len(agent.bank)} modules after sharing, expected the {len(expected)} that were "
                f"learned; remove {stage.folder / 'agents'} and run again"
            )
        said = [answer.shared() for answer in agent.answer_described(x, images)]
        found[name] = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        if advance is not None:
            advance(1)
    return found, len(images)
