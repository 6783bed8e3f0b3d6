"""The network that baselines train: a body with the initial weights of our backbone, and one head per task."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from skillmesh.backbone.building import build, import_timm
from skillmesh.backbone.spec import WEIGHTS, exported_spec, spec_of
from skillmesh.backbone.torch_network import completed, counting

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.settings import TrainedSettings

Norm = nn.modules.batchnorm._BatchNorm
Layer = nn.Conv2d | nn.Linear


class Body(nn.Module):
    """A trainable backbone that turns pixels into features."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, model: nn.Module, size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.model, self.size = model, size
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values).mul(255).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # Permuting NHWC pixels gives a tensor in the memory format that torch calls channels-last.
        features: torch.Tensor = self.model((images.permute(0, 3, 1, 2) - self.mean) / self.std)
        return features

    def example(self) -> torch.Tensor:
        return torch.zeros(1, self.size, self.size, 3, dtype=torch.uint8, device=self.mean.device)


def build_body(method: TrainedSettings, seed: int) -> Body:
    """Return the backbone with the weights that `skillmesh` uses, or with random weights drawn by the seed."""
    spec, weights = spec_of(method.backbone), None if method.weights is None else Path(method.weights)
    if weights is not None and weights.is_dir():  # an exported network
        spec, weights = exported_spec(weights), weights / WEIGHTS
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if method.start == "random":
            model = import_timm().create_model(spec.timm_name, num_classes=0)
        else:
            model = build(spec, weights)
    spec = completed(spec, model)
    assert spec.size is not None
    assert spec.mean is not None
    assert spec.std is not None
    body = Body(model, method.size or spec.size, spec.mean, spec.std)
    return body.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def layers_of(body: nn.Module) -> dict[str, Layer]:
    """Return all convolution and linear layers by name."""
    return {name: module for name, module in body.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}


class TaskNetwork(nn.Module):
    """A body, and one head for each task so far."""

    def __init__(self, body: nn.Module, example: torch.Tensor, frozen_norms: bool = True) -> None:
        """Build the network around any body; `example` is one valid input of it."""
        super().__init__()
        self.body, self.heads = body, nn.ModuleList()
        self._example, self._frozen_norms = example, frozen_norms
        with torch.no_grad():
            self.features = int(self.body.eval()(example).shape[1])

    def add_head(self, classes: int, chance: torch.Generator) -> None:
        """Add a head for one more task, initialised like `nn.Linear`."""
        device = next(self.body.parameters()).device
        head = nn.Linear(self.features, classes, device=device)
        bound = 1 / math.sqrt(self.features)
        with torch.no_grad():
            for part in (head.weight, head.bias):
                part.copy_(torch.empty(part.shape).uniform_(-bound, bound, generator=chance))
        self.heads.append(head)
        spans = torch.tensor(self.spans, device=device)
        tasks = torch.arange(len(spans), device=device)
        self.columns = torch.repeat_interleave(tasks, spans), spans.cumsum(0) - spans
        """The task of each column of all heads together, and each task's first column."""

    def train(self, mode: bool = True) -> TaskNetwork:
        super().train(mode)
        if self._frozen_norms:
            for module in self.body.modules():
                if isinstance(module, Norm):
                    module.eval()
        return self

    def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """Return the logits of one task's classes."""
        return self._through([self.heads[position]], x)

    def logits_of_all(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of every task's classes, in the order of the tasks."""
        return self._through(self.heads, x)

    def _through(self, heads: Iterable[nn.Module], x: torch.Tensor) -> torch.Tensor:
        """Run the body, then the heads in full precision: they are small, and rounded logits often tie."""
        features = self.body(x)
        with torch.autocast(features.device.type, enabled=False):
            full = features.to(self.heads[0].weight.dtype)
            return torch.cat([head(full) for head in heads], dim=1)

    @property
    def spans(self) -> list[int]:
        """Number of classes of each task."""
        return [len(head.bias) for head in self.heads]  # type: ignore[arg-type]

    def shared(self) -> dict[str, nn.Parameter]:
        """Return the weights that all tasks train, in which forgetting happens."""
        return dict(self.body.named_parameters())

    @cached_property
    def macs(self) -> tuple[int, int]:
        """MACs of one image through the body: forward, and backward to all weights and all inputs but the first.

        They are not counted with torch's own counter: `skillmesh.numerics.arrays` explains why.
        """
        was_training = self.training
        with torch.no_grad(), counting(layers_of(self.body)) as counted:
            self.eval()
            self.body(self._example)
        self.train(was_training)
        layer_by_layer = [macs for macs in counted.values() if macs]
        forward = sum(layer_by_layer)
        return forward, 2 * forward - layer_by_layer[0]


def bytes_of(tensors: Any) -> int:
    """Return the size of tensors in memory, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
