"""From raw descriptors to the numbers that heads and anchors work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh.common.choices import Representation
from skillmesh.numerics.tensors import Floats

if TYPE_CHECKING:
    from skillmesh.backbone.calibration import Calibration

Raw = NDArray[np.float16]

CLIP = 6.0
"""Standardised values beyond are cut: one wild channel must not decide."""


def represent(
    raw: Raw, features: int, representation: Representation, calibration: Calibration, compact: bool = False
) -> Floats:
    """Make (n, dim) of (n, raw width).

    `features` are the pooled last layer as the paper uses it, `sqrt-features` their square roots (nearer to
    Gaussian), `descriptor` everything, square-rooted and standardised by the calibration; `compact` projects
    that onto the calibration's basis.
    """
    if representation == "features":
        return raw[:, :features].astype(np.float32)
    if representation == "sqrt-features":
        return root_features(raw[:, :features], features)
    standard = clip_standardised(root_features(raw, features), calibration.mean, calibration.std)
    return standard @ calibration.basis.T if compact else standard


def root_features(raw: Raw, features: int) -> Floats:
    """Square-root the pooled activations, which are skewed; the means and stds after them stay."""
    rooted = raw.astype(np.float32)
    np.sqrt(np.maximum(rooted[:, :features], 0), out=rooted[:, :features])
    return rooted


def clip_standardised(rooted: Floats, mean: Floats, std: Floats) -> Floats:
    """Standardise and clip; one copy is made, since of 20,000 images it has 230 MB."""
    standard: Floats = rooted - mean
    standard /= std
    return np.clip(standard, -CLIP, CLIP, out=standard)
