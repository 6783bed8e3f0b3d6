"""The end of a network, run from activations that are computed once, and what a pass of it costs.

Biases of later layers leave all earlier activations as they are. So the network is cut behind the last stage that
no biased layer precedes; what comes out of it is kept, and training runs from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input
from torch.overrides import TorchFunctionMode

from skillmesh.backbone.building import Biased, Place, twin_of

if TYPE_CHECKING:
    from skillmesh.backbone.network import Network

# Convolutions with frozen weights that keep nothing for the way back but those weights.
#
# torch keeps the input of every convolution, for the gradient of its weights. Where weights are frozen nobody
# wants that; without it, training biases takes half the memory.


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


MOST_KEPT = 4 << 30
"""Bytes of activations; to run the first layers again takes longer, and no more room."""


class Start(NamedTuple):
    """Where the end goes on from: activations, and what earlier stages add to the raw descriptor."""

    activations: torch.Tensor
    means: torch.Tensor
    stds: torch.Tensor


class Suffix:
    """A network from its cut on; with no cut, all of it."""

    def __init__(self, network: Network, biased: Sequence[Place], images: int = 0) -> None:
        """Cut before the `biased` layers, unless keeping the activations of so many images takes too much room."""
        self._network = network
        self._trained = {place.path for place in biased}
        self._pooled: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._build(_cut(network, min(place.start for place in biased)))
        if self._cut is not None and (not self._agrees() or images * self._kept_bytes() > MOST_KEPT):
            self._build(None)

    def _build(self, cut: str | None) -> None:
        network, taps = self._network, list(self._network.channels)
        self._cut = cut
        early = taps[: taps.index(cut) + 1] if cut else []
        self._early = sum(network.channels[path] for path in early)
        self._end = Biased(network.model if cut is None else _from(network.model, cut))
        self.first = len(network.places) - len(self._end.places)
        """Index of the first layer that runs."""
        for path in taps[len(early) :]:
            self._end.model.get_submodule(path).register_forward_hook(self._pooling(network.channels[path]))

    def begin(self, images: torch.Tensor) -> Start:
        """Run up to the cut, once for all epochs."""
        nothing = torch.empty((len(images), 0), device=images.device)
        if self._cut is None:
            return Start(images, nothing, nothing)
        kept: list[torch.Tensor] = []
        hook = self._network.twin.model.get_submodule(self._cut).register_forward_hook(
            lambda _module, _inputs, output: kept.append(output.clone())
        )
        try:
            with torch.no_grad():
                raw = self._network.exact_raw(images, self._network.base)
        finally:
            hook.remove()
        pooled = raw[:, self._network.features :]
        middle = pooled.shape[1] // 2
        return Start(kept[0], pooled[:, : self._early], pooled[:, middle : middle + self._early])

    def raw(self, start: Start, biases: torch.Tensor) -> torch.Tensor:
        """Raw descriptors before they are rounded. `biases` are all; those before the cut do nothing."""
        self._pooled.clear()
        if self._cut is None:
            pixels = self._network.normalised(start.activations)
        else:
            pixels = self._end.model.get_submodule(self._cut).output = start.activations
        with KeepLess():
            features = self._end(pixels, biases[len(biases) - len(self._end.base) :], self._trained)
        means, stds = zip(*self._pooled, strict=True) if self._pooled else ((), ())
        return torch.cat([features.float(), start.means, *means, start.stds, *stds], dim=1)

    def _kept_bytes(self) -> int:
        """Of one image."""
        return sum(part.nbytes for part in self.begin(self._network.noise()))

    def _agrees(self) -> bool:
        """Whether the network is a plain sequence of stages here, so that its end can run alone."""
        noise = self._network.noise()
        try:
            with torch.no_grad():
                whole = self._network.exact_raw(noise, self._network.base)
                return torch.allclose(self.raw(self.begin(noise), self._network.base), whole, rtol=1e-3, atol=1e-3)
        except Exception:  # a network that wants something else there than its stage gives
            return False

    def _pooling(self, channels: int):  # type: ignore[no-untyped-def]
        def pool(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            self._pooled.append(self._network.mean_and_std(output, channels))

        return pool


class _Given(nn.Module):
    """Stands where the cut is and gives what was kept."""

    output: torch.Tensor

    def forward(self, *_: torch.Tensor) -> torch.Tensor:
        return self.output


def _cut(network: Network, first: int) -> str | None:
    """The last tapped stage all of whose layers come before the biased ones."""
    best = None
    for path in network.channels:
        ends = [place.part.stop for place in network.places if f"{place.path}.".startswith(f"{path}.")]
        if ends and max(ends) <= first:
            best = path
    return best


def _from(model: nn.Module, cut: str) -> nn.Module:
    """A twin in which everything before the cut passes its input on, and the cut gives what was kept."""
    end = parent = twin_of(model)
    *above, last = cut.split(".")
    for name in above:
        _silence_before(parent, name)
        parent = parent.get_submodule(name)
    _silence_before(parent, last)
    setattr(parent, last, _Given())
    return end


def _silence_before(parent: nn.Module, name: str) -> None:
    """Let the children before this one pass their input on."""
    children = [child for child, _ in parent.named_children()]
    for before in children[: children.index(name)]:
        setattr(parent, before, nn.Identity())


# What one image costs in a network, in multiply–accumulates layer by layer.


@dataclass(frozen=True)
class PassCosts:
    """MACs of one image, layer by layer in the order of the network's places."""

    layers: tuple[int, ...]

    @property
    def forward(self) -> int:
        return sum(self.layers)

    def from_layer(self, first: int) -> int:
        """Forward from this layer on."""
        return sum(self.layers[first:])

    def backward(self, first: int) -> int:
        """Backward where the first biased layer is this one: the gradient passes through all layers behind it."""
        return sum(self.layers[first + 1 :])


def pass_costs(network: Network, size: int | None = None) -> PassCosts:
    """Read off one pass how much each layer multiplies, for images of the network's size or another."""
    return PassCosts(tuple(network.layer_macs(size)))


def first_of(chosen: Sequence[Place], places: Sequence[Place]) -> int:
    """The index of the first chosen layer among all."""
    return min(places.index(place) for place in chosen)
