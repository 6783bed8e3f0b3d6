"""Study of the number of images per class that maha's teachers send. (Section 4: 5.)

These images only show the scatter around the class means; the means come from all training images. skillmesh's
maha also uses the backbone's calibration, so each choice is measured without it too.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from skillmesh.numerics.process import begin
from skillmesh_challenge.paper import inputs
from skillmesh_challenge.studies.maha import covariance_macs, inverse_macs
from skillmesh_challenge.studies.study import Findings, StudySettings

if TYPE_CHECKING:
    from skillmesh.backbone.calibration import Prior
    from skillmesh.numerics.process import Advance
    from skillmesh_challenge.studies.tasks import StudyView

IMAGES = (1, 2, 5, 10, 20, 50)
DRAWS = 3
"""Number of repetitions of each measurement, because the images to send are drawn at random."""


def images_per_class(settings: StudySettings) -> Findings:
    from skillmesh_challenge.studies.tasks import counted, describe_tasks, views

    backbone, tasks = describe_tasks(settings)
    seen = views(tasks, backbone, "features")
    prior = backbone.calibration.prior("features", compact=False)
    pass_macs = backbone.network.forward_macs
    advance = begin(settings.progress, "images per class", DRAWS * len(IMAGES) * len(seen))
    rows = [_row(count, seen, prior, pass_macs, settings.seed, advance) for count in IMAGES]
    notes = [
        f"{counted(tasks)}, {len(prior.centre):,} features; averages over tasks and over {DRAWS} draws of the "
        "images. A class with fewer training images sends all of them.",
        "skillmesh gives the calibration's covariance the weight of 20 images and replaces a tenth of the "
        'covariance by its diagonal (shrinkage). "Without calibration" keeps only the shrinkage. Some shrinkage '
        "is needed: with fewer images than features the covariance is singular.",
        "skillmesh sends descriptors, with 2 bytes per number. Images are counted as in the paper, 299 × 299 × 3 "
        "bytes each. A student that receives images passes each through its backbone; the last column is that "
        "cost.",
    ]
    return Findings("maha's images per class", rows, notes)


def _row(
    count: int, seen: list[StudyView], prior: Prior, pass_macs: int, seed: int, advance: Advance | None
) -> dict[str, Any]:
    from skillmesh.anchors import AnchorSettings
    from skillmesh_challenge.studies.recognition import fit_anchors, percent, recognise

    recognised, without = [], []
    for draw in range(DRAWS):
        chosen = AnchorSettings(images_per_class=count, seed=seed + draw)
        fitted = fit_anchors(seen, "maha", chosen, advance)
        recognised.append(percent(recognise(seen, fitted.anchors, "maha", prior)["test"]))
        bare = recognise(seen, fitted.anchors, "maha", _without_scatter(prior))
        without.append(percent(bare["test"]))
    sent = sum(int(anchor.tensors()["maha.count"].sum()) for anchor in fitted.anchors)
    return {
        "images per class": count,
        "images in total": sent,
        "task found, %": round(fmean(recognised), 3),
        "lowest and highest draw, %": f"{min(recognised):.1f}–{max(recognised):.1f}",
        "task found without calibration, %": round(fmean(without), 3),
        "KB per task": round(fitted.kilobytes_per_task, 3),
        "KB per task if sent as images": sent * inputs.IMAGE_BYTES / 1000 / len(seen),
        "covariance, MACs": covariance_macs(sent, len(prior.centre)),
        "inverse, MACs": inverse_macs(len(prior.centre)),
        "forward passes over the images, MACs": float(pass_macs) * sent,
    }


def _without_scatter(prior: Prior) -> Prior:
    """Return the calibration without its within-class scatter."""
    within = prior.within
    return replace(prior, within=replace(within, diagonal=0 * within.diagonal, factor=0 * within.factor))
