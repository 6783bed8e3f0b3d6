"""The calibration: statistics of a backbone's generic descriptors, measured once, shipped, part of its identity.

It makes modules comparable between agents that never saw each other's data. It holds, from training images only:

- mean and std of every raw dimension, to standardise descriptors;
- a prior per representation: the scatter of images around their class's mean, and the scatter of class means;
- a basis for compact modules, the principal directions of generic descriptors;
- a small sample of background descriptors, on which received modules can be tried.

`skillmesh calibrate` makes one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skillmesh.common.choices import Representation
from skillmesh.common.files import write_whole
from skillmesh.errors import CalibrationError
from skillmesh.numerics.arrays import Floats, LowRank, Tensors, dequantise_rows, principal, quantise_rows

Raw = NDArray[np.float16]

CLIP = 6.0
"""Limit (±) to which standardised values are clipped, so that one extreme channel cannot dominate."""


def represent(
    raw: Raw, features: int, representation: Representation, calibration: Calibration, compact: bool = False
) -> Floats:
    """Return raw descriptors (n, raw width) in a representation (n, dim).

    `features` is the pooled last layer as in the paper, `sqrt-features` its square roots (closer to Gaussian),
    `descriptor` the whole raw descriptor, its features square-rooted, standardised by the calibration; `compact`
    projects that onto the calibration's basis.
    """
    if representation == "features":
        return raw[:, :features].astype(np.float32)
    if representation == "sqrt-features":
        return root_features(raw[:, :features], features)
    standard = clip_standardised(root_features(raw, features), calibration.mean, calibration.std)
    return standard @ calibration.basis.T if compact else standard


def root_features(raw: Raw, features: int) -> Floats:
    """Return square roots of the pooled activations, which are skewed; means and stds after them are unchanged."""
    rooted = raw.astype(np.float32)
    np.sqrt(np.maximum(rooted[:, :features], 0), out=rooted[:, :features])
    return rooted


def clip_standardised(rooted: Floats, mean: Floats, std: Floats) -> Floats:
    """Return standardised and clipped values; only one copy is made, since 20,000 images take 230 MB."""
    standard: Floats = rooted - mean
    standard /= std
    return np.clip(standard, -CLIP, CLIP, out=standard)


PRIOR_RANK = 64
COMPACT_DIM = 1024
BACKGROUND_IMAGES = 64
IMAGES_PER_TASK = 200
"""Maximum number of images used per task, so that every task has the same weight, whatever its size."""
MAX_NUMBER = 1e9
"""Largest allowed number, far beyond those of descriptors; products of such numbers still fit in a float32."""
SPACES = ("features", "sqrt-features", "descriptor", "compact")


@dataclass(frozen=True)
class Prior:
    """Statistics of a representation before any task is known, used where a bank has little evidence itself."""

    within: LowRank
    """Covariance of images around the mean of their class."""
    between: LowRank
    """Covariance of class means around `centre`."""
    centre: NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Statistics of generic descriptors for one network.

    Tensors are kept as stored and unpacked on use: a node that only transfers modules needs none of the 25 MB.
    """

    network: str
    """Fingerprint of the network that the statistics belong to."""
    source: str
    """Description of the images that they were measured on."""
    tensors: Tensors
    """All statistics as stored."""
    fingerprint: str

    @property
    def mean(self) -> Floats:
        return self.tensors["mean"]

    @property
    def std(self) -> Floats:
        return self.tensors["std"]

    @cached_property
    def basis(self) -> Floats:
        return dequantise_rows(self.tensors["basis"], self.tensors["basis.scale"])

    @cached_property
    def background(self) -> Floats:
        return dequantise_rows(self.tensors["background"], self.tensors["background.scale"])

    @cached_property
    def priors(self) -> Mapping[str, Prior]:
        """Priors by representation, and one for `compact`."""
        return _Priors(self.tensors)

    @property
    def features(self) -> int:
        """Number of features, the first part of a raw descriptor."""
        return len(self.tensors["features.centre"])

    def prior(self, representation: Representation, compact: bool) -> Prior:
        return self.priors["compact" if compact else representation]

    def save(self, path: Path) -> None:
        """Write a safetensors file; `load` returns a calibration with the same fingerprint."""
        from safetensors.numpy import save

        metadata = {"network": self.network, "source": self.source}
        write_whole(path, save(self.tensors, metadata=metadata))

    @classmethod
    def load(cls, path: Path) -> Calibration:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            _check_shapes(tensors)
            _check_values(tensors)
            return cls._of(tensors, metadata["network"], metadata["source"])
        # NumPy has no type for some of safetensors' dtypes, and then raises a TypeError or an AttributeError.
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise CalibrationError(
                f"{path} cannot be read as a calibration ({type(error).__name__}: {error}); "
                "make one with `skillmesh calibrate`"
            ) from error

    @classmethod
    def _of(cls, tensors: Tensors, network: str, source: str) -> Calibration:
        return cls(network, source, tensors, _fingerprint(tensors, network))


