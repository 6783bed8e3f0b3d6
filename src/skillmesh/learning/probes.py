"""Probes: a few validation descriptors that travel with a module.

A module must not depend on the bank in which it was made, so it cannot carry a threshold for "unknown" or a scale
for confidence. Probes let whoever holds it find both for the bank that it is in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skillmesh.tensors import Floats, Spec, Tensors, dequantise_rows, quantise_rows

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


def probe_weights(count: int) -> NDArray[np.float64]:
    """What part of its task's validation images each of `count` probes stands for."""
    return np.array(SHARES) if count == len(SHARES) else np.full(count, 1 / max(count, 1))


def probe_tensors(probes: Floats) -> Tensors:
    if not len(probes):
        return {}
    values, scale = quantise_rows(probes)
    return {"probe": values, "probe.scale": scale}


def probe_specs(validation_images: int, dim: int) -> dict[str, Spec]:
    """A module with validation images has probes; one without has none."""
    if not validation_images:
        return {}
    return {"probe": Spec("I8", ("p", dim)), "probe.scale": Spec("F32", ("p",), low=0, high=1e6)}


def read_probes(tensors: Tensors, dim: int) -> Floats:
    if "probe" not in tensors:
        return np.empty((0, dim), dtype=np.float32)
    return dequantise_rows(tensors["probe"], tensors["probe.scale"])
