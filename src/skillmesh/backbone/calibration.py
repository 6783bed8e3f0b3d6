"""The calibration: statistics of a backbone's generic descriptors, measured once, shipped, part of its identity.

It makes modules comparable between agents that never saw each other's data. It holds, from training images only:

- mean and std of every raw dimension, to standardise descriptors;
- a prior per representation: the scatter of images around their class's mean, and the scatter of class means;
- the nuisance per representation: how descriptors move when the same picture is taken in another way (a view);
- a basis for compact modules, the principal directions of generic descriptors;
- a small sample of background descriptors, on which received modules can be tried.

`skillmesh calibrate` makes one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skillmesh.common.choices import Representation
from skillmesh.common.files import write_whole
from skillmesh.errors import CalibrationError
from skillmesh.numerics.arrays import Damping, Floats, LowRank, Tensors, dequantise_rows, principal, quantise_rows
from skillmesh.numerics.graphs import Graph, Value

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


def represent_in(
    graph: Graph,
    raw: Value,
    features: int,
    representation: Representation,
    calibration: Calibration,
    compact: bool = False,
) -> Value:
    """Add what `represent` computes to a graph in which `raw` is a raw descriptor, still unrounded."""
    largest = float(np.finfo(np.float16).max)
    raw = graph("Cast", graph("Cast", graph("Clip", raw, -largest, largest), to="FLOAT16"), to="FLOAT")
    first, axis = np.array([features]), np.array([1])
    pooled = graph("Slice", raw, np.array([0]), first, axis)
    if representation == "features":
        return pooled
    rooted = graph("Sqrt", graph("Max", pooled, 0.0))
    if representation == "sqrt-features":
        return rooted
    whole = graph("Concat", rooted, graph("Slice", raw, first, np.array([len(calibration.mean)]), axis), axis=1)
    standard = graph("Clip", graph("Div", graph("Sub", whole, calibration.mean), calibration.std), -CLIP, CLIP)
    if not compact:
        return standard
    return graph("Mul", graph.product(standard, calibration.tensors["basis"]), calibration.tensors["basis.scale"])


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
NUISANCE_RANK = 0.22
"""Number of the nuisance's directions, as a share of a representation's numbers: 640 of a descriptor's 2,912."""
NUISANCE_IN_MAPPER = 128
"""Number of the nuisance's directions that a mapper uses: there each costs time with every answer."""
NUISANCE_IN_HEADS = 10.0
"""Weight of the nuisance in the metric that heads are fitted in."""
HASTE_RIDGE = 1.0
"""Strength of the regression that tells hurried photos, relative to the variance of a number."""
COMPACT_DIM = 1024
BACKGROUND_IMAGES = 64
IMAGES_PER_TASK = 200
"""Maximum number of images used per task, so that every task has the same weight, whatever its size."""
VIEWED_PER_TASK = 100
"""Maximum number of these images whose views are described."""
MAX_NUMBER = 1e9
"""Largest allowed number, far beyond those of descriptors; products of such numbers still fit in a float32."""
LEAST_SPREAD = 1e-13
"""Smallest allowed variance or std, a tenth of the smallest that is measured; its inverse fits in a float32."""
SPACES: tuple[Representation | Literal["compact"], ...] = ("features", "sqrt-features", "descriptor", "compact")


@dataclass(frozen=True)
class Prior:
    """Statistics of a representation before any task is known, used where a bank has little evidence itself."""

    within: LowRank
    """Covariance of images around the mean of their class."""
    between: LowRank
    """Covariance of class means around `centre`."""
    centre: NDArray[np.float64]
    nuisance: LowRank | None = None
    """Mean square of the differences between an image and its views; None in a calibration without views. The
    factor has `NUISANCE_IN_MAPPER` rows; the variance of all others is in the diagonal."""
    moves: Callable[[], Floats] | None = None
    """Function that returns the nuisance's whole factor, which only learning needs."""
    haste: Haste | None = None
    """What tells photos taken in a hurry; None in a calibration without views."""

    @cached_property
    def damping(self) -> Damping | None:
        """The metric that heads are fitted in: directions in which views move descriptors count less."""
        return None if self.moves is None else Damping.of(self.moves(), NUISANCE_IN_HEADS)


