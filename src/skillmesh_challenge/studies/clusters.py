"""Study of gmmc's number of Gaussians per task. (Appendix B: 25, from a figure on a small subset of tasks.)

More clusters fit the training images better, but test images only up to a point, and every agent receives all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skillmesh.numerics.process import begin
from skillmesh_challenge.studies.study import Findings, StudySettings

if TYPE_CHECKING:
    from skillmesh.backbone.calibration import Prior
    from skillmesh.common.choices import Representation
    from skillmesh_challenge.studies.tasks import StudyView

CLUSTERS = (1, 2, 5, 10, 25, 50, 100)
PAPERS = 25
WAYS: dict[str, tuple[Representation, float]] = {
    "plain features, as in the paper": ("features", 1e-6),
    "square-rooted features, variance floor 0.01": ("sqrt-features", 1e-2),
}


def gmmc_clusters(settings: StudySettings) -> Findings:
    from skillmesh_challenge.studies.tasks import counted, describe_tasks, views

    backbone, tasks = describe_tasks(settings)
    rows = []
    for way, (representation, floor) in WAYS.items():
        seen = views(tasks, backbone, representation)
        prior = backbone.calibration.prior(representation, compact=False)
        rows += [_row(way, count, floor, seen, prior, settings) for count in CLUSTERS]
    notes = [
        f"{counted(tasks)}; averages over tasks. A task with fewer training images than k has "
        "one cluster per image.",
        *(_best(way, [row for row in rows if row["input of gmmc"] == way]) for way in WAYS),
    ]
    return Findings("gmmc's number of clusters per task", rows, notes)


def _row(
    way: str, count: int, floor: float, seen: list[StudyView], prior: Prior, settings: StudySettings
) -> dict[str, Any]:
    from skillmesh.anchors import AnchorSettings
    from skillmesh_challenge.studies.recognition import fit_anchors, percent, recognise

    chosen = AnchorSettings(clusters=count, variance_floor=floor, seed=settings.seed)
    advance = begin(settings.progress, f"{count} clusters, {way.partition(',')[0]}", len(seen))
    fitted = fit_anchors(seen, "gmmc", chosen, advance)
    recognised = recognise(seen, fitted.anchors, "gmmc", prior, ("test", "train"))
    return {
        "input of gmmc": way,
        "k": count,
        "task found, %": percent(recognised["test"]),
        "task found on training images, %": percent(recognised["train"]),
        "worst task, %": percent([min(recognised["test"])]),
        "KB per task": round(fitted.kilobytes_per_task, 3),
        "EM, MACs per task": fitted.macs / len(seen),
    }


def _best(way: str, rows: list[dict[str, Any]]) -> str:
    best = max(rows, key=lambda row: row["task found, %"])
    papers = next(row for row in rows if row["k"] == PAPERS)
    if best is papers:
        return f"With {way}: the paper's k = {PAPERS} recognises tasks best."
    ahead = best["task found, %"] - papers["task found, %"]
    return (
        f"With {way}: k = {best['k']} recognises tasks best, {ahead:.1f} points more than the paper's {PAPERS} "
        f"with {best['KB per task'] / papers['KB per task']:.2g} × its bytes."
    )
