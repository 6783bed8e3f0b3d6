"""Making a calibration from tasks on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from skillmesh.backbone.backbone import DescriptorCache
from skillmesh.backbone.calibration import Calibration, LabelledRaw, calibrate
from skillmesh.backbone.network import Network, describe
from skillmesh.data.folder import open_task
from skillmesh.numerics.process import Progress, begin


def calibrate_on(
    network: Network,
    paths: Sequence[Path],
    cache: DescriptorCache | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Return a calibration measured on the tasks' training images; validation and test images are never opened."""
    tasks = []
    for path in paths:
        folder = open_task(path, hold_out=("val", "test"), seed=seed, one_task=True)
        split = folder.splits["train"]
        described = describe(network, split.files, cache, begin(progress, folder.name, len(split)))
        tasks.append(LabelledRaw(described.raw, split.labels[described.readable]))
    images = sum(len(task.raw) for task in tasks)
    source = f"training images of {len(tasks)} tasks ({images:,} images)"
    return calibrate(network.fingerprint, network.features, tasks, source, seed)
