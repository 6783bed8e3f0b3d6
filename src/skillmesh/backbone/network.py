"""The frozen network: pixels in, raw descriptors out, in one forward pass.

A raw descriptor is the pooled last layer (the *features*), then the mean and then the standard deviation over
space of every tapped module's channels. It is rounded to float16 here, once, so that a descriptor from the cache
and one computed afresh are the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from threading import local
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skillmesh.backbone.allocator import keep_freed_memory
from skillmesh.backbone.biasing import Biased, marking_silent
from skillmesh.backbone.counting import counting
from skillmesh.backbone.folding import fold_batch_norms
from skillmesh.backbone.recording import in_one_go
from skillmesh.backbone.registry import NetworkSpec, spec_of
from skillmesh.backbone.representation import Raw
from skillmesh.backbone.toes import choose_toes
from skillmesh.backbone.weights import build
from skillmesh.data.images import Pixels
from skillmesh.errors import BackboneError
from skillmesh.numerics.threads import cores

TINY = 1e-12
MAX_WIDTH = 8192
"""Widest descriptor: what a module stores grows with it."""


class Network:
    """A frozen image network that describes images.

    On a CPU every image runs alone on one thread, and several images run side by side. That is as fast as
    batches on all threads (lite0: faster, since the activations of one image fit the cache), and what comes out
    depends neither on the batch nor on the number of threads.
    """

    def __init__(self, name: str = "lite0", weights: Path | None = None, device: str | None = None) -> None:
        spec = spec_of(name)
        model = build(spec, weights).eval().requires_grad_(False)
        self.spec = completed(spec, model)
        self.device = usable_device(device)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.fingerprint = _fingerprint(self.spec, model)
        self.parameters = sum(p.numel() for p in model.parameters())
        taps = {path: model.get_submodule(path) for path in self.spec.taps or ()}
        self.features, self.channels = _probe_widths(model, taps, self.size, name)
        self.width = self.features + 2 * sum(self.channels.values())
        if self.spec.fold:
            fold_batch_norms(model)
        self._mean, self._std = (
            torch.tensor(values, device=self.device).mul(255).view(1, 3, 1, 1)
            for values in (self.spec.mean, self.spec.std)
        )
        self.model = model.to(self.device, memory_format=torch.channels_last)
        self._scratch = local()  # several threads run the network at once
        self.places = self.twin.places
        self.base = self.twin.base
        example = self.noise(), self.base
        self._run = in_one_go(self._raw, example) if self.device.type == "cpu" else self._raw

    @property
    def size(self) -> int:
        """Width and height of the images that the network takes."""
        assert self.spec.size is not None
        return self.spec.size

    def biases(self, added: NDArray[np.floating]) -> torch.Tensor:
        """Make what `forward` takes: the network's own biases with a task's added."""
        return self.base + torch.from_numpy(added.astype(np.float32)).to(self.device)

    def describe_one(self, image: Pixels, biases: torch.Tensor | None = None) -> Raw:
        """Describe one image; on a CPU in a thread of `one_thread_each`, of which callers may run many."""
        raw: Raw = self.forward(image[None], biases)[0]
        return raw

    def forward(self, images: Pixels, biases: torch.Tensor | None = None, recorded: bool = True) -> Raw:
        """Describe a batch (n, size, size, 3) in one pass, with other biases than the network's own if any.

        `recorded` is for one image on a CPU; hooks on the `twin` see nothing of a recorded pass.
        """
        with torch.inference_mode(), self._exact():
            run = self._run if recorded and len(images) == 1 else self._raw
            rounded: Raw = run(self._on_device(images), self.base if biases is None else biases).cpu().numpy()
            return rounded

    @property
    def twin(self) -> Biased:
        """This thread's own: layers point at the biases that it runs with."""
        if not hasattr(self._scratch, "twin"):
            self._scratch.twin = twin = Biased(self.model)
            for path, channels in self.channels.items():
                twin.model.get_submodule(path).register_forward_hook(self._pooling_hook(channels))
        found: Biased = self._scratch.twin
        return found

    def _on_device(self, images: Pixels) -> torch.Tensor:
        return torch.tensor(images, device=self.device)

    def _raw(self, images: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
        return self.exact_raw(images, biases).clamp(-65504, 65504).to(torch.float16)

    def exact_raw(self, images: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
        """Raw descriptors before they are rounded, by operations that can be differentiated."""
        self._scratch.pooled = []
        features = self.twin(self.normalised(images), biases)
        means, stds = zip(*self._scratch.pooled, strict=True) if self._scratch.pooled else ((), ())
        return torch.cat([features.float(), *means, *stds], dim=1)

    def noise(self, size: int | None = None) -> torch.Tensor:
        """An image that shows nothing, always the same."""
        shape = (1, size or self.size, size or self.size, 3)
        chance = torch.Generator().manual_seed(0)
        return torch.randint(256, shape, dtype=torch.uint8, generator=chance).to(self.device)

    def _exact(self) -> AbstractContextManager[None]:
        """No TF32: modules travel between agents with and without a GPU, whose descriptors must agree."""
        if self.device.type != "cuda":
            return nullcontext()
        exact: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        return exact

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        # The permuted view of NHWC pixels is what torch calls channels-last.
        return (images.permute(0, 3, 1, 2) - self._mean) / self._std

    def _pooling_hook(self, channels: int) -> Any:
        def pool(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            self._scratch.pooled.append(self.mean_and_std(output, channels))

        return pool

    @staticmethod
    def mean_and_std(output: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each channel, over space."""
        rows = _rows(output, channels)
        mean = rows.mean(dim=1, keepdim=True)
        # Two passes, not var_mean: the same numbers, and 28 × faster on CPU in this memory layout.
        variance = (rows - mean).square().mean(dim=1)
        if torch.is_grad_enabled():  # the root of nothing has no gradient
            variance = variance.clamp_min(TINY)
        return mean[:, 0].float(), variance.sqrt().float()

    @cached_property
    def forward_macs(self) -> int:
        """Of one image."""
        return sum(self.layer_macs())

    @property
    def toe_sizes(self) -> tuple[int, int, int]:
        """Channels, side of their grids, and features of a Head2Toe head over this network."""
        toes = choose_toes(np.zeros(len(self.base)))
        return len(toes.channels), toes.grid, self.features

    def layer_macs(self, size: int | None = None) -> list[int]:
        """Multiply–accumulates of each layer for one image of this size, in the order of `places`."""
        layers = {place.path: self.twin.model.get_submodule(place.path) for place in self.places}
        with torch.inference_mode(), counting(layers) as counted:
            self._raw(self.noise(size), self.base)
        return list(counted.values())


def usable_device(name: str | None) -> torch.device:
    """Return the device asked for, or the best there is; say so where it cannot be used."""
    try:
        device = torch.device(name or best_device())
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = shorten(str(error), 120, placeholder=" …")
        here = " or ".join(dict.fromkeys(("cpu", best_device())))
        raise BackboneError(f"the device {name!r} cannot be used ({reason}); expected {here}") from error
    return device


def best_device() -> str:
    """cuda, mps or cpu: what is there."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def cpu_workers() -> int:
    """How many images are described side by side: as many as torch would take threads."""
    if limit := os.environ.get("SKILLMESH_THREADS"):
        if not limit.isdecimal() or int(limit) < 1:
            raise BackboneError(f"SKILLMESH_THREADS is {limit!r}; expected a number from 1 up")
        return int(limit)
    return cores()


def _rows(output: torch.Tensor, channels: int) -> torch.Tensor:
    """Reshape NCHW, NHWC or token outputs to (n, places, channels)."""
    if output.ndim == 4 and output.shape[1] == channels:
        return output.permute(0, 2, 3, 1).flatten(1, 2)
    if output.shape[-1] == channels:
        return output.flatten(1, -2)
    raise BackboneError(f"a tap gave shape {tuple(output.shape)}; expected {channels} channels second or last")


def completed(spec: NetworkSpec, model: Any) -> NetworkSpec:
    """Fill in what the spec leaves to timm's card of the network."""
    card = model.pretrained_cfg
    return NetworkSpec(
        name=spec.name,
        timm_name=spec.timm_name,
        size=spec.size or int(card["input_size"][-1]),
        mean=spec.mean or tuple(card["mean"]),
        std=spec.std or tuple(card["std"]),
        taps=spec.taps if spec.taps is not None else _default_taps(model),
        fold=spec.fold,
    )


def _default_taps(model: Any) -> tuple[str, ...]:
    """Pick the stages that timm lists, as many as fit `MAX_WIDTH`, evenly over the depth.

    A last stage as wide as the features is left out: its mean is the features themselves.
    """
    known = {name for name, _ in model.named_modules()}
    stages = [(s["module"], int(s["num_chs"])) for s in getattr(model, "feature_info", []) if s["module"] in known]
    features = getattr(model, "head_hidden_size", None) or model.num_features
    if stages and stages[-1][1] == features:
        stages.pop()
    for step in range(1, len(stages) + 1):
        chosen = stages[::step]
        if features + 2 * sum(n for _, n in chosen) <= MAX_WIDTH:
            return tuple(path for path, _ in chosen)
    return ()


def _probe_widths(model: Any, taps: dict[str, nn.Module], size: int, name: str) -> tuple[int, dict[str, int]]:
    """Read off one pass how many features and channels per tap there are; a network that cannot run shows here."""
    stages = {s["module"]: int(s["num_chs"]) for s in getattr(model, "feature_info", [])}
    channels: dict[str, int] = {}

    def reading(path: str) -> Any:
        def read(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            channels[path] = stages.get(path, output.shape[1] if output.ndim == 4 else output.shape[-1])

        return read

    hooks = [module.register_forward_hook(reading(path)) for path, module in taps.items()]
    with torch.inference_mode(), marking_silent(model):
        features = model(torch.zeros(1, 3, size, size))
    for hook in hooks:
        hook.remove()
    if features.ndim != 2 or set(channels) != set(taps):
        raise BackboneError(
            f"{name!r} cannot be a backbone: it gives {tuple(features.shape)} for one image, "
            f"expected (1, features) and an output of each of {', '.join(taps)}"
        )
    return features.shape[1], channels


def _fingerprint(spec: NetworkSpec, model: nn.Module) -> str:
    """Hash everything that decides what a raw descriptor is: architecture, input, taps and weights."""
    card = {"timm": spec.timm_name, "size": spec.size, "mean": spec.mean, "std": spec.std, "taps": spec.taps}
    digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not name.endswith("num_batches_tracked"):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()
