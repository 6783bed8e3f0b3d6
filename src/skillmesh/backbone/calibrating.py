"""Making a calibration from tasks on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from skillmesh.backbone.backbone import DescriptorCache
from skillmesh.backbone.calibration import (
    VIEWED_PER_TASK,
    Calibration,
    LabelledRaw,
    Views,
    calibrate,
    refuse_too_few,
)
from skillmesh.backbone.network import Network, describe
from skillmesh.data.folder import open_task
from skillmesh.data.views import HURRIED, MEASURED, ViewedImage
from skillmesh.numerics.process import Progress, begin


def calibrate_on(
    network: Network,
    paths: Sequence[Path],
    cache: DescriptorCache | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Return a calibration measured on the tasks' training images; validation and test images are never opened.

    Of some of these images, all `MEASURED` views are described too.
    """
    refuse_too_few(len(paths))  # before any image is described
    tasks = []
    for index, path in enumerate(paths):
        folder = open_task(path, hold_out=("val", "test"), seed=seed, one_task=True)
        split = folder.splits["train"]
        described = describe(network, split.files, cache, begin(progress, folder.name, len(split)))
        rows = np.sort(np.random.default_rng(seed + index).permutation(len(described.raw))[:VIEWED_PER_TASK])
        images = [split.files[described.readable[row]] for row in rows]
        shown = [ViewedImage(image, (view,), seed) for view in MEASURED for image in images]
        viewed = describe(network, shown, cache, begin(progress, f"{folder.name} (views)", len(shown)))
        of, weights = np.tile(rows, len(MEASURED)), np.repeat(list(MEASURED.values()), len(rows))
        hurried, kept = np.repeat([view == HURRIED for view in MEASURED], len(rows)), viewed.readable
        views = Views(viewed.raw, of[kept], weights[kept], hurried[kept])
        tasks.append(LabelledRaw(described.raw, split.labels[described.readable], views))
    total = sum(len(task.raw) for task in tasks)
    source = f"training images of {len(tasks)} tasks ({total:,} images)"
    return calibrate(network.fingerprint, network.features, tasks, source, seed)
