"""Convolutions with frozen weights that keep nothing for the way back but those weights.

torch keeps the input of every convolution, for the gradient of its weights. Where weights are frozen nobody wants
that; without it, training biases takes half the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input
from torch.overrides import TorchFunctionMode


class KeepLess(TorchFunctionMode):
    """While it is entered, convolutions with frozen weights keep no inputs."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and torch.is_grad_enabled():
            return _conv2d(*args, **kwargs)
        return func(*args, **kwargs)


def _conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    if weight.requires_grad or isinstance(padding, str):
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    how = stride, padding, dilation, groups
    output: torch.Tensor = _FrozenConvolution.apply(x, weight, bias, *how)  # type: ignore[no-untyped-call]
    return output


class _FrozenConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *how: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.input, ctx.how, ctx.biased = (x.shape, x.dtype), how, bias is not None
        return torch.conv2d(x, weight, bias, *how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (weight,), (shape, dtype) = ctx.saved_tensors, ctx.input
        towards = along = None
        if ctx.needs_input_grad[0]:
            towards = conv2d_input(shape, weight.to(gradient.dtype), gradient, *ctx.how).to(dtype)  # type: ignore[no-untyped-call]
        if ctx.biased and ctx.needs_input_grad[2]:
            along = gradient.sum(dim=(0, 2, 3), dtype=torch.float32)
        return towards, None, along, *(None for _ in ctx.how)
