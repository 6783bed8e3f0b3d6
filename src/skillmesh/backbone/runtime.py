"""A network that ONNX Runtime runs: a graph and weights, read as data, without PyTorch.

The graph file has no weights. They are supplied when a session is made, and so are the biases: a task that adds
biases to the network gets a session of its own, and the sessions of the last few tasks are kept. ONNX Runtime
merges a convolution with what follows only where its biases are constant; with biases as an input, a pass takes
more than twice as long (benchmarks/light.py).
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from skillmesh.backbone.calibration import Raw
from skillmesh.backbone.network import LARGEST_HALF, Network, Origin, fingerprint
from skillmesh.backbone.spec import (
    CARD,
    GRAPH,
    PREFIX,
    WEIGHTS,
    NetworkSpec,
    Place,
    Toes,
    content_of,
    read_card,
    refuse_windows,
    whole,
)
from skillmesh.backbone.weights import State, is_classifier, lite0_weights, read_weights
from skillmesh.common.extras import TORCH
from skillmesh.data.images import Pixels
from skillmesh.errors import BackboneError, DeviceError
from skillmesh.numerics.arrays import Floats
from skillmesh.numerics.process import hand_back, keep_freed_memory

if TYPE_CHECKING:
    from skillmesh.backbone.torch_network import TorchNetwork

KEPT = 4
"""Number of tasks with biases whose sessions are kept."""
CUDA = "CUDAExecutionProvider"
EXACT = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
"""Options on a GPU: TF32 would round products to 10 bits, and a search by time may choose other algorithms."""

NORM = ("running_mean", "running_var", "weight", "bias")
"""Tensors of a batch norm."""
MOST_CHANNELS, MOST_COUNTED = 2**16, 2**48
"""Largest number of channels of a layer, and of parameters and MACs, in a card."""


@dataclass(frozen=True)
class Layer:
    """A layer of the graph that can have biases."""

    place: Place
    kind: str
    """`conv` or `linear`."""
    output: str
    """Name of its output in the graph."""
    norm: tuple[str, float] | None
    """Path and epsilon of the batch norm that is folded into it, if any."""


@dataclass(frozen=True)
class NetworkCard:
    """Description of a graph: what `network.json` holds."""

    spec: NetworkSpec
    features: int
    channels: dict[str, int]
    parameters: int
    macs: int
    layers: tuple[Layer, ...]
    graph: str
    """SHA-256 of the graph, in hexadecimal."""
    tensors: tuple[str, ...]
    """Names of the weights and biases that the graph takes from outside."""
    state: tuple[tuple[str, tuple[int, ...]], ...]
    """Names and shapes of the weights, in the order of torch's state dict."""

    @classmethod
    def read(cls, content: str, source: str) -> NetworkCard:
        """Read a card; raise `BackboneError` if it is damaged."""
        card = read_card(content, source)
        try:
            layers, start = [], 0
            for layer in card["layers"]:
                place = Place(str(layer["path"]), start, whole(layer["channels"], MOST_CHANNELS), layer["normed"])
                norm = None if layer["norm"] is None else (str(layer["norm"][0]), float(layer["norm"][1]))
                layers.append(Layer(place, layer["kind"], str(layer["output"]), norm))
                start += place.channels
            read = cls(
                card["spec"],
                whole(card["features"], MOST_CHANNELS),
                {str(path): whole(count, MOST_CHANNELS) for path, count in card["channels"].items()},
                whole(card["parameters"], MOST_COUNTED),
                whole(card["macs"], MOST_COUNTED),
                tuple(layers),
                str(card["graph"]),
                tuple(map(str, card["tensors"])),
                tuple((str(name), tuple(shape)) for name, shape in card["state"]),
            )
            read._check()
            return read
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise BackboneError(
                f"{source} does not describe a network ({type(error).__name__}: {error}); export the network again"
            ) from error

    def _check(self) -> None:
        """Raise `ValueError` unless layers differ and all tensors that are needed are among the weights."""
        paths = {layer.place.path for layer in self.layers}
        if not paths or len(paths) < len(self.layers):
            raise ValueError("it has no layers, or one twice")
        known = {name for name, _ in self.state}
        norms = (f"{layer.norm[0]}.{name}" for layer in self.layers if layer.norm for name in NORM)
        needed = {*(f"{path}.weight" for path in paths), *norms, *self.tensors} - {
            f"{path}.bias" for path in paths
        }
        if not needed <= known:
            raise ValueError(f"it has no shape of {min(needed - known)[:80]!r}")


