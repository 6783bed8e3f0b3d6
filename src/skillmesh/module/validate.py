"""Tensors against what the card demands, before any number of a stranger's is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from skillmesh.errors import NotFiniteError, TensorError
from skillmesh.numerics.tensors import DTYPES, Array, Spec, Tensors

MAX_LETTER = 4096
"""The largest size that a letter in a `Spec` may stand for."""

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(name: str, values: Array) -> str:
    """The safetensors name of an array's dtype, or a `TensorError` where a module may not hold it."""
    try:
        return _DTYPE_NAMES[values.dtype]
    except KeyError:
        found, expected = values.dtype, ", ".join(map(str, _DTYPE_NAMES))
        raise TensorError(f"tensor {name!r} is {found}, expected one of {expected}; convert it first") from None


def check_tensors(tensors: Tensors, specs: Mapping[str, Spec]) -> None:
    """Demand exactly the tensors of `specs`, each with its dtype, shape and bounds.

    >>> check_tensors({"a": np.zeros(3, np.int8)}, {"a": Spec("I8", ("k",))})
    """
    missing, unexpected = specs.keys() - tensors.keys(), tensors.keys() - specs.keys()
    if missing:
        raise TensorError(f"tensor {_names(missing)} is missing, expected {_names(specs)}; write the module again")
    if unexpected:
        raise TensorError(f"tensor {_names(unexpected)} is unexpected, expected only {_names(specs)}")
    letters: dict[str, int] = {}
    for name, spec in sorted(specs.items()):
        found = dtype_name(name, tensors[name])
        if found != spec.dtype:
            raise TensorError(f"tensor {name!r} is {found}, expected {spec.dtype}; write the module again")
        _check_shape(name, tensors[name].shape, spec, letters)
        _check_bounds(name, tensors[name], spec)


def check_finite(name: str, values: Array) -> None:
    """NaN and infinity poison every sum that they enter: refuse them."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = int(np.count_nonzero(~np.isfinite(values)))
        raise NotFiniteError(
            f"tensor {name!r} holds {bad} NaN or infinite numbers of {values.size}, expected finite ones; "
            "learn the task again"
        )


def _check_shape(name: str, shape: tuple[int, ...], spec: Spec, letters: dict[str, int]) -> None:
    bound = dict(letters)
    fits = len(shape) == len(spec.shape)
    for found, wanted in zip(shape, spec.shape, strict=False):
        if isinstance(wanted, str):
            fits &= 1 <= found <= MAX_LETTER and letters.setdefault(wanted, found) == found
        else:
            fits &= found == wanted
    if not fits:
        known = {size: bound.get(size, f"1–{MAX_LETTER}") for size in spec.shape if isinstance(size, str)}
        where = "".join(f", {letter} = {value}" for letter, value in known.items())
        raise TensorError(
            f"tensor {name!r} has shape {_shape(shape)}, expected {_shape(spec.shape)}{where}; "
            "write the module again"
        )


def _check_bounds(name: str, values: Array, spec: Spec) -> None:
    if (spec.low is None and spec.high is None) or not values.size:
        return
    check_finite(name, values)  # NaN would slip through any comparison
    low, high = float(values.min()), float(values.max())
    if spec.low is not None and low < spec.low:
        raise TensorError(f"tensor {name!r} holds {low:g}, expected at least {spec.low:g}; learn the task again")
    if spec.high is not None and high > spec.high:
        raise TensorError(f"tensor {name!r} holds {high:g}, expected at most {spec.high:g}; learn the task again")


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"


def _shape(sizes: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, sizes))})"
