"""Drawing the demo's tasks: all cores at once, since nothing else can begin before."""

from __future__ import annotations

import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from skillmesh.cli import show
from skillmesh.cli.demo.plan import DemoPlan
from skillmesh.data.demo import write_demo_tasks
from skillmesh.numerics.threads import cores


def draw_tasks(folder: Path, plan: DemoPlan) -> dict[str, Path]:
    """Draw what is not there yet; return the task folders by name, in the plan's order."""
    names = (*plan.learned, *plan.hidden)
    # Spawned, not forked: the progress bar has a thread.
    pool = ProcessPoolExecutor(cores(), get_context("spawn"), initializer=_leave_interrupts_to_the_parent)
    with show.progress_bar() as bar:
        bar.start("drawing tasks", len(names))
        try:
            drawn = {pool.submit(write_demo_tasks, folder, names=[name], **plan.images): name for name in names}
            for future in as_completed(drawn):
                future.result()
                bar.advance(1)
        finally:
            pool.shutdown(cancel_futures=True)
    return {name: folder / name for name in names}


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
