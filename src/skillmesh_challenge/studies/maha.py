"""Study of the MACs of maha's covariance against the number of images (appendix C), with omitted costs."""

from __future__ import annotations

from typing import Any

from skillmesh_challenge.paper import inputs
from skillmesh_challenge.paper.replay import tasks_until
from skillmesh_challenge.studies.study import Findings, StudySettings

IMAGES = (500, 1000, 2000, 4000, 8000, 16000, inputs.CLASSES * inputs.IMAGES_PER_CLASS)


def covariance_macs(images: int, dim: int) -> float:
    """Return the MACs of XᵀX, where X has a row per image."""
    return float(images) * dim**2


def inverse_macs(dim: int) -> float:
    """Return the MACs of inverting a positive definite matrix: Cholesky, then two triangular solves per column."""
    root = (dim**3 - dim) / 6
    solves = 2 * dim * (dim * (dim + 1) / 2)
    return root + solves


def maha_macs(settings: StudySettings) -> Findings:
    dim = inputs.FEATURES
    notes = [
        "The paper says that the slope is higher up to 4,000 images, and about 250,000 MACs per image beyond. The "
        f"products of XᵀX alone are {dim**2:,} per image, or {dim * (dim + 1) // 2:,} if only one half of the "
        "symmetric matrix is computed. We found no calculation that gives 250,000.",
        "A student that receives images has to pass them through its backbone. This costs "
        f"{inputs.XCEPTION_PASS / dim**2:,.0f} times the covariance, and none of the paper's figures includes it. "
        "skillmesh sends descriptors instead.",
        "The inverse is computed once for each change of the bank, whatever the number of images.",
    ]
    return Findings("Cost of maha for a student, with 2048 features", [_row(count) for count in IMAGES], notes)


def _row(images: int) -> dict[str, Any]:
    return {
        "images": images,
        "reached after task": tasks_until(images),
        "covariance, MACs": covariance_macs(images, inputs.FEATURES),
        "inverse, MACs": inverse_macs(inputs.FEATURES),
        "both, MACs per image": covariance_macs(1, inputs.FEATURES) + inverse_macs(inputs.FEATURES) / images,
        "paper: 250,000 MACs per image": inputs.MAHA_MACS_PER_IMAGE * images,
        "forward passes over the images, MACs": float(inputs.XCEPTION_PASS) * images,
    }
