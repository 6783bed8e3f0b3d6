"""A network as data: an ONNX graph without weights, a card that describes it, and its weights as safetensors.

Only making them needs PyTorch; `runtime.py` runs them with ONNX Runtime. Layers keep their own names in the graph,
so that weights and biases are supplied from outside. Batch norms stay what they are, or are folded as in torch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skillmesh.backbone.building import WITH_NORM, twin_of
from skillmesh.backbone.network import Network
from skillmesh.backbone.spec import CARD, GRAPH, PREFIX, WEIGHTS, choose_toes
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.common.files import make_folder, remove, write_whole
from skillmesh.errors import BackboneError

OPSET = 18
TOLERANCE = 2e-3
"""Largest difference of a descriptor's numbers between the engines, relative to their size."""


class _Descriptor(nn.Module):
    """Pixels in; the raw descriptor and the output of each layer out. Every bias is a parameter of its layer."""

    def __init__(self, network: TorchNetwork) -> None:
        super().__init__()
        self.network = twin_of(network.model)
        for place in network.places:
            layer = self.network.get_submodule(place.path)
            layer.bias = nn.Parameter(network.base[place.part].clone(), requires_grad=False)
        self._pooled: list[tuple[torch.Tensor, torch.Tensor]] = []
        for path, channels in network.channels.items():
            self.network.get_submodule(path).register_forward_hook(self._pooling(network, channels))
        self._outputs: dict[str, torch.Tensor] = {}
        for place in network.places:
            self.network.get_submodule(place.path).register_forward_hook(self._keeping(place.path))
        self.places = network.places
        self.pixel_mean, self.pixel_std = nn.Buffer(network.mean), nn.Buffer(network.std)

    def _pooling(self, network: TorchNetwork, channels: int) -> Any:
        def pool(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            if output.ndim == 4 and output.shape[1] == channels:  # as it lies: ONNX Runtime pools this faster
                mean = output.mean(dim=(2, 3), keepdim=True)
                self._pooled.append((mean.flatten(1), (output - mean).square().mean(dim=(2, 3)).sqrt()))
            else:
                self._pooled.append(network.mean_and_std(output, channels))

        return pool

    def _keeping(self, path: str) -> Any:
        def keep(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            if path in self._outputs:
                raise BackboneError(f"{path} runs more than once for an image")
            self._outputs[path] = output.clone()  # what comes next may work in place

        return keep

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self._pooled.clear()
        self._outputs.clear()
        features = self.network((pixels.permute(0, 3, 1, 2).float() - self.pixel_mean) / self.pixel_std)
        means, stds = zip(*self._pooled, strict=True) if self._pooled else ((), ())
        raw = torch.cat([features, *means, *stds], dim=1)
        return raw, *(self._outputs[place.path] for place in self.places)


def export_network(network: TorchNetwork, folder: Path) -> None:
    """Write graph, card and weights of a network to a folder, after comparing both engines on an image.

    Raise `BackboneError`, and leave none of these files, for a network that cannot be exported.
    """
    make_folder(folder)
    try:
        graph, names = _graph(network)
        write_whole(folder / GRAPH, graph)
        write_whole(folder / CARD, json.dumps(_card(network, graph, names), indent=1).encode())
        write_whole(folder / WEIGHTS, _safetensors(network.state))
        _compare(network, folder)
    except BaseException as error:  # torch's exporter raises many kinds of errors
        for name in (GRAPH, CARD, WEIGHTS):  # an unusable network must not stay in the folder
            remove(folder / name)
        if isinstance(error, OSError) or not isinstance(error, Exception):  # such as Ctrl-C
            raise
        raise BackboneError(
            f"{network.spec.name!r} cannot be exported: {_reason(error)}; use it with PyTorch, or choose another "
            "network"
        ) from error


def _reason(error: BaseException) -> str:
    """Return the first line of the error that caused this one: torch's exporter wraps it in general advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def _graph(network: TorchNetwork) -> tuple[bytes, list[str]]:
    """Return the graph without weights, and their names; `output_of` names the outputs of its layers."""
    import onnx

    model = _Descriptor(network).eval()
    with TemporaryDirectory() as place, warnings.catch_warnings(), _quiet_exporter():
        warnings.simplefilter("ignore")
        file = Path(place) / GRAPH
        torch.onnx.export(
            model,
            (network.noise().cpu(),),
            file,
            dynamo=True,
            opset_version=OPSET,
            input_names=["pixels"],
            output_names=["raw", *(output_of(place.path) for place in network.places)],
            external_data=False,
            optimize=False,  # it would merge batch norms into weights, which are to come from outside
            verbose=False,
        )
        exported = onnx.load(file)
    _make_bounds_constant(exported)
    names = _remove_weights(exported, {*network.state, *(f"{place.path}.bias" for place in network.places)})
    del exported.graph.output[1:]  # the names of the others stay, and a session can ask for them
    content: bytes = exported.SerializeToString()
    return content, names


def _make_bounds_constant(exported: Any) -> None:
    """Let activations take their bounds as constants: only then does ONNX Runtime merge them into convolutions.

    The exporter casts each bound to the type of its input. All numbers here are of single precision, as the bound.
    Unmerged, activations take a quarter of a pass of lite0, mostly for changing the layout of their inputs.
    """
    import onnx

    single = {
        node.output[0]
        for node in exported.graph.node
        if node.op_type == "Constant"
        and (node.attribute[0].name == "value_float" or node.attribute[0].t.data_type == onnx.TensorProto.FLOAT)
    }
    for node in exported.graph.node:
        if node.op_type == "CastLike" and node.input[0] in single:
            node.op_type = "Identity"
            del node.input[1:]


def output_of(path: str) -> str:
    """Return the name of a layer's output in a graph."""
    return f"output.{path}"


def _remove_weights(exported: Any, given: set[str]) -> list[str]:
    """Mark the tensors that are given from outside, and return their names; remove the exporter's notes.

    What the network computes when it is made, such as a table of positions, stays in the graph.
    """
    import onnx

    names = []
    for tensor in exported.graph.initializer:
        if tensor.name.startswith(PREFIX) and tensor.name.removeprefix(PREFIX) in given:
            names.append(tensor.name.removeprefix(PREFIX))
            dims, kind, name = list(tensor.dims), tensor.data_type, tensor.name
            size = onnx.numpy_helper.to_array(tensor).nbytes
            tensor.Clear()
            tensor.name, tensor.data_type, tensor.data_location = name, kind, onnx.TensorProto.EXTERNAL
            tensor.dims.extend(dims)
            for key, value in (("location", WEIGHTS), ("offset", "0"), ("length", str(size))):
                entry = tensor.external_data.add()
                entry.key, entry.value = key, value
    del exported.graph.value_info[:]
    for part in (exported, exported.graph, *exported.graph.node):
        del part.metadata_props[:]
        part.doc_string = ""
    return names


def _card(network: TorchNetwork, graph: bytes, names: list[str]) -> dict[str, Any]:
    layers = []
    for place in network.places:
        layer = network.model.get_submodule(place.path)
        kind = "conv" if isinstance(layer, nn.Conv2d) else "linear"
        layers.append(
            {"path": place.path, "channels": place.channels, "normed": place.normed, "kind": kind}
            | {"output": output_of(place.path), "norm": getattr(layer, WITH_NORM, None)}
        )
    return {
        "spec": asdict(network.spec),
        "graph": hashlib.sha256(graph).hexdigest(),
        "features": network.features,
        "channels": network.channels,
        "parameters": network.parameters,
        "macs": network.forward_macs,
        "layers": layers,
        "tensors": names,
        "state": [[name, list(tensor.shape)] for name, tensor in network.state.items()],
    }


def _safetensors(state: dict[str, np.ndarray[Any, Any]]) -> bytes:
    from safetensors.numpy import save

    content: bytes = save({name: np.array(tensor, order="C") for name, tensor in state.items()})
    return content


def _compare(network: TorchNetwork, folder: Path) -> None:
    """Raise an error unless both engines compute the same: plain, with biases added, and the layers' outputs."""
    from skillmesh.backbone.runtime import OnnxNetwork

    exported, image = OnnxNetwork.open(folder), network.noise().cpu().numpy()
    added = (0.01 * np.random.default_rng(0).standard_normal(network.bias_count)).astype(np.float32)
    if exported.fingerprint != network.fingerprint:
        raise BackboneError("its fingerprint would be another on ONNX Runtime")
    quantities: dict[str, Callable[[Network], NDArray[Any]]] = {
        "descriptors": lambda each: each.forward(image),
        "descriptors with biases": lambda each: each.forward(image, added),
    }
    toes = choose_toes(added, share=1)
    with suppress(BackboneError):  # a network of windows cannot have a Head2Toe head
        network.toe_features(image, added, toes)
        quantities["outputs of layers"] = lambda each: each.toe_features(image, added, toes)
    for what, computed in quantities.items():
        ours = computed(network).astype(np.float32)
        theirs = computed(exported).astype(np.float32)
        if ours.shape != theirs.shape:
            raise BackboneError(f"ONNX Runtime computes {theirs.shape[1]} {what}, PyTorch {ours.shape[1]}")
        worst = float(np.max(np.abs(ours - theirs) / (1 + np.abs(ours))))
        if not worst <= TOLERANCE:
            raise BackboneError(
                f"ONNX Runtime computes other {what} than PyTorch (difference {worst:.2g}, expected at most "
                f"{TOLERANCE:g})"
            )


class _quiet_exporter:
    """Context without the log lines of torch's exporter, which speak to its developers."""

    def __enter__(self) -> None:
        self._loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
        self._levels = [logger.level for logger in self._loggers]
        for logger in self._loggers:
            logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        for logger, level in zip(self._loggers, self._levels, strict=True):
            logger.setLevel(level)
