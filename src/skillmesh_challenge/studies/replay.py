"""Study of replay (ER): the paper's closed form against the sizes and order of its own datasets (appendix D)."""

from __future__ import annotations

from typing import Any

from skillmesh_challenge.paper import inputs
from skillmesh_challenge.paper.datasets import skill102
from skillmesh_challenge.paper.replay import exact_time, total_time
from skillmesh_challenge.studies.study import Findings, StudySettings

KEPT: tuple[int | None, ...] = (0, 1, 5, 10, 20, 50, 100, 500, None)
"""Number of images kept of each class; None: all of them."""
PRINTED = {10: "304", None: "5152"}


def replay(settings: StudySettings) -> Findings:
    notes = [
        "Times are in units of learning one task of mean size. The closed form is N + gamma·N(N − 1)/2, where "
        "gamma is the mean share of images kept; the paper's own figures use (N − 1)(N − 2)/2 and 0.04.",
        "The time from the list uses the sizes and the order of the paper's datasets: each task is learned with "
        "its own images and those kept of all tasks before it. Tasks with many classes come early and are "
        "rehearsed often.",
    ]
    return Findings("Rehearsal of 102 tasks in one agent", [_row(kept) for kept in KEPT], notes)


def _row(kept: int | None) -> dict[str, Any]:
    buffer = sum(d.train if kept is None else min(d.train, kept * d.classes) for d in skill102())
    share = buffer / sum(d.train for d in skill102())
    listed = exact_time(kept)
    return {
        "images kept per class": "all" if kept is None else kept,
        "gamma": share,
        "images kept at the end": buffer,
        "GB kept (299 px)": buffer * inputs.IMAGE_BYTES / 1e9,
        "time, closed form": total_time(share),
        "time, from the list": listed,
        "time / time without rehearsal": listed / inputs.TASKS,
        "paper": PRINTED.get(kept, "–"),
    }
