"""The demo: agents in separate processes each learn some tasks and share them over the real mesh.

`plan` sets which agent learns what, `member` runs the processes, `story` draws the tasks, runs all steps and asks
the agents, `screen` shows progress and results, and `guard` makes sure that no process is left behind.
"""

from __future__ import annotations

from pathlib import Path

from skillmesh.cli.demo.plan import DemoPlan


def run(out: Path, device: str | None, as_json: bool, plan: DemoPlan | None = None) -> None:
    """Run the demo in `out`; a second run reuses the drawn images but learns everything again."""
    from skillmesh.cli import show
    from skillmesh.cli.demo.guard import ended_by_signals, only_one
    from skillmesh.cli.demo.screen import as_dict, print_outcome
    from skillmesh.cli.demo.story import play

    with only_one(out), ended_by_signals():
        outcome = play(out, plan or DemoPlan(), device)
    if as_json:
        show.print_json(as_dict(outcome))
    else:
        print_outcome(outcome)