class OnnxNetwork(Network):
    """A frozen network on ONNX Runtime.

    On a CPU every session uses one thread and every image runs alone, several of them side by side in threads of
    the caller. So a descriptor depends neither on other images nor on the number of threads.
    """

    engine = "onnx"

    def __init__(
        self, card: NetworkCard, graph: bytes, read: Callable[[], State], source: str, device: str = "cpu"
    ) -> None:
        """Make the network of a card and a graph, with the weights that `read` returns from `source`."""
        self.card, self.spec = card, card.spec
        self.on_cpu = self.single_threaded = device == "cpu"
        self.features, self.channels = card.features, card.channels
        self.parameters, self.forward_macs = card.parameters, card.macs
        self.places = tuple(layer.place for layer in card.layers)
        self._graph, self._read, self._source = graph, read, source
        self._providers = ["CPUExecutionProvider"] if self.on_cpu else [(CUDA, EXACT)]
        self._lock = Lock()
        self._sessions: OrderedDict[bytes, ort.InferenceSession] = OrderedDict()
        state = _named(read(), card, source)
        self.fingerprint = fingerprint(self.spec, state)
        tensors = _tensors(state, card, source)
        del state  # the folded weights are others, and the session copies them
        hand_back()
        self._plain = self._session(tensors, ())
        del tensors
        hand_back()
        if self.on_cpu:
            keep_freed_memory()  # photos need large blocks, and page faults of new ones take a sixth of an answer
        pixels = [(each.name, each.type, each.shape) for each in self._plain.get_inputs()]
        if pixels != [("pixels", "tensor(uint8)", [1, self.size, self.size, 3])]:
            raise self._unusable(f"its input is {pixels}")
        if not self.on_cpu and CUDA not in self._plain.get_providers():  # its libraries are missing or do not fit
            raise DeviceError(
                "ONNX Runtime was built for GPUs but cannot use this machine's; expected NVIDIA's driver with the "
                "CUDA and cuDNN libraries that onnxruntime-gpu names; install them, or name the device cpu"
            )

    @classmethod
    def lite0(cls, weights: Path | None = None, device: str = "cpu") -> OnnxNetwork:
        """Return lite0: the graph of this package, with weights from their own package or from a file."""
        read = lite0_weights if weights is None else partial(read_weights, weights)
        network = cls._of_lite0(read, "the lite0 package" if weights is None else str(weights), device)
        network.origin = Origin("lite0", None if weights is None else weights.absolute())
        return network

    @classmethod
    def _of_lite0(cls, read: Callable[[], State], source: str, device: str = "cpu") -> OnnxNetwork:
        folder = files("skillmesh.backbone") / "networks" / "lite0"
        card = NetworkCard.read((folder / CARD).read_text(), str(folder / CARD))
        return cls(card, (folder / GRAPH).read_bytes(), read, source, device)

    @classmethod
    def open(cls, folder: Path, device: str = "cpu") -> OnnxNetwork:
        """Return the network in a folder that `skillmesh backbone NAME --export DIR` wrote."""
        card = NetworkCard.read(content_of(folder, CARD).decode(errors="replace"), str(folder / CARD))
        graph = content_of(folder, GRAPH)
        if hashlib.sha256(graph).hexdigest() != card.graph:
            raise BackboneError(
                f"{folder / GRAPH} is not the graph that {CARD} describes: it is damaged or from another export; "
                "export the network again"
            )
        weights = folder / WEIGHTS
        if not weights.is_file():
            raise BackboneError(f"{folder} has no {WEIGHTS}; export the network again, with its weights")
        network = cls(card, graph, partial(read_weights, weights), str(weights), device)
        network.cached_as = f"{cls.engine}-{card.graph[:16]}"  # the fingerprint is that of the weights
        network.origin = Origin(card.spec.name, folder.absolute())
        return network

    @classmethod
    def same_as(cls, network: Network) -> OnnxNetwork:
        """Return the same network with its graph; raise `BackboneError` for one that was never exported."""
        if isinstance(network, cls):
            return network
        name, origin = network.spec.name, network.origin
        if origin is not None and origin.weights is not None and origin.weights.is_dir():
            same = cls.open(origin.weights)
        elif name == "lite0":
            same = cls._of_lite0(lambda: cast("TorchNetwork", network).state, "lite0 on PyTorch")
        else:
            raise BackboneError(
                f"the network {name!r} has no ONNX graph; write one with `skillmesh backbone {name} --export "
                "DIR`, and create an agent with `init --backbone DIR`"
            )
        if same.fingerprint != network.fingerprint:
            raise BackboneError(f"the weights of {name!r} have changed; start this program again")
        return same

    def as_model(self) -> Any:
        """Return the network as a model of the package onnx, from `pixels` to `raw`, its weights inside."""
        from onnx import load_model_from_string, numpy_helper

        model = load_model_from_string(self._graph)
        for tensor in model.graph.initializer:
            if tensor.name.startswith(PREFIX):
                own = self._tensors[tensor.name.removeprefix(PREFIX)]
                tensor.CopyFrom(numpy_helper.from_array(np.asarray(own, order="C"), tensor.name))
        return model

    def forward(self, images: Pixels, added: Floats | None = None) -> Raw:
        session = self._plain if added is None else self._adapted(added, ())
        (raw,) = self._run(session, ["raw"], images)
        if added is None and np.isnan(raw).any():
            raise self._unusable("it gives values that are no numbers")
        return _rounded(raw)

    def toe_features(self, images: Pixels, added: Floats, toes: Toes) -> Floats:
        inside = [(layer, _channels_in(layer.place, toes)) for layer in self.card.layers]
        layers = [(layer, channels) for layer, channels in inside if len(channels)]
        outputs = tuple(layer.output for layer, _ in layers)
        raw, *maps = self._run(self._adapted(added, outputs), ["raw", *outputs], images)
        for output, (layer, _) in zip(maps, layers, strict=True):
            shape, axis = output.shape, -1 if layer.kind == "linear" else 1
            if len(shape) not in ((2, 3, 4) if axis < 0 else (4,)) or shape[axis] != layer.place.channels:
                raise self._unusable(
                    f"the layer {layer.place.path} gives {shape}, not {layer.place.channels} channels"
                )
            refuse_windows(layer.place.path, len(output), len(images))
        grids = [
            _pooled(_as_maps(output, layer.kind == "linear")[:, channels], toes.grid).reshape(len(images), -1)
            for output, (layer, channels) in zip(maps, layers, strict=True)
        ]
        return np.concatenate([_rounded(raw)[:, : self.features].astype(np.float32), *grids], axis=1)

    def _run(self, session: ort.InferenceSession, outputs: list[str], images: Pixels) -> list[NDArray[np.float32]]:
        """Run image by image: the graph is for one, and a descriptor must not depend on its batch."""
        try:
            runs = [session.run(outputs, {"pixels": image[None]}) for image in images]
        except Exception as error:  # ONNX Runtime has no common class of errors
            raise self._unusable(error) from error
        for output in (output for run in runs for output in run):  # other kinds are lists, texts or None
            if not isinstance(output, np.ndarray) or output.dtype != np.float32:
                kind = getattr(output, "dtype", type(output).__name__)
                raise self._unusable(f"an output is {kind}, not an array of float32")
        if wrong := {run[0].shape for run in runs} - {(1, self.width)}:
            raise self._unusable(f"its output has shape {wrong.pop()}, not {(1, self.width)}")
        return [np.concatenate(parts) for parts in zip(*runs, strict=True)]

    def _adapted(self, added: Floats, outputs: tuple[str, ...]) -> ort.InferenceSession:
        """Return the session of a task: kept from the last time, or made now."""
        key = hashlib.sha256(added.astype("<f4").tobytes() + repr(outputs).encode()).digest()
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = self._session(self._tensors | self._biases(added), outputs)
                if len(self._sessions) > KEPT:
                    self._sessions.popitem(last=False)
            self._sessions.move_to_end(key)
            return self._sessions[key]

    @cached_property
    def _tensors(self) -> State:
        """What the graph takes from outside; read again for the first task with biases, and kept from then on."""
        state = _named(self._read(), self.card, self._source)
        if fingerprint(self.spec, state) != self.fingerprint:
            raise BackboneError(f"the weights in {self._source} have changed; start this program again")
        return _tensors(state, self.card, self._source)

    def _biases(self, added: Floats) -> State:
        """Return the biases of all layers, the network's own plus a task's."""
        return {
            f"{layer.place.path}.bias": self._tensors[f"{layer.place.path}.bias"]
            + added[layer.place.part].astype(np.float32)
            for layer in self.card.layers
        }

    def _session(self, tensors: State, outputs: Sequence[str]) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # its warnings speak to developers of the graph
        names = [f"{PREFIX}{name}" for name in tensors]
        # A graph may name files to read; there are none in this folder. Otherwise it would be the current one.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
        try:
            values = [ort.OrtValue.ortvalue_from_numpy(tensor) for tensor in tensors.values()]
            options.add_external_initializers(names, values)
            content = self._graph + _more_outputs(outputs)
            # Its fallback prints to stdout, and has nothing to fall back to from the CPU.
            fallback = not self.on_cpu
            return ort.InferenceSession(content, options, providers=self._providers, enable_fallback=fallback)
        except Exception as error:  # ONNX Runtime has no common class of errors
            raise self._unusable(error) from error

    def _unusable(self, reason: object) -> BackboneError:
        first = next(iter(str(reason).splitlines()), "")[:200]
        return BackboneError(
            f"ONNX Runtime cannot run the graph of {self.spec.name!r} ({first}); expected the graph that "
            "`skillmesh backbone NAME --export DIR` wrote"
        )


