"""Arrays as modules store them: what shape a tensor must have, and how floats become int8 and back.

Parts of a module (head, anchors) say with `Spec` which tensors they store; the reader of `.skill` files checks
a file against these before any number is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]
Tensors = dict[str, Array]

DTYPES = {"I8": np.dtype("<i1"), "U8": np.dtype("<u1"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
"""The safetensors dtypes that a module may use. Little-endian, as safetensors stores them."""


@dataclass(frozen=True)
class Spec:
    """What a stored tensor must look like.

    A size may be a number, or a letter that stands for the same number wherever it occurs in one module (the
    `k` clusters of a mixture, say). `low` and `high` bound the values.
    """

    dtype: str
    shape: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None


def quantise_rows(values: Array) -> tuple[NDArray[np.int8], Floats]:
    """Store each row as int8 with one scale: the largest magnitude becomes ±127.

    >>> q, scale = quantise_rows(np.array([[0.5, -1.0], [0.0, 0.0]]))
    >>> q.tolist(), scale.tolist()[1]
    ([[64, -127], [0, 0]], 0.0)
    """
    values = np.asarray(values, dtype=np.float64)
    scale = (np.abs(values).max(axis=1, initial=0.0) / 127).astype(np.float32)
    safe = np.where(scale > 0, scale, 1).astype(np.float64)
    # The float32 scale may be a hair under the exact one: clip, so that 127.0000001 does not wrap.
    quantised = np.clip(np.rint(values / safe[:, None]), -127, 127).astype(np.int8)
    return quantised, scale


def dequantise_rows(quantised: NDArray[np.int8], scale: Floats) -> Floats:
    """Undo `quantise_rows`, up to half a step."""
    return quantised.astype(np.float32) * scale[:, None]


LOG_LOW, LOG_HIGH = 1e-6, 1e3
"""Variances of standardised numbers lie between; one step of 254 is 8.5 %."""


def quantise_log(values: Array) -> NDArray[np.uint8]:
    """Store variances as uint8 on a logarithmic scale; zero stays zero.

    >>> quantise_log(np.array([0.0, 1e-4, 1.0, 1e2, 1e9])).tolist()
    [0, 57, 170, 227, 255]
    """
    codes = np.minimum(np.rint(log_steps(np.maximum(values, LOG_LOW))), 255)
    return np.where(np.asarray(values) > 0, codes, 0).astype(np.uint8)


def log_steps(values: Array) -> NDArray[np.float64]:
    """Where positive values stand on that scale, before rounding."""
    return np.asarray(1 + 254 * np.log(values / LOG_LOW) / np.log(LOG_HIGH / LOG_LOW))


def dequantise_log(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Undo `quantise_log`, up to half a step."""
    values = LOG_LOW * np.exp((codes.astype(np.float64) - 1) / 254 * np.log(LOG_HIGH / LOG_LOW))
    return np.where(codes > 0, values, 0.0)
