"""Share over a real mesh: one `skillmesh serve` process for every agent, on this machine.

At first each node has only its own tasks. The nodes discover each other, fetch, check and vet all modules, and are
stopped when every node has every module. The bytes sent are those that the nodes counted themselves.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.mesh.process import ONE_THREAD, NodeProcess, free_port, stop_all
from skillmesh.mesh.shelf import Shelf
from skillmesh.numerics.process import begin
from skillmesh_challenge.entries import Sharing
from skillmesh_challenge.errors import RunError

if TYPE_CHECKING:
    from skillmesh_challenge.stage import Stage

CHECK_SECONDS = 0.5
"""Seconds between checks of the banks."""
PATIENCE = 300.0
"""Seconds without any new module in any node after which the run fails."""
RECEIVED = ("bank", "quarantine", "partial")
"""Folders of a home that hold received modules."""


class Served(NodeProcess):
    """The node process of one agent, with access to its bank."""

    def __init__(self, home: Path, port: int) -> None:
        super().__init__(home)
        MeshSettings.of({"discovery_port": port, "sync_seconds": 2.0, "trust": "open"}).save(home)
        self.start(variables=ONE_THREAD)

    def counts(self) -> tuple[int, ...]:
        """Return the number of modules in its bank and in its quarantine."""
        self.check()
        return tuple(len(list((self.home / name).glob("*.skill"))) for name in ("bank", "quarantine"))

    def release(self) -> list[str]:
        """Release all modules in quarantine and return their tasks: the challenge's agents are honest."""
        agent = Core(self.home)
        shelf = Shelf(self.home, agent.ledger)
        tasks = [shelf.release(held, agent).card.task for held in shelf.held()]
        agent.ledger.close()
        return tasks


def remove_received(homes: Iterable[Path]) -> None:
    """Remove everything that agents received: what a killed run had fetched would not be counted again."""
    for home in homes:
        for name in RECEIVED:
            shutil.rmtree(home / name, ignore_errors=True)
        for file in home.glob("ledger.sqlite*"):
            file.unlink()


def share_over_mesh(stage: Stage, homes: dict[str, Path], modules: int) -> Sharing:
    """Run the nodes until every node has every module; return what was sent."""
    with _nodes(homes) as nodes:
        held = _wait_for_all_modules(stage, nodes, modules)
        statuses = {node.name: node.status() for node in nodes}
    return Sharing(
        how="mesh",
        received={name: status["bytes_fetched"] for name, status in statuses.items()},
        answers={},
        asked=0,
        seconds=0.0,
        sent={name: status["bytes_sent"] for name, status in statuses.items()},
        trial_macs={name: status["macs"] for name, status in statuses.items()},
        held=held,
    )


@contextlib.contextmanager
def _nodes(homes: dict[str, Path]) -> Iterator[list[Served]]:
    """Start a process for every agent; stop all of them at the end, also after an error."""
    port = free_port()
    nodes: list[Served] = []
    try:
        for home in homes.values():
            nodes.append(Served(home, port))  # noqa: PERF401  (if one fails, those already started must be stopped)
        yield nodes
    finally:
        stop_all(nodes)


def _wait_for_all_modules(stage: Stage, nodes: list[Served], modules: int) -> tuple[str, ...]:
    """Wait until every node has every module; return the tasks that were in quarantine and were released."""
    advance = begin(stage.progress, "sharing over the mesh (modules)", len(nodes) * modules)
    held: set[str] = set()
    changed, before = time.monotonic(), tuple[int, ...]((0, 0))
    while True:
        counts = [node.counts() for node in nodes]
        if all(bank == modules for bank, _ in counts):
            return tuple(sorted(held))
        for node, (bank, in_quarantine) in zip(nodes, counts, strict=True):
            if in_quarantine and bank + in_quarantine == modules:
                held |= set(node.release())
        totals = tuple(map(sum, zip(*counts, strict=True)))
        if advance is not None:
            advance(totals[0] - before[0])
        if totals != before:
            changed, before = time.monotonic(), totals
        if time.monotonic() - changed > PATIENCE:
            logs = "\n".join(f"{node.name}: {node.last_words()}" for node in nodes[:5])
            raise RunError(f"the nodes received no module for {PATIENCE:.0f} s; their logs end with:\n{logs}")
        time.sleep(CHECK_SECONDS)