@dataclass(frozen=True)
class Haste:
    """Linear estimate of how much an image looks like a photo that was taken in a hurry and sent.

    Such a photo lies farther from its class than those it was taught with, although it shows the same.
    """

    weights: Floats
    offset: np.float32

    def of(self, x: Floats) -> Floats:
        """Return the estimate for each image: 0 for the usual original, 1 for the usual `HURRIED` view."""
        estimate: Floats = x @ self.weights + self.offset
        return np.clip(estimate, np.float32(0), np.float32(1))

    def of_in(self, graph: Graph, x: Value) -> Value:
        """Add what `of` computes to a graph: (1, 1)."""
        return graph("Clip", graph("Add", graph.product(x, self.weights[None]), float(self.offset)), 0.0, 1.0)


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
            if path.exists() and not path.is_file():
                raise ValueError("it is no file")  # reading from a pipe would wait
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
    """Raw descriptors and labels of a task's training images, and of views of some of them."""

    raw: Raw
    labels: NDArray[np.int64]
    views: Views | None = None


@dataclass(frozen=True)
class Views:
    """Raw descriptors of views of a task's images."""

    raw: Raw
    images: NDArray[np.int64]
    """For each view, the row of the task's `raw` that holds its image as it is."""
    weights: NDArray[np.float64]
    """The weight of each view in the nuisance."""
    hurried: NDArray[np.bool_]
    """Which of them are told from originals."""


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
    tasks
        Of each task, at most `IMAGES_PER_TASK` images are used, chosen at random, and all views.
    """
    refuse_too_few(len(tasks))
    viewed = [
        (task.raw[task.views.images], task.views)
        for task in tasks
        if task.views is not None and len(task.views.raw)
    ]
    tasks = [_thinned(task, seed + i) for i, task in enumerate(tasks)]
    rooted = [root_features(task.raw, features) for task in tasks]
    mean = np.mean([x.mean(axis=0, dtype=np.float64) for x in rooted], axis=0)
    std = np.sqrt(np.mean([np.square(x - mean).mean(axis=0) for x in rooted], axis=0)) + 1e-6
    tensors: Tensors = {"mean": mean.astype(np.float32), "std": std.astype(np.float32)}
    standard = [clip_standardised(x, tensors["mean"], tensors["std"]) for x in rooted]
    tensors |= _quantised("basis", _principal_basis(standard))
    background = np.concatenate(standard)
    chosen = np.random.default_rng(seed).permutation(len(background))[:BACKGROUND_IMAGES]
    tensors |= _quantised("background", background[np.sort(chosen)])
    del rooted, standard, background
    unfinished = Calibration(network, source, tensors, fingerprint="")
    for space in SPACES:
        described = partial(
            represent,
            features=features,
            representation="descriptor" if space == "compact" else space,
            calibration=unfinished,
            compact=space == "compact",
        )
        prior = _measured_prior([described(task.raw) for task in tasks], [task.labels for task in tasks])
        tensors |= _written(f"{space}.within", prior.within) | _written(f"{space}.between", prior.between)
        tensors[f"{space}.centre"] = prior.centre.astype(np.float32)
        if viewed:
            pairs = [(described(images), described(views.raw), views) for images, views in viewed]
            moves = [(changed - usual, views.weights) for usual, changed, views in pairs]
            tensors |= _written(f"{space}.nuisance", _measured_nuisance(moves))
            hurried = [(usual[views.hurried], changed[views.hurried]) for usual, changed, views in pairs]
            tensors[f"{space}.haste"] = _measured_haste(hurried)
    return Calibration._of(tensors, network, source)


def refuse_too_few(tasks: int) -> None:
    if tasks < 2:
        raise CalibrationError(f"a calibration needs two tasks or more, found {tasks}; name more folders")


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
    within = _summarised(np.concatenate(residuals), PRIOR_RANK)
    return Prior(within, _summarised(between, PRIOR_RANK), centre)


def _measured_nuisance(moves: list[tuple[Floats, NDArray[np.float64]]]) -> LowRank:
    """Return the weighted mean square of differences between images and views; every task has the same weight."""
    shares = [np.sqrt(weights / (weights.sum() * len(moves))) for _, weights in moves]
    rows = [moved * share[:, None].astype(np.float32) for (moved, _), share in zip(moves, shares, strict=True)]
    return _summarised(np.concatenate(rows), round(NUISANCE_RANK * rows[0].shape[1]))


def _measured_haste(pairs: list[tuple[Floats, Floats]]) -> Floats:
    """Return ridge regression's weights, and then the offset, of 0 for images and 1 for their hurried views."""
    usual, changed = (np.concatenate(part) for part in zip(*pairs, strict=True))
    if not len(usual):
        return np.zeros(usual.shape[1] + 1, dtype=np.float32)
    x = np.concatenate([usual, changed]).astype(np.float64)
    y = np.repeat([0.0, 1.0], [len(usual), len(changed)])
    mean = x.mean(axis=0)
    x -= mean
    gram = x.T @ x / len(x)
    gram[np.diag_indices_from(gram)] += HASTE_RIDGE * gram.trace() / len(gram)
    weights = np.linalg.solve(gram, x.T @ (y - y.mean()) / len(x))
    return np.append(weights, y.mean() - mean @ weights).astype(np.float32)


