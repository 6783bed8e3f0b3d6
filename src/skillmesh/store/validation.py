"""An agent's own validation images, as descriptors: kept at home beside its bank, never shared.

They are what the agent knows for certain. Modules that arrive are tried on them before they may answer
(`vetting/quarantine.py`): 200 images of a task fill half a megabyte, and no image has to be looked at again.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skillmesh.common import files
from skillmesh.common.files import PRIVATE, make_folder, write_whole
from skillmesh.learning.probes import read_probes
from skillmesh.module import Module
from skillmesh.numerics.tensors import Floats, Tensors, dequantise_rows, quantise_rows

log = logging.getLogger(__name__)

Labels = NDArray[np.int64]

FOLDER = "validation"
"""Its name in an agent's home."""
MAX_IMAGES = 200
"""So many images of a task are kept, or all."""


@dataclass(frozen=True)
class OwnValidation:
    """What an agent kept of one of its own tasks."""

    module: Module
    x: Floats
    labels: Labels | None
    """Indices into the card's classes; `None` where only the module's probes are left, which have none."""


def save(folder: Path, module_id: str, x: Floats, labels: Labels) -> None:
    """Keep a task's validation descriptors. Where that fails the task is learned all the same: probes stand in."""
    from safetensors.numpy import save as serialise

    rows = _evenly(len(x))
    values, scale = quantise_rows(x[rows])
    tensors: Tensors = {"x": values, "x.scale": scale, "label": labels[rows].astype(np.int32)}
    try:
        make_folder(folder)
        write_whole(_path(folder, module_id), serialise(tensors), mode=PRIVATE)
    except OSError as error:
        log.warning("validation descriptors are not kept in %s: %s", folder, error)


def load(folder: Path, modules: Iterable[Module]) -> list[OwnValidation]:
    """Return what was kept of these modules; of one whose file is missing or damaged, its probes."""
    return [_read(folder, module) for module in modules]


def remove(folder: Path, module_id: str) -> None:
    """Keep nothing of a task that is forgotten."""
    files.remove(_path(folder, module_id))


def remove_others(folder: Path, held: Container[str]) -> None:
    """Remove what belongs to no module held: a kill may have come before a module got into the bank."""
    for path in list(folder.glob("*.safetensors")):
        if path.stem not in held:
            files.remove(path)


def _path(folder: Path, module_id: str) -> Path:
    return folder / f"{module_id}.safetensors"


def _evenly(count: int) -> NDArray[np.int64]:
    """Choose at most `MAX_IMAGES` of so many rows: they come class by class, so every class keeps its share."""
    kept = min(count, MAX_IMAGES)
    return np.arange(kept) * count // max(kept, 1)


def _read(folder: Path, module: Module) -> OwnValidation:
    from safetensors import SafetensorError
    from safetensors.numpy import load as deserialise

    try:
        tensors = deserialise(_path(folder, module.id).read_bytes())
        x, labels = dequantise_rows(tensors["x"], tensors["x.scale"]), tensors["label"].astype(np.int64)
        _check(x, labels, module)
        return OwnValidation(module, x, labels)
    except (OSError, SafetensorError, KeyError, ValueError, IndexError) as error:
        log.info("the probes of %r stand in for its validation images: %s", module.card.task, error)
        return OwnValidation(module, read_probes(module.tensors, module.card.dim), None)


def _check(x: Floats, labels: Labels, module: Module) -> None:
    classes = len(module.card.classes)
    if labels.ndim != 1:
        raise ValueError(f"found labels of shape {labels.shape}, expected one for each image")
    if x.shape != (len(labels), module.card.dim) or not np.isfinite(x).all():
        raise ValueError(f"found rows of shape {x.shape}, expected ({len(labels)}, {module.card.dim}), finite")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"found labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