def _rounded(raw: NDArray[np.float32]) -> Raw:
    return np.clip(raw, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)


def _named(state: State, card: NetworkCard, source: str) -> State:
    """Return the weights under the card's names: by name, or by order if another library has named them."""
    wanted = dict(card.state)
    state = {name: _single(tensor) for name, tensor in state.items() if not is_classifier(name, wanted)}
    if not set(state) & set(wanted) and len(state) == len(wanted):
        state = dict(zip(wanted, state.values(), strict=True))
    missing = [name for name in wanted if name not in state and not name.endswith("num_batches_tracked")]
    if missing:
        raise BackboneError(
            f"the weights in {source} do not fit: {len(missing)} tensors are missing ({', '.join(missing[:3])}); "
            f"expected the {len(wanted)} tensors of {card.spec.timm_name}"
        )
    if unexpected := [name for name in state if name not in wanted]:
        raise BackboneError(
            f"the weights in {source} do not fit: {len(unexpected)} tensors are unexpected "
            f"({', '.join(unexpected[:3])}); expected the {len(wanted)} tensors of {card.spec.timm_name}"
        )
    for name, shape in wanted.items():
        if name in state and state[name].shape != shape:
            raise BackboneError(
                f"the weights in {source} do not fit: {name} has shape {state[name].shape}, expected {shape}"
            )
    return {name: state[name] for name in wanted if name in state}


