"""Convolutions that keep less: the same outputs and gradients, with less memory."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from skillmesh.backbone.suffix import KeepLess

SHAPES = {
    "plain": ((2, 3, 9, 9), (8, 3, 3, 3), {}),
    "strided": ((2, 3, 9, 9), (8, 3, 3, 3), {"stride": 2, "padding": 1}),
    "depthwise": ((2, 6, 9, 9), (6, 1, 3, 3), {"groups": 6, "padding": 1}),
    "dilated": ((2, 4, 9, 9), (4, 2, 3, 3), {"groups": 2, "dilation": 2}),
}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", SHAPES)
def test_outputs_and_gradients_are_torchs_own(kind: str, layout: torch.memory_format, biased: bool):
    images, weights, how = SHAPES[kind]
    x = torch.randn(images).to(memory_format=layout).requires_grad_()
    weight, bias = torch.randn(weights), torch.randn(weights[0], requires_grad=True) if biased else None
    wanted = [x, bias] if bias is not None else [x]

    def run() -> tuple[torch.Tensor, ...]:
        output = torch.nn.functional.conv2d(x, weight, bias, **how)
        return output, *torch.autograd.grad(output.square().sum(), wanted)

    expected = run()
    with KeepLess():
        found = run()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def kept_bytes(x: torch.Tensor, weight: torch.Tensor) -> int:
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        torch.nn.functional.conv2d(x, weight, torch.zeros(len(weight), requires_grad=True))
    return sum(kept)


def test_only_frozen_weights_are_kept():
    x, weight = torch.randn(4, 3, 32, 32, requires_grad=True), torch.randn(8, 3, 3, 3)
    assert kept_bytes(x, weight) > x.numel() * 4
    with KeepLess():
        assert kept_bytes(x, weight) == weight.numel() * 4


def test_weights_that_are_trained_have_their_gradient():
    x, weight = torch.randn(1, 3, 9, 9), torch.randn(8, 3, 3, 3, requires_grad=True)
    with KeepLess():
        torch.nn.functional.conv2d(x, weight).sum().backward()
    assert weight.grad is not None
