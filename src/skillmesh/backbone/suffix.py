"""The last part of a network, run from stored activations; and the cost of a forward and backward pass.

Biases of later layers do not change earlier activations. So the network is cut after the last stage that comes
before all biased layers. That stage's output is computed once and kept, and training runs from there.
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

from skillmesh.backbone.building import Biased, twin_of
from skillmesh.backbone.spec import Place

if TYPE_CHECKING:
    from skillmesh.backbone.torch_network import TorchNetwork

# Convolutions with frozen weights that keep only those weights for the backward pass.
#
# torch keeps the input of every convolution, for the gradient of its weights. Frozen weights need no gradient;
# without the inputs, training biases takes half the memory.


class KeepLess(TorchFunctionMode):
    """Context in which convolutions with frozen weights do not keep their inputs."""

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
        of_input = of_bias = None
        if ctx.needs_input_grad[0]:
            of_input = conv2d_input(shape, weight.to(gradient.dtype), gradient, *ctx.how).to(dtype)  # type: ignore[no-untyped-call]
        if ctx.biased and ctx.needs_input_grad[2]:
            of_bias = gradient.sum(dim=(0, 2, 3), dtype=torch.float32)
        return of_input, None, of_bias, *(None for _ in ctx.how)


MOST_KEPT = 4 << 30
"""Maximum bytes of kept activations; above it the first layers run each time: slower, but no more memory."""


class Start(NamedTuple):
    """Input of the last part: activations at the cut, and what earlier stages add to the raw descriptor."""

    activations: torch.Tensor
    means: torch.Tensor
    stds: torch.Tensor


class Suffix:
    """The part of a network after a cut, or all of it if there is no cut."""

    def __init__(self, network: TorchNetwork, biased: Sequence[Place], images: int = 0) -> None:
        """Cut before the `biased` layers, unless the activations of this number of images take too much memory."""
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
        """Index of the first layer after the cut."""
        for path in taps[len(early) :]:
            self._end.model.get_submodule(path).register_forward_hook(self._pooling(network.channels[path]))

    def begin(self, images: torch.Tensor) -> Start:
        """Run up to the cut, once for all epochs, and return the input of `raw`."""
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
        """Return raw descriptors before rounding. `biases` covers all layers; those before the cut are ignored."""
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
        """Return the number of bytes that are kept for one image."""
        return sum(part.nbytes for part in self.begin(self._network.noise()))

    def _agrees(self) -> bool:
        """Return whether the network is a plain sequence of stages at the cut, so that the end can run alone."""
        noise = self._network.noise()
        try:
            with torch.no_grad():
                whole = self._network.exact_raw(noise, self._network.base)
                return torch.allclose(self.raw(self.begin(noise), self._network.base), whole, rtol=1e-3, atol=1e-3)
        except Exception:  # the next stage needs more than the output of the stage at the cut
            return False

    def _pooling(self, channels: int):  # type: ignore[no-untyped-def]
        def pool(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
            self._pooled.append(self._network.mean_and_std(output, channels))

        return pool


class _Stored(nn.Module):
    """Replaces the stage at the cut and returns its stored output."""

    output: torch.Tensor

    def forward(self, *_: torch.Tensor) -> torch.Tensor:
        return self.output


def _cut(network: TorchNetwork, first: int) -> str | None:
    """Return the path of the last tapped stage whose layers all come before the biased ones, if any."""
    best = None
    for path in network.channels:
        ends = [place.part.stop for place in network.places if f"{place.path}.".startswith(f"{path}.")]
        if ends and max(ends) <= first:
            best = path
    return best


def _from(model: nn.Module, cut: str) -> nn.Module:
    """Return a copy in which everything before the cut is an identity, and the cut gives the stored output."""
    end = parent = twin_of(model)
    *above, last = cut.split(".")
    for name in above:
        _bypass_before(parent, name)
        parent = parent.get_submodule(name)
    _bypass_before(parent, last)
    setattr(parent, last, _Stored())
    return end


def _bypass_before(parent: nn.Module, name: str) -> None:
    """Replace the children before this one by identities."""
    children = [child for child, _ in parent.named_children()]
    for before in children[: children.index(name)]:
        setattr(parent, before, nn.Identity())


# Cost of one image in a network, in multiply–accumulates (MACs) per layer.


@dataclass(frozen=True)
class PassCosts:
    """MACs of one image for each layer, in the order of the network's places."""

    layers: tuple[int, ...]

    @property
    def forward(self) -> int:
        return sum(self.layers)

    def from_layer(self, first: int) -> int:
        """Return the MACs of the forward pass from this layer on."""
        return sum(self.layers[first:])

    def backward(self, first: int) -> int:
        """Return the MACs of the backward pass to this first biased layer, through all layers after it."""
        return sum(self.layers[first + 1 :])


def pass_costs(network: TorchNetwork, size: int | None = None) -> PassCosts:
    """Return the costs, measured in one pass, for images of the network's size or of another."""
    return PassCosts(tuple(network.layer_macs(size)))


def first_of(chosen: Sequence[Place], places: Sequence[Place]) -> int:
    """Return the index of the first chosen layer among all."""
    return min(places.index(place) for place in chosen)