def _single(tensor: NDArray[Any]) -> NDArray[Any]:
    """Return floating-point weights as float32, which both engines compute in, and so does the fingerprint."""
    return tensor.astype(np.float32, copy=False) if tensor.dtype.kind == "f" else tensor


def _tensors(state: State, card: NetworkCard, source: str) -> State:
    """Return what the graph takes from outside: weights and biases of layers, batch norms folded, and the rest."""
    tensors = dict(state)
    for layer in card.layers:
        path, channels = layer.place.path, layer.place.channels
        own = state.get(f"{path}.bias", np.zeros(channels, dtype=np.float32))
        if own.shape != (channels,) or (layer.norm and not _can_fold(state, path, layer.norm[0])):
            raise BackboneError(f"the weights in {source} do not fit: {path} has other channels than {channels}")
        if layer.norm:
            tensors[f"{path}.weight"], own = _folded(state, path, own, *layer.norm)
        tensors[f"{path}.bias"] = own
    wanted = {name: tensors[name] for name in card.tensors}
    if odd := [name for name, tensor in wanted.items() if not np.isfinite(tensor).all()]:
        raise BackboneError(
            f"the weights in {source} cannot be used: {odd[0]} has values that are no finite numbers; "
            "expected trained weights; get the file again"
        )
    return wanted


