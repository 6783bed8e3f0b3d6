"""Agents with really learned modules, for the benchmarks of the mesh: each draws its own tasks and learns them."""

from __future__ import annotations

import shutil
from pathlib import Path

from skillmesh.agent import Agent, create_home
from skillmesh.backbone.backbone import Backbone
from skillmesh.data.demo import LEARNED, write_demo_tasks
from skillmesh.data.folder import open_task
from skillmesh.mesh.settings import MeshSettings

IMAGES = {"train": 6, "val": 3, "test": 1}
"""Per class: a module's size depends on its classes, not on its images."""


def taught_homes(work: Path, count: int, tasks: int = 2) -> list[Path]:
    """Homes of agents that have learned so many tasks each, all different; kept in `work` for the next time."""
    backbone: Backbone | None = None
    homes = []
    for index in range(count):
        home = work / f"taught-{tasks}" / f"agent{index:03d}"
        homes.append(home)
        if (home / "done").exists():
            continue
        shutil.rmtree(home, ignore_errors=True)
        create_home(home, name=f"agent{index:03d}")
        agent = Agent(home, cache_folder=work / "cache")
        backbone = agent._backbone = backbone or agent.backbone
        for number in range(index * tasks, (index + 1) * tasks):
            kind = LEARNED[number % len(LEARNED)]
            drawn = work / "tasks" / str(number)
            write_demo_tasks(drawn, names=[kind], seed=number, **IMAGES)
            agent.learn(open_task(drawn / kind, name=f"{kind} {number}"))
        (home / "done").touch()
    return homes


def fresh_copies(homes: list[Path], into: Path, **settings: object) -> list[Path]:
    """The same homes as if they had never met anybody."""
    shutil.rmtree(into, ignore_errors=True)
    copies = []
    for home in homes:
        copy = into / home.name
        shutil.copytree(home, copy)
        for left in copy.glob("ledger.sqlite*"):
            left.unlink()
        MeshSettings.of({"trust": "open", **settings}).save(copy)
        copies.append(copy)
    return copies
