"""Count what layers multiply while images run through a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def counting(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, int]]:
    """Multiply–accumulates of convolutions and linear layers inside, by their names; all images together."""
    counted = dict.fromkeys(layers, 0)

    def hook(path: str) -> Any:
        def count(layer: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            assert isinstance(layer.weight, torch.Tensor)
            counted[path] += output.numel() * layer.weight[0].numel()

        return count

    hooks = [layer.register_forward_hook(hook(path)) for path, layer in layers.items()]
    try:
        yield counted
    finally:
        for one in hooks:
            one.remove()
