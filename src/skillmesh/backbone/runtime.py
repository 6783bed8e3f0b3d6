"""A network that ONNX Runtime runs: a graph and weights, read as data, without PyTorch.

The graph file has no weights. They are supplied when a session is made, and so are the biases: a task that adds
biases to the network gets a session of its own, and the sessions of the last few tasks are kept. ONNX Runtime
merges a convolution with what follows only where its biases are constant; with biases as an input, a pass takes
more than twice as long (benchmarks/light.py).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from skillmesh.backbone.calibration import Raw
from skillmesh.backbone.network import LARGEST_HALF, Network, fingerprint
from skillmesh.backbone.spec import CARD, GRAPH, PREFIX, WEIGHTS, NetworkSpec, Place, Toes, read_card
from skillmesh.backbone.weights import State, lite0_weights, read_weights
from skillmesh.data.images import Pixels
from skillmesh.errors import BackboneError
from skillmesh.numerics.arrays import Floats

KEPT = 4
"""Number of tasks with biases whose sessions are kept."""
CUDA = "CUDAExecutionProvider"


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
                place = Place(layer["path"], start, layer["channels"], layer["normed"])
                norm = None if layer["norm"] is None else (str(layer["norm"][0]), float(layer["norm"][1]))
                layers.append(Layer(place, layer["kind"], layer["output"], norm))
                start += place.channels
            return cls(
                card["spec"],
                int(card["features"]),
                {str(path): int(count) for path, count in card["channels"].items()},
                int(card["parameters"]),
                int(card["macs"]),
                tuple(layers),
                tuple(map(str, card["tensors"])),
                tuple((str(name), tuple(shape)) for name, shape in card["state"]),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise BackboneError(
                f"{source} does not describe a network ({type(error).__name__}: {error}); export the network again"
            ) from error


class OnnxNetwork(Network):
    """A frozen network on ONNX Runtime.

    On a CPU every session uses one thread and every image runs alone, several of them side by side in threads of
    the caller. So a descriptor depends neither on other images nor on the number of threads.
    """

    def __init__(self, card: NetworkCard, graph: bytes, state: State, source: str, device: str = "cpu") -> None:
        self.card, self.spec = card, card.spec
        self.on_cpu = device == "cpu"
        self.features, self.channels = card.features, card.channels
        self.parameters, self.forward_macs = card.parameters, card.macs
        self.places = tuple(layer.place for layer in card.layers)
        state = _named(state, card, source)
        self.fingerprint = fingerprint(self.spec, state)
        self._graph, self._tensors = graph, _tensors(state, card)
        self._providers = ["CPUExecutionProvider"] if self.on_cpu else [CUDA]
        self._lock = Lock()
        self._sessions: OrderedDict[bytes, ort.InferenceSession] = OrderedDict()
        self._plain = self._session({}, ())

    @classmethod
    def lite0(cls, weights: Path | None = None, device: str = "cpu") -> OnnxNetwork:
        """Return lite0: the graph of this package, with weights from their own package or from a file."""
        folder = files("skillmesh.backbone") / "networks" / "lite0"
        card = NetworkCard.read((folder / CARD).read_text(), str(folder / CARD))
        state = lite0_weights() if weights is None else read_weights(weights)
        source = "the lite0 package" if weights is None else str(weights)
        return cls(card, (folder / GRAPH).read_bytes(), state, source, device)

    @classmethod
    def open(cls, folder: Path, device: str = "cpu") -> OnnxNetwork:
        """Return the network in a folder that `skillmesh backbone NAME --export DIR` wrote."""
        try:
            card, graph = (folder / CARD).read_text(), (folder / GRAPH).read_bytes()
        except (OSError, UnicodeDecodeError) as error:
            raise BackboneError(
                f"{folder} is not an exported network ({error}); expected the files {CARD}, {GRAPH} and {WEIGHTS} "
                "that `skillmesh backbone NAME --export DIR` writes"
            ) from error
        weights = folder / WEIGHTS
        if not weights.is_file():
            raise BackboneError(f"{folder} has no {WEIGHTS}; export the network again, with its weights")
        return cls(NetworkCard.read(card, str(folder / CARD)), graph, read_weights(weights), str(weights), device)

    def forward(self, images: Pixels, added: Floats | None = None) -> Raw:
        session = self._plain if added is None else self._adapted(added, ())
        return _rounded(self._run(session, ["raw"], images)[0])

    def toe_features(self, images: Pixels, added: Floats, toes: Toes) -> Floats:
        inside = [(layer, _channels_in(layer.place, toes)) for layer in self.card.layers]
        layers = [(layer, channels) for layer, channels in inside if len(channels)]
        outputs = tuple(layer.output for layer, _ in layers)
        raw, *maps = self._run(self._adapted(added, outputs), ["raw", *outputs], images)
        grids = [
            _pooled(_as_maps(found, layer.kind == "linear")[:, channels], toes.grid).reshape(len(images), -1)
            for found, (layer, channels) in zip(maps, layers, strict=True)
        ]
        return np.concatenate([_rounded(raw)[:, : self.features].astype(np.float32), *grids], axis=1)

    def _run(self, session: ort.InferenceSession, outputs: list[str], images: Pixels) -> list[NDArray[np.float32]]:
        """Run image by image: the graph is for one, and a descriptor must not depend on its batch."""
        runs = [session.run(outputs, {"pixels": image[None]}) for image in images]
        return [np.concatenate(parts) for parts in zip(*runs, strict=True)]

    def _adapted(self, added: Floats, outputs: tuple[str, ...]) -> ort.InferenceSession:
        """Return the session of a task: kept from the last time, or made now."""
        key = hashlib.sha256(added.astype("<f4").tobytes() + repr(outputs).encode()).digest()
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = self._session(self._biases(added), outputs)
                if len(self._sessions) > KEPT:
                    self._sessions.popitem(last=False)
            self._sessions.move_to_end(key)
            return self._sessions[key]

    def _biases(self, added: Floats) -> State:
        """Return the biases of all layers, the network's own plus a task's."""
        return {
            f"{layer.place.path}.bias": self._tensors[f"{layer.place.path}.bias"]
            + added[layer.place.part].astype(np.float32)
            for layer in self.card.layers
        }

    def _session(self, changed: State, outputs: Sequence[str]) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # its warnings speak to developers of the graph
        tensors = self._tensors | changed
        names = [f"{PREFIX}{name}" for name in tensors]
        options.add_external_initializers(names, [ort.OrtValue.ortvalue_from_numpy(t) for t in tensors.values()])
        try:
            return ort.InferenceSession(self._graph + _more_outputs(outputs), options, providers=self._providers)
        except Exception as error:  # ONNX Runtime has no common class of errors
            reason = next(iter(str(error).splitlines()), "")[:200]
            raise BackboneError(
                f"ONNX Runtime cannot run the graph of {self.spec.name!r} ({reason}); expected the graph that "
                "`skillmesh backbone NAME --export DIR` wrote"
            ) from error


def _rounded(raw: NDArray[np.float32]) -> Raw:
    return np.clip(raw, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)


def _named(state: State, card: NetworkCard, source: str) -> State:
    """Return the weights under the card's names: by name, or by order if another library has named them."""
    wanted = dict(card.state)
    if not set(state) & set(wanted) and len(state) == len(wanted):
        state = dict(zip(wanted, state.values(), strict=True))
    missing = [name for name in wanted if name not in state and not name.endswith("num_batches_tracked")]
    if missing:
        raise BackboneError(
            f"the weights in {source} do not fit: {len(missing)} tensors are missing ({', '.join(missing[:3])}); "
            f"expected the {len(wanted)} tensors of {card.spec.timm_name}"
        )
    for name, shape in wanted.items():
        if name in state and state[name].shape != shape:
            raise BackboneError(
                f"the weights in {source} do not fit: {name} has shape {state[name].shape}, expected {shape}"
            )
    return {name: state[name] for name in wanted if name in state}


