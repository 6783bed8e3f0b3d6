"""Sharing over a real mesh: one `skillmesh serve` process for every agent, on this machine.

The nodes know nothing but their own tasks at first. They find each other, fetch, check and try everything, and are
stopped when all hold all. What they sent is what they themselves have counted.
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

LOOK = 0.5
"""Seconds between looks at the banks."""
PATIENCE = 300.0
"""Seconds without any module arriving anywhere after which something must be wrong."""
RECEIVED = ("bank", "quarantine", "partial")
"""Folders of a home in which modules arrive."""


class Served(NodeProcess):
    """One agent's process, and its bank."""

    def __init__(self, home: Path, port: int) -> None:
        super().__init__(home)
        MeshSettings.of({"discovery_port": port, "sync_seconds": 2.0, "trust": "open"}).save(home)
        self.start(variables=ONE_THREAD)

    def counts(self) -> tuple[int, ...]:
        """Modules in its bank, and in its quarantine."""
        self.check()
        return tuple(len(list((self.home / name).glob("*.skill"))) for name in ("bank", "quarantine"))

    def release(self) -> list[str]:
        """Let everything out of quarantine, and say what: the challenge's agents are known to be honest."""
        agent = Core(self.home)
        shelf = Shelf(self.home, agent.ledger)
        tasks = [shelf.release(held, agent).card.task for held in shelf.held()]
        agent.ledger.close()
        return tasks


def leave_nothing_received(homes: Iterable[Path]) -> None:
    """Bring agents back to before they met: what a killed sitting had fetched would not be counted."""
    for home in homes:
        for name in RECEIVED:
            shutil.rmtree(home / name, ignore_errors=True)
        for file in home.glob("ledger.sqlite*"):
            file.unlink()


def share_over_mesh(stage: Stage, homes: dict[str, Path], modules: int) -> Sharing:
    """Run the nodes until all hold all; returns what was sent."""
    with _nodes(homes) as nodes:
        held = _until_all_hold_all(stage, nodes, modules)
        stands = {node.name: node.status() for node in nodes}
    return Sharing(
        how="mesh",
        received={name: stand["bytes_fetched"] for name, stand in stands.items()},
        answers={},
        asked=0,
        seconds=0.0,
        sent={name: stand["bytes_sent"] for name, stand in stands.items()},
        trial_macs={name: stand["macs"] for name, stand in stands.items()},
        held=held,
    )


@contextlib.contextmanager
def _nodes(homes: dict[str, Path]) -> Iterator[list[Served]]:
    """Start a process for every agent; when it is over, whichever way, none is left."""
    port = free_port()
    nodes: list[Served] = []
    try:
        for home in homes.values():
            nodes.append(Served(home, port))  # noqa: PERF401  (those that were started must be known if one fails)
        yield nodes
    finally:
        stop_all(nodes)


def _until_all_hold_all(stage: Stage, nodes: list[Served], modules: int) -> tuple[str, ...]:
    """Wait; what stays in quarantine when all has arrived is named and let out."""
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
        stand = tuple(map(sum, zip(*counts, strict=True)))
        if advance is not None:
            advance(stand[0] - before[0])
        if stand != before:
            changed, before = time.monotonic(), stand
        if time.monotonic() - changed > PATIENCE:
            words = "\n".join(f"{node.name}: {node.last_words()}" for node in nodes[:5])
            raise RunError(f"the nodes have stood still for {PATIENCE:.0f} s; their logs end so:\n{words}")
        time.sleep(LOOK)
