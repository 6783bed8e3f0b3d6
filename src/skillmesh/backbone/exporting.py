"""A network as data: an ONNX graph without weights, a card that describes it, and its weights as safetensors.

Only making them needs PyTorch; `runtime.py` runs them with ONNX Runtime. Layers keep their own names in the graph,
so that weights and biases are supplied from outside. Batch norms stay what they are, or are folded as in torch.
"""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from skillmesh.backbone.building import WITH_NORM, twin_of
from skillmesh.backbone.spec import CARD, GRAPH, PREFIX, WEIGHTS
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.common.files import make_folder, write_whole
from skillmesh.errors import BackboneError

OPSET = 18
TOLERANCE = 2e-3
"""Largest difference of a descriptor's numbers between the engines, relative to their size."""


class _Descriptor(nn.Module):
    """Pixels in, raw descriptors out, with every bias as a parameter of its layer."""

    def __init__(self, network: TorchNetwork) -> None:
        super().__init__()
        self.network = twin_of(network.model)
        for place in network.places:
            layer = self.network.get_submodule(place.path)
            layer.bias = nn.Parameter(network.base[place.part].clone(), requires_grad=False)
        self._pooled: list[tuple[torch.Tensor, torch.Tensor]] = []
        for path, channels in network.channels.items():
            self.network.get_submodule(path).register_forward_hook(self._pooling(network, channels))
        self.pixel_mean, self.pixel_std = nn.Buffer(network.mean), nn.Buffer(network.std)

    def _pooling(self, network: TorchNetwork, channels: int) -> Any:
        def pool(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            if output.ndim == 4 and output.shape[1] == channels:  # as it lies: ONNX Runtime pools this faster
                mean = output.mean(dim=(2, 3), keepdim=True)
                self._pooled.append((mean.flatten(1), (output - mean).square().mean(dim=(2, 3)).sqrt()))
            else:
                self._pooled.append(network.mean_and_std(output, channels))

        return pool

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self._pooled.clear()
        features = self.network((pixels.permute(0, 3, 1, 2).float() - self.pixel_mean) / self.pixel_std)
        means, stds = zip(*self._pooled, strict=True) if self._pooled else ((), ())
        return torch.cat([features, *means, *stds], dim=1)


def export_network(network: TorchNetwork, folder: Path) -> None:
    """Write graph, card and weights of a network to a folder, after comparing both engines on an image."""
    import onnx

    make_folder(folder)
    graph, names, outputs = _graph(network, onnx)
    state = {name: tensor.cpu().numpy() for name, tensor in network.state.items()}
    write_whole(folder / GRAPH, graph)
    write_whole(folder / CARD, json.dumps(_card(network, names, outputs), indent=1).encode())
    write_whole(folder / WEIGHTS, _safetensors(state))
    _compare(network, folder)


def _graph(network: TorchNetwork, onnx: Any) -> tuple[bytes, list[str], dict[str, str]]:
    """Return the graph without weights, their names, and the name of each layer's output in it."""
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
            output_names=["raw"],
            external_data=False,
            optimize=False,  # it would merge batch norms into weights, which are to come from outside
            verbose=False,
        )
        exported = onnx.load(file)
    names = _remove_weights(exported, onnx)
    wanted = {f"{PREFIX}{place.path}.weight" for place in network.places}
    outputs = {}
    for node in exported.graph.node:
        for name in node.input:
            if name in wanted:
                outputs[name.removeprefix(PREFIX).removesuffix(".weight")] = node.output[0]
    content: bytes = exported.SerializeToString()
    return content, names, outputs


def _remove_weights(exported: Any, onnx: Any) -> list[str]:
    """Mark the tensors of layers as supplied from outside, and return their names; remove exporter's notes."""
    names = []
    for tensor in exported.graph.initializer:
        if tensor.name.startswith(PREFIX):
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


def _card(network: TorchNetwork, names: list[str], outputs: dict[str, str]) -> dict[str, Any]:
    layers = []
    for place in network.places:
        layer = network.model.get_submodule(place.path)
        kind = "conv" if isinstance(layer, nn.Conv2d) else "linear"
        layers.append(
            {"path": place.path, "channels": place.channels, "normed": place.normed, "kind": kind}
            | {"output": outputs[place.path], "norm": getattr(layer, WITH_NORM, None)}
        )
    return {
        "spec": asdict(network.spec),
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
    from skillmesh.backbone.runtime import OnnxNetwork

    image = network.noise().cpu().numpy()
    ours = network.forward(image, recorded=False).astype(np.float32)
    theirs = OnnxNetwork.open(folder).forward(image).astype(np.float32)
    worst = float(np.max(np.abs(ours - theirs) / (1 + np.abs(ours))))
    if not worst <= TOLERANCE:
        raise BackboneError(
            f"{network.spec.name!r} cannot be exported: ONNX Runtime computes other descriptors than PyTorch "
            f"(difference {worst:.2g}, expected at most {TOLERANCE:g})"
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