def _tensors(state: State, card: NetworkCard) -> State:
    """Return what the graph takes from outside: weights and biases of layers, batch norms folded, and the rest."""
    tensors = dict(state)
    for layer in card.layers:
        path = layer.place.path
        own = state.get(f"{path}.bias", np.zeros(layer.place.channels, dtype=np.float32))
        if layer.norm:
            tensors[f"{path}.weight"], own = _folded(state, path, own, *layer.norm)
        tensors[f"{path}.bias"] = own
    return {name: tensors[name] for name in card.tensors}


def _folded(state: State, path: str, bias: Any, norm: str, epsilon: float) -> tuple[Any, Any]:
    """Return weight and bias of a convolution with the batch norm after it: W·s and (b − mean)·s + shift."""
    mean, variance, scale, shift = (
        state[f"{norm}.{name}"].astype(np.float64) for name in ("running_mean", "running_var", "weight", "bias")
    )
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


def usable_device(name: str) -> str:
    """Return the device if ONNX Runtime can use it; raise `BackboneError` otherwise."""
    if name == "cpu" or (name == "cuda" and CUDA in ort.get_available_providers()):
        return name
    raise BackboneError(
        f"the device {name!r} cannot be used by ONNX Runtime here; expected cpu, or install a build for GPUs "
        "(pip install onnxruntime-gpu) or PyTorch (pip install 'skillmesh[torch]')"
    )
