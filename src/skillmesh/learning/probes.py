"""Probes: a few validation descriptors that travel with a module.

A module must not depend on the bank in which it was made, so it cannot carry a threshold for "unknown" or a scale
for confidence. Probes let whoever holds it find both for the bank that it is in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skillmesh.numerics.tensors import Floats, Spec, Tensors, dequantise_rows, quantise_rows

SHARES = (0.5, 0.3, 0.12, 0.08)
"""What part of the validation images each probe stands for, from the most usual to the oddest.

Four images at random would say little about the oddest twentieth, where "unknown" begins. These are the middle
images of four layers, so all validation images have a say; the shares undo the choice when statistics are made.
"""


def choose_probes(x: Floats, novelty: Floats) -> Floats:
    """Pick from validation descriptors by their novelty to the task's own anchor alone, which no bank changes."""
    order = np.argsort(novelty, kind="stable")
    if len(order) <= len(SHARES):
        return x[order]
    middles = np.cumsum(SHARES) - np.array(SHARES) / 2
    return x[order[(middles * len(order)).astype(np.int64)]]


def probe_weights(validation_images: int) -> NDArray[np.float64]:
    """What part of so many validation images each of their probes stands for."""
    if validation_images > len(SHARES):
        return np.array(SHARES)
    return np.full(validation_images, 1 / max(validation_images, 1))


def probe_tensors(probes: Floats) -> Tensors:
    if not len(probes):
        return {}
    values, scale = quantise_rows(probes)
    return {"probe": values, "probe.scale": scale}


def probe_specs(validation_images: int, dim: int) -> dict[str, Spec]:
    """A module with validation images has probes; one without has none."""
    count = min(validation_images, len(SHARES))
    if not count:
        return {}
    return {"probe": Spec("I8", (count, dim)), "probe.scale": Spec("F32", (count,), low=0, high=10)}


def read_probes(tensors: Tensors, dim: int) -> Floats:
    if "probe" not in tensors:
        return np.empty((0, dim), dtype=np.float32)
    return dequantise_rows(tensors["probe"], tensors["probe.scale"])