def _can_fold(state: State, path: str, norm: str) -> bool:
    """Return whether a batch norm has the channels of a convolution."""
    weight = state[f"{path}.weight"]
    return weight.ndim == 4 and all(state[f"{norm}.{name}"].shape == weight.shape[:1] for name in NORM)


def _folded(state: State, path: str, bias: Any, norm: str, epsilon: float) -> tuple[Any, Any]:
    """Return weight and bias of a convolution with the batch norm after it: W·s and (b − mean)·s + shift."""
    mean, variance, scale, shift = (state[f"{norm}.{name}"].astype(np.float64) for name in NORM)
    with np.errstate(all="ignore"):  # results that are no finite numbers are refused
        factor = scale / np.sqrt(variance + epsilon)
    weight = state[f"{path}.weight"].astype(np.float64) * factor[:, None, None, None]
    return weight.astype(np.float32), ((bias - mean) * factor + shift).astype(np.float32)


# Outputs of inner layers, for Head2Toe. Two protobuf messages one after the other are one message with the
# repeated fields of both, so a graph gets more outputs by appending them.


def _more_outputs(names: Sequence[str]) -> bytes:
    """Return the bytes that add outputs to a model: ModelProto.graph (7) → GraphProto.output (12) → name (1)."""
    graph = b"".join(_field(12, _field(1, name.encode())) for name in names)
    return _field(7, graph) if names else b""


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes(parts) + bytes([value])


def _channels_in(place: Place, toes: Toes) -> NDArray[np.int64]:
    chosen: NDArray[np.int64] = toes.channels[(toes.channels >= place.start) & (toes.channels < place.part.stop)]
    return chosen - place.start


def _as_maps(output: NDArray[np.float32], channels_last: bool) -> NDArray[np.float32]:
    """Return a layer's output as (n, channels, height, width); the last tokens are arranged in a square."""
    if not channels_last:
        return output
    if output.ndim == 4:
        return output.transpose(0, 3, 1, 2)
    tokens = output.reshape(len(output), -1, output.shape[-1]).transpose(0, 2, 1)
    side = max(1, int(np.sqrt(tokens.shape[2])))
    return tokens[:, :, tokens.shape[2] - side * side :].reshape(len(output), -1, side, side)


def _pooled(maps: NDArray[np.float32], grid: int) -> NDArray[np.float32]:
    """Return the means of maps over the cells of a grid, which overlap where it does not divide the map."""
    rows, columns = (_cells(size, grid) for size in maps.shape[2:])
    return (rows @ maps @ columns.T).astype(np.float32, copy=False)


def _cells(size: int, grid: int) -> NDArray[np.float32]:
    """Return for each cell of a grid the weights of a mean over its part of `size` places."""
    weights = np.zeros((grid, size), dtype=np.float32)
    for cell in range(grid):
        start, stop = cell * size // grid, -(-(cell + 1) * size // grid)
        weights[cell, start:stop] = 1 / (stop - start)
    return weights


def usable_device(name: str | None, sign_of_gpu: bool = True) -> str:
    """Return the device if ONNX Runtime can use it, or the best one; raise `DeviceError` otherwise."""
    has_cuda = CUDA in ort.get_available_providers()
    if name is None:
        return "cuda" if has_cuda and sign_of_gpu else "cpu"
    if name == "cpu" or (name == "cuda" and has_cuda):
        return name
    raise DeviceError(
        f"the device {name!r} cannot be used by ONNX Runtime here; expected cpu, or cuda with a build for GPUs "
        f"(`pip install onnxruntime-gpu`) or with PyTorch (`{TORCH.command}`)"
    )
