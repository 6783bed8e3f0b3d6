"""Nodes for the mesh benchmarks: homes with really learned modules, processes, and a separate network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skillmesh.backbone.backbone import Backbone
from skillmesh.common.choices import WarmStart
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.data.demo import LEARNED, write_demo_tasks
from skillmesh.data.folder import open_task
from skillmesh.mesh.calling import NotRunningError, call
from skillmesh.mesh.process import ONE_THREAD, NodeProcess
from skillmesh.mesh.repair import repair
from skillmesh.store.home import create_home

COUNTER = "/sys/class/net/lo/statistics/tx_bytes"
LIMIT = 300.0
"""Seconds to wait for nodes."""

IMAGES = {"train": 6, "val": 3, "test": 1}
"""Per class: a module's size depends on its classes, not on its images."""


def taught_homes(work: Path, count: int, tasks: int = 2) -> list[Path]:
    """Return homes of `count` agents with different tasks, `tasks` each; `work` keeps them for the next run."""
    backbone: Backbone | None = None
    homes = []
    for index in range(count):
        home = work / f"taught-{tasks}" / f"agent{index:03d}"
        homes.append(home)
        if (home / "done").exists():
            continue
        shutil.rmtree(home, ignore_errors=True)
        create_home(home, name=f"agent{index:03d}")
        agent = Core(home, cache_folder=work / "cache")
        backbone = agent._backbone = backbone or agent.backbone
        for number in range(index * tasks, (index + 1) * tasks):
            kind = LEARNED[number % len(LEARNED)]
            drawn = work / "tasks" / str(number)
            write_demo_tasks(drawn, names=[kind], seed=number, **IMAGES)
            agent.learn(open_task(drawn / kind, name=f"{kind} {number}"), warm_start=WarmStart("never"))
        (home / "done").touch()
    return homes


def fresh_copies(homes: list[Path], into: Path, **settings: object) -> list[Path]:
    """Copy the homes with new ledgers, which know no other agent."""
    shutil.rmtree(into, ignore_errors=True)
    copies = []
    for home in homes:
        copy = into / home.name
        shutil.copytree(home, copy)
        for left in copy.glob("ledger.sqlite*"):
            left.unlink()
        repair(Core(copy))
        MeshSettings.of({"trust": "open", **settings}).save(copy)
        copies.append(copy)
    return copies


class Namespace:
    """A separate network with loopback only, or the machine's own if a new one is not allowed."""

    def __init__(self) -> None:
        self.name: str | None = f"skm-{os.getpid()}-bench"  # tests remove namespaces whose process has ended
        try:
            subprocess.run(["ip", "netns", "add", self.name], check=True, capture_output=True)
            subprocess.run(["ip", "-n", self.name, "link", "set", "lo", "up"], check=True)
        except (OSError, subprocess.CalledProcessError):
            self.name = None

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name] if self.name else []

    def bytes_sent(self) -> int:
        done = subprocess.run([*self.prefix, "cat", COUNTER], capture_output=True, check=True)
        return int(done.stdout)

    def remove(self) -> None:
        if self.name:
            subprocess.run(["ip", "netns", "del", self.name], check=False)


@contextmanager
def namespace() -> Iterator[Namespace]:
    created = Namespace()
    try:
        yield created
    finally:
        created.remove()


def start(home: Path, net: Namespace) -> NodeProcess:
    node = NodeProcess(home)
    node.start(variables=ONE_THREAD, under=net.prefix)
    return node


def environment() -> dict[str, str]:
    return os.environ | ONE_THREAD


def runs(home: Path) -> bool:
    try:
        call(home, "status")
    except NotRunningError:
        return False
    return True


def status(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = call(home, "status")
    return found


def until(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT
    while not what():
        if time.monotonic() > deadline:
            sys.exit("the nodes did not finish within five minutes; see serve.log in their homes")
        time.sleep(0.05)