class _Priors(Mapping[str, Prior]):
    """The priors of all spaces, each unpacked on first access: an agent uses only one."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._unpacked: dict[str, Prior] = {}

    def __getitem__(self, space: str) -> Prior:
        if space not in self._unpacked:
            self._unpacked[space] = _read_prior(self._tensors, space)
        return self._unpacked[space]

    def __iter__(self) -> Iterator[str]:
        return iter(SPACES)

    def __len__(self) -> int:
        return len(SPACES)


@dataclass(frozen=True)
class LabelledRaw:
    """Raw descriptors and labels of a task's training images."""

    raw: Raw
    labels: NDArray[np.int64]


def calibrate(
    network: str, features: int, tasks: Sequence[LabelledRaw], source: str, seed: int = 0
) -> Calibration:
    """Measure a calibration from the training images of several tasks.

    Parameters
    ----------
    network
        Fingerprint of the network that described the images.
    features
        Number of features, the first part of a raw descriptor.
    """
    if len(tasks) < 2:
        raise CalibrationError(f"a calibration needs two tasks or more, found {len(tasks)}; name more folders")
    tasks = [_thinned(task, seed + i) for i, task in enumerate(tasks)]
    rooted = [root_features(task.raw, features) for task in tasks]
    mean = np.mean([x.mean(axis=0, dtype=np.float64) for x in rooted], axis=0)
    std = np.sqrt(np.mean([np.square(x - mean).mean(axis=0) for x in rooted], axis=0)) + 1e-6
    standard = [clip_standardised(x, mean.astype(np.float32), std.astype(np.float32)) for x in rooted]
    stored_basis = _quantised("basis", _principal_basis(standard))
    basis = dequantise_rows(stored_basis["basis"], stored_basis["basis.scale"])
    spaces = {
        "features": [task.raw[:, :features].astype(np.float32) for task in tasks],
        "sqrt-features": [x[:, :features] for x in rooted],
        "descriptor": standard,
        "compact": [x @ basis.T for x in standard],
    }
    rng = np.random.default_rng(seed)
    background = np.concatenate(standard)
    background = background[np.sort(rng.permutation(len(background))[:BACKGROUND_IMAGES])]
    tensors: Tensors = {"mean": mean.astype(np.float32), "std": std.astype(np.float32)}
    tensors |= stored_basis | _quantised("background", background)
    for space, described in spaces.items():
        prior = _measured_prior(described, [task.labels for task in tasks])
        tensors |= _written(f"{space}.within", prior.within) | _written(f"{space}.between", prior.between)
        tensors[f"{space}.centre"] = prior.centre.astype(np.float32)
    return Calibration._of(tensors, network, source)


def _thinned(task: LabelledRaw, seed: int) -> LabelledRaw:
    rows = np.sort(np.random.default_rng(seed).permutation(len(task.raw))[:IMAGES_PER_TASK])
    return LabelledRaw(task.raw[rows], task.labels[rows])


def _principal_basis(standard: list[Floats]) -> Floats:
    """Return orthonormal rows, the directions in which generic descriptors differ most."""
    rows = np.concatenate([x / np.float32(np.sqrt(len(x))) for x in standard])
    covariance = (rows.T @ rows).astype(np.float64)
    directions = np.linalg.eigh(covariance)[1][:, ::-1][:, :COMPACT_DIM]
    return np.ascontiguousarray(directions.T, dtype=np.float32)


