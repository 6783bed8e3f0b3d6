"""Probes: a few validation descriptors that travel with a module.

A module must not depend on the bank in which it was made, so it cannot carry a threshold for "unknown" or a scale
for confidence. Probes let whoever holds it find both for the bank that it is in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skillmesh.tensors import Floats, Spec, Tensors, dequantise_rows, quantise_rows

PROBES = 4


def choose_probes(x: Floats, labels: NDArray[np.int64], seed: int = 0) -> Floats:
    """Pick a few validation descriptors, of different classes as far as there are."""
    order = np.random.default_rng(seed).permutation(len(x))
    seen: dict[int, int] = {}
    turn = []
    for row in order:
        label = int(labels[row])
        turn.append(seen.get(label, 0))
        seen[label] = turn[-1] + 1
    return x[order[np.argsort(turn, kind="stable")[:PROBES]]]


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
