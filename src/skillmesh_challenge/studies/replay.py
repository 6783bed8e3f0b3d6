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
        "Times are in times of learning one task of mean size. The closed form is N + gamma·N(N − 1)/2 with the "
        "mean share gamma of images that are kept; the paper's own figures have (N − 1)(N − 2)/2 and 0.04.",
        "By the list: every task is learned with its own images and those kept of all before it, in the list's "
        "order. Tasks of many classes come early and are rehearsed often.",
    ]
    return Findings("Rehearsing 102 tasks in one agent", [_row(kept) for kept in KEPT], notes)


def _row(kept: int | None) -> dict[str, Any]:
    buffer = sum(d.train if kept is None else min(d.train, kept * d.classes) for d in skill102())
    share = buffer / sum(d.train for d in skill102())
    listed = exact_time(kept)
    return {
        "kept of each class": "all" if kept is None else kept,
        "gamma": share,
        "images kept in the end": buffer,
        "GB kept (299 px)": buffer * inputs.IMAGE_BYTES / 1e9,
        "closed form": total_time(share),
        "by the list": listed,
        "× no rehearsing": listed / inputs.TASKS,
        "paper": PRINTED.get(kept, "–"),
    }
