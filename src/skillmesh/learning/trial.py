"""Do biases pay? They are trained, and kept where validation images say so beyond noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh.learning.adaptation import Biases
from skillmesh.learning.head import Fit, Head, Labels, fit_head, losses
from skillmesh.names import BiasMode
from skillmesh.progress import Advance
from skillmesh.tensors import Floats

if TYPE_CHECKING:
    from skillmesh.backbone.backbone import Backbone
    from skillmesh.config import AgentConfig
    from skillmesh.data.folder import ImageFile
    from skillmesh.learning.training import Examples

SURE = 1.645
"""Standard errors by which the mean loss must fall: one in twenty that gain nothing would be kept."""


@dataclass(frozen=True)
class Adapted:
    """A head over a biased network, and what the trial gave."""

    fit: Fit
    biases: Biases
    better: bool
    """Whether validation images say so, beyond noise."""
    words: str


def try_biases(
    backbone: Backbone,
    config: AgentConfig,
    files: tuple[list[ImageFile], list[ImageFile]],
    x: tuple[Floats, Floats],
    labels: tuple[Labels, Labels],
    plain: Fit,
    checkpoint: Path | None = None,
    training: Callable[[int], Advance | None] = lambda _: None,
) -> Adapted:
    """Train biases on the readable training and validation images, and compare with the plain head."""
    from skillmesh.learning.biases import OURS, train_biases
    from skillmesh.learning.training import Space

    network = backbone.network
    space = Space(backbone.calibration, config.representation, config.compact, network.device)
    parts = _decoded(files[0], labels[0], network.size), _decoded(files[1], labels[1], network.size)
    told = training(OURS.epochs * len(labels[0])) or (lambda _: None)
    trained = train_biases(network, space, parts, plain.before, checkpoint=checkpoint, progress=told)
    stored = Biases(trained.values).tensors()
    biases = Biases.read(stored, len(trained.values))  # as every student will read them
    seen = [backbone.biased(part, biases.added, config.representation, config.compact) for part in files]
    fit = fit_head(seen[0], labels[0], seen[1], labels[1], int(labels[0].max()) + 1)
    better = _better(plain, x[1], fit, seen[1], labels[1])
    words = (
        f"biases: {plain.accuracy or 0:.1%} → {fit.accuracy or 0:.1%} of {len(labels[1])} validation images, "
        f"{trained.costs.total / 1e9:,.0f} GMACs"
    )
    return Adapted(fit, biases, better, words)


def wanted(adapted: Adapted, mode: BiasMode) -> bool:
    return mode == "always" or adapted.better


def _decoded(files: list[ImageFile], labels: Labels, size: int) -> Examples:
    from skillmesh.learning.training import Examples

    return Examples(np.stack([file.pixels(file.content(), size) for file in files]), labels)


def _better(plain: Fit, x: Floats, adapted: Fit, seen: Floats, labels: Labels) -> bool:
    """Compare image by image, with the heads that have not been fitted to them."""
    before, after = (
        _judged(fit.before, fit.temperature, view, labels) for fit, view in ((plain, x), (adapted, seen))
    )
    gain = before - after
    if len(gain) < 2:
        return False
    error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    no_fewer_right = (adapted.accuracy or 0.0) >= (plain.accuracy or 0.0)
    return no_fewer_right and float(gain.mean()) > SURE * error


def _judged(head: Head, temperature: float, x: Floats, labels: Labels) -> NDArray[np.floating]:
    return losses(head.logits(x) / temperature, labels)
