"""The demo: agents as separate processes learn tasks of their own and share them over the real mesh.

`plan` says who learns what, `drawing` makes the tasks, `member` and `crew` run the processes, `screen` shows them,
`story` is what happens, `quiz` asks all agents about everything, and `report` says what came of it.
"""

from __future__ import annotations

from pathlib import Path

from skillmesh.cli.demo.plan import DemoPlan


def run(out: Path, device: str | None, as_json: bool, plan: DemoPlan | None = None) -> None:
    """Run the demo in `out`; a second run draws nothing again, but learns afresh."""
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