def _summarised(rows: NDArray[np.floating], rank: int) -> LowRank:
    factor = principal(rows, rank)
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
    centre = tensors[f"{space}.centre"].astype(np.float64)
    if f"{space}.nuisance.factor" not in tensors:
        return Prior(within, between, centre)
    stored = tensors[f"{space}.nuisance.factor"], tensors[f"{space}.nuisance.factor.scale"]
    values, scale = stored
    main = dequantise_rows(values[:NUISANCE_IN_MAPPER], scale[:NUISANCE_IN_MAPPER])
    rest = dequantise_rows(values[NUISANCE_IN_MAPPER:], scale[NUISANCE_IN_MAPPER:])
    diagonal = tensors[f"{space}.nuisance.diagonal"] + np.square(rest).sum(axis=0)
    nuisance = LowRank(diagonal.astype(np.float64), main)
    haste = Haste(tensors[f"{space}.haste"][:-1], tensors[f"{space}.haste"][-1])
    return Prior(within, between, centre, nuisance, partial(dequantise_rows, *stored), haste)


def _read_lowrank(tensors: Tensors, name: str) -> LowRank:
    factor = dequantise_rows(tensors[f"{name}.factor"], tensors[f"{name}.factor.scale"])
    return LowRank(tensors[f"{name}.diagonal"].astype(np.float64), factor.astype(np.float64))


def _check_shapes(tensors: Tensors) -> None:
    """Raise `ValueError` for tensors whose shapes do not fit together, and `KeyError` for a missing one."""
    (width,), (features,) = tensors["mean"].shape, tensors["features.centre"].shape
    compact, images = min(len(tensors["basis"]), width), len(tensors["background"])
    shapes = {"std": (width,), "basis": (compact, width), "basis.scale": (compact,)}
    shapes |= {"background": (images, width), "background.scale": (images,)}
    viewed = any(".nuisance." in name for name in tensors)
    dims = {"features": features, "sqrt-features": features, "descriptor": width, "compact": compact}
    for space, dim in dims.items():
        shapes[f"{space}.centre"] = (dim,)
        if viewed:
            shapes[f"{space}.haste"] = (dim + 1,)
        for part in (f"{space}.{name}" for name in ("within", "between", *(["nuisance"] if viewed else []))):
            rank = min(len(tensors[f"{part}.factor"]), dim)  # more directions than numbers would take any memory
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
        if positive and not (tensor >= LEAST_SPREAD).all():
            raise ValueError(f"tensor {name!r} holds {tensor.min():g}, expected at least {LEAST_SPREAD:g}")


def _fingerprint(tensors: Tensors, network: str) -> str:
    digest = hashlib.sha256(network.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(np.ascontiguousarray(tensor).ravel().view(np.uint8).data)
    return digest.hexdigest()