def _measured_prior(described: list[Floats], labels: list[NDArray[np.int64]]) -> Prior:
    """Return the average within-class and between-class scatter; every task has the same weight."""
    residuals, means, weights = [], [], []
    for x, y in zip(described, labels, strict=True):
        classes, index = np.unique(y, return_inverse=True)
        centres = np.stack([x[y == c].mean(axis=0, dtype=np.float64) for c in classes])
        freedom = max(len(x) - len(classes), 1)
        residuals.append((x - centres[index]) / np.sqrt(freedom * len(described)))
        means.append(centres)
        weights.append(np.full(len(classes), 1 / (len(classes) * len(described))))
    stacked, weight = np.concatenate(means), np.concatenate(weights)
    centre = weight @ stacked
    between = (stacked - centre) * np.sqrt(weight)[:, None]
    return Prior(_summarised(np.concatenate(residuals)), _summarised(between), centre)


def _summarised(rows: NDArray[np.floating]) -> LowRank:
    factor = principal(rows, PRIOR_RANK)
    left_over = np.square(rows).sum(axis=0, dtype=np.float64) - np.square(factor).sum(axis=0)
    # Dimensions without any variation must not get infinite weight.
    return LowRank(np.maximum(left_over, 1e-3 * max(float(np.mean(left_over)), 1e-9)), factor)


def _quantised(name: str, rows: NDArray[np.floating]) -> Tensors:
    values, scale = quantise_rows(rows)
    return {name: values, f"{name}.scale": scale}


def _written(name: str, matrix: LowRank) -> Tensors:
    return {f"{name}.diagonal": matrix.diagonal.astype(np.float32)} | _quantised(f"{name}.factor", matrix.factor)


def _read_prior(tensors: Tensors, space: str) -> Prior:
    within, between = (_read_lowrank(tensors, f"{space}.{part}") for part in ("within", "between"))
    return Prior(within, between, tensors[f"{space}.centre"].astype(np.float64))


def _read_lowrank(tensors: Tensors, name: str) -> LowRank:
    factor = dequantise_rows(tensors[f"{name}.factor"], tensors[f"{name}.factor.scale"])
    return LowRank(tensors[f"{name}.diagonal"].astype(np.float64), factor.astype(np.float64))


def _check_shapes(tensors: Tensors) -> None:
    """Raise `ValueError` for tensors whose shapes do not fit together, and `KeyError` for a missing one."""
    (width,), (features,) = tensors["mean"].shape, tensors["features.centre"].shape
    compact, images = len(tensors["basis"]), len(tensors["background"])
    shapes = {"std": (width,), "basis": (compact, width), "basis.scale": (compact,)}
    shapes |= {"background": (images, width), "background.scale": (images,)}
    dims = {"features": features, "sqrt-features": features, "descriptor": width, "compact": compact}
    for space, dim in dims.items():
        shapes[f"{space}.centre"] = (dim,)
        for part in (f"{space}.within", f"{space}.between"):
            rank = len(tensors[f"{part}.factor"])
            shapes |= {f"{part}.diagonal": (dim,), f"{part}.factor": (rank, dim), f"{part}.factor.scale": (rank,)}
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise ValueError(f"tensor {name!r} has shape {tensors[name].shape}, expected {shape}")


def _check_values(tensors: Tensors) -> None:
    """Raise `ValueError` for dtypes that `calibrate` never writes, and values that make every answer NaN."""
    for name, tensor in tensors.items():
        expected = np.int8 if f"{name}.scale" in tensors else np.float32
        if tensor.dtype != expected:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}, expected {np.dtype(expected)}")
        if tensor.dtype == np.float32 and not (np.abs(tensor) <= MAX_NUMBER).all():  # False for NaN
            raise ValueError(f"tensor {name!r} holds NaN or numbers beyond ±{MAX_NUMBER:g}, expected smaller ones")
        positive = name == "std" or name.endswith(".diagonal")
        if positive and not (tensor > 0).all():
            raise ValueError(f"tensor {name!r} holds {tensor.min():g}, expected numbers above 0")


def _fingerprint(tensors: Tensors, network: str) -> str:
    digest = hashlib.sha256(network.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(np.ascontiguousarray(tensor).ravel().view(np.uint8).data)
    return digest.hexdigest()
