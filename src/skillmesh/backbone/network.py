"""The frozen network: pixels in, raw descriptors out, in one forward pass; many images in parallel.

A raw descriptor is the pooled last layer (the *features*), then the mean and then the standard deviation over
space of every tapped module's channels. It is rounded to float16 immediately, so that cached and newly computed
descriptors are the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from threading import local
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skillmesh.backbone.backbone import DescriptorCache, content_key
from skillmesh.backbone.building import (
    Biased,
    NetworkSpec,
    build,
    fold_batch_norms,
    marking_uncalled,
    record_pass,
    spec_of,
)
from skillmesh.backbone.calibration import Raw
from skillmesh.backbone.toes import choose_toes, toe_features
from skillmesh.data.images import CONTENTS, Pixels, UnreadableImageError
from skillmesh.data.inputs import AnyImage, Unreadable, read_pixels
from skillmesh.errors import BackboneError
from skillmesh.numerics.arrays import Floats, spend
from skillmesh.numerics.process import Advance, cores, keep_freed_memory, one_thread_each


@contextmanager
def counting(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, int]]:
    """Yield a dict that counts multiply–accumulates of these layers in this context, by name, over all images."""
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
        for handle in hooks:
            handle.remove()


TINY = 1e-12
MAX_WIDTH = 8192
"""Maximum width of a raw descriptor; the size of modules grows with it."""


class Network:
    """A frozen image network that computes raw descriptors of images.

    On a CPU every image runs alone on one thread, and several images run in parallel. That is as fast as batches
    on all threads (lite0: faster, since the activations of one image fit in the CPU's cache), and the result
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
        self._run = record_pass(self._raw, example) if self.device.type == "cpu" else self._raw

    @property
    def size(self) -> int:
        """Width and height of the network's input images, in pixels."""
        assert self.spec.size is not None
        return self.spec.size

    def biases(self, added: NDArray[np.floating]) -> torch.Tensor:
        """Return the vector that `forward` expects: the network's own biases plus those of a task."""
        return self.base + torch.from_numpy(added.astype(np.float32)).to(self.device)

    def describe_one(self, image: Pixels, biases: torch.Tensor | None = None) -> Raw:
        """Return one image's raw descriptor; on a CPU, callers may run it in many threads of `one_thread_each`."""
        raw: Raw = self.forward(image[None], biases)[0]
        return raw

    def forward(self, images: Pixels, biases: torch.Tensor | None = None, recorded: bool = True) -> Raw:
        """Return the raw descriptors of a batch (n, size, size, 3); `biases` replace the network's own if given.

        `recorded` matters only for one image on a CPU; hooks on the `twin` are not called in a recorded pass.
        """
        with torch.inference_mode(), self._exact():
            run = self._run if recorded and len(images) == 1 else self._raw
            rounded: Raw = run(self._on_device(images), self.base if biases is None else biases).cpu().numpy()
            return rounded

    @property
    def twin(self) -> Biased:
        """This thread's own copy of the network, because layers point at the biases of the current pass."""
        if not hasattr(self._scratch, "twin"):
            self._scratch.twin = twin = Biased(self.model)
            for path, channels in self.channels.items():
                twin.model.get_submodule(path).register_forward_hook(self._pooling_hook(channels))
        own: Biased = self._scratch.twin
        return own

    def _on_device(self, images: Pixels) -> torch.Tensor:
        return torch.tensor(images, device=self.device)

    def _raw(self, images: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
        return self.exact_raw(images, biases).clamp(-65504, 65504).to(torch.float16)

    def exact_raw(self, images: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
        """Return raw descriptors before rounding, by differentiable operations."""
        self._scratch.pooled = []
        features = self.twin(self.normalised(images), biases)
        means, stds = zip(*self._scratch.pooled, strict=True) if self._scratch.pooled else ((), ())
        return torch.cat([features.float(), *means, *stds], dim=1)

    def noise(self, size: int | None = None) -> torch.Tensor:
        """Return an image of random pixels, always the same."""
        shape = (1, size or self.size, size or self.size, 3)
        generator = torch.Generator().manual_seed(0)
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(self.device)

    def _exact(self) -> AbstractContextManager[None]:
        """Return a context without TF32: descriptors of agents with and without a GPU must agree."""
        if self.device.type != "cuda":
            return nullcontext()
        exact: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        return exact

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        # The permuted view of NHWC pixels has torch's channels-last layout.
        return (images.permute(0, 3, 1, 2) - self._mean) / self._std

    def _pooling_hook(self, channels: int) -> Any:
        def pool(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            self._scratch.pooled.append(self.mean_and_std(output, channels))

        return pool

    @staticmethod
    def mean_and_std(output: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and the standard deviation of each channel over space."""
        rows = _rows(output, channels)
        mean = rows.mean(dim=1, keepdim=True)
        # Two passes, not var_mean: the same numbers, and 28 × faster on CPU in this memory layout.
        variance = (rows - mean).square().mean(dim=1)
        if torch.is_grad_enabled():  # the square root has no finite gradient at 0
            variance = variance.clamp_min(TINY)
        return mean[:, 0].float(), variance.sqrt().float()

    @cached_property
    def forward_macs(self) -> int:
        """MACs of the forward pass of one image."""
        return sum(self.layer_macs())

    @property
    def toe_sizes(self) -> tuple[int, int, int]:
        """Number of channels, side of their grids, and number of features of a Head2Toe head over this network."""
        toes = choose_toes(np.zeros(len(self.base)))
        return len(toes.channels), toes.grid, self.features

    def layer_macs(self, size: int | None = None) -> list[int]:
        """Return the multiply–accumulates of each layer for one image of this size, in the order of `places`."""
        layers = {place.path: self.twin.model.get_submodule(place.path) for place in self.places}
        with torch.inference_mode(), counting(layers) as counted:
            self._raw(self.noise(size), self.base)
        return list(counted.values())


def usable_device(name: str | None) -> torch.device:
    """Return the named device, or the best available; raise `BackboneError` if it cannot be used."""
    try:
        device = torch.device(name or best_device())
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = shorten(str(error), 120, placeholder=" …")
        usable = " or ".join(dict.fromkeys(("cpu", best_device())))
        raise BackboneError(f"the device {name!r} cannot be used ({reason}); expected {usable}") from error
    return device


def best_device() -> str:
    """Return the best available device: cuda, mps or cpu."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def cpu_workers() -> int:
    """Return the number of images that are described in parallel: `SKILLMESH_THREADS`, or the number of cores."""
    if limit := os.environ.get("SKILLMESH_THREADS"):
        if not limit.isdecimal() or int(limit) < 1:
            raise BackboneError(f"SKILLMESH_THREADS is {limit!r}; expected a number of at least 1")
        return int(limit)
    return cores()


def _rows(output: torch.Tensor, channels: int) -> torch.Tensor:
    """Return NCHW, NHWC or token outputs as (n, places, channels)."""
    if output.ndim == 4 and output.shape[1] == channels:
        return output.permute(0, 2, 3, 1).flatten(1, 2)
    if output.shape[-1] == channels:
        return output.flatten(1, -2)
    raise BackboneError(f"tap output has shape {tuple(output.shape)}; expected {channels} channels second or last")


def completed(spec: NetworkSpec, model: Any) -> NetworkSpec:
    """Return the spec with missing fields taken from timm's configuration of the network."""
    config = model.pretrained_cfg
    return NetworkSpec(
        name=spec.name,
        timm_name=spec.timm_name,
        size=spec.size or int(config["input_size"][-1]),
        mean=spec.mean or tuple(config["mean"]),
        std=spec.std or tuple(config["std"]),
        taps=spec.taps if spec.taps is not None else _default_taps(model),
        fold=spec.fold,
    )


def _default_taps(model: Any) -> tuple[str, ...]:
    """Return the stages that timm lists, as many as fit in `MAX_WIDTH`, evenly over the depth.

    A last stage as wide as the features is left out: its mean equals the features.
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
    """Run once; return the number of features, and of channels per tap. Raise if it cannot be a backbone."""
    stages = {s["module"]: int(s["num_chs"]) for s in getattr(model, "feature_info", [])}
    channels: dict[str, int] = {}

    def reading(path: str) -> Any:
        def read(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            channels[path] = stages.get(path, output.shape[1] if output.ndim == 4 else output.shape[-1])

        return read

    hooks = [module.register_forward_hook(reading(path)) for path, module in taps.items()]
    with torch.inference_mode(), marking_uncalled(model):
        features = model(torch.zeros(1, 3, size, size))
    for hook in hooks:
        hook.remove()
    if features.ndim != 2 or set(channels) != set(taps):
        raise BackboneError(
            f"{name!r} cannot be a backbone: its output for one image has shape {tuple(features.shape)}, "
            f"expected (1, features) and an output of each of {', '.join(taps)}"
        )
    return features.shape[1], channels


def _fingerprint(spec: NetworkSpec, model: nn.Module) -> str:
    """Return the hash of everything that determines raw descriptors: architecture, input, taps and weights."""
    card = {"timm": spec.timm_name, "size": spec.size, "mean": spec.mean, "std": spec.std, "taps": spec.taps}
    digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if not name.endswith("num_batches_tracked"):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


# Raw descriptors of many images: read, decode and describe in parallel, with a cache before the network.

GPU_BATCH = 64
WINDOW = 256
"""Number of images processed at once; limits the memory, and the work that is lost if the process is killed."""


@dataclass
class Described:
    """Raw descriptors of the readable images, and a list of the unreadable ones."""

    raw: Raw
    readable: NDArray[np.int64]
    """For each row of `raw`, the index of its image in the input."""
    unreadable: list[Unreadable] = field(default_factory=list)
    fresh: int = 0
    """Number of images that were not in the cache."""
    keys: list[bytes] = field(default_factory=list)
    """For each row of `raw`, a hash of its image's content: equal files have equal keys."""


def describe(
    network: Network,
    images: Sequence[AnyImage],
    cache: DescriptorCache | None = None,
    progress: Advance | None = None,
    biases: torch.Tensor | None = None,
) -> Described:
    """Return raw descriptors of all readable images, and list the others. Pass no cache together with biases."""
    rows: list[Raw] = []
    readable: list[int] = []
    unreadable: list[Unreadable] = []
    keys: list[bytes] = []
    fresh = 0
    with one_thread_each(cpu_workers()) as pool:
        for start in range(0, len(images), WINDOW):
            window = images[start : start + WINDOW]
            items = list(pool.map(partial(_prepare, network, cache, biases), window))
            _describe_the_rest(network, items, biases)
            for index, item in enumerate(items, start):
                if item.raw is None:
                    unreadable.append(Unreadable(images[index].name, item.reason))
                else:
                    rows.append(item.raw)
                    readable.append(index)
                    keys.append(item.key)
            fresh += sum(item.fresh for item in items)
            if cache is not None:
                cache.put([(item.key, item.raw) for item in items if item.fresh and item.raw is not None])
            if progress is not None:
                progress(len(window))
    spend("forward", len(rows) * network.forward_macs)
    raw = np.stack(rows) if rows else np.empty((0, network.width), dtype=np.float16)
    return Described(raw, np.array(readable, dtype=np.int64), unreadable, fresh, keys)


@dataclass
class _Item:
    """One image in progress: its descriptor, or the pixels still to be described, or why it is unreadable."""

    key: bytes = b""
    raw: Raw | None = None
    pixels: Pixels | None = None
    reason: str = ""
    fresh: bool = False
    """Whether it was not in the cache."""


def _prepare(
    network: Network, cache: DescriptorCache | None, biases: torch.Tensor | None, image: AnyImage
) -> _Item:
    """Do the work of one thread for one image: everything on a CPU, everything but the forward pass on a GPU."""
    try:
        with CONTENTS.taken(image.size()):
            content = image.content()
            key = content_key(content)
            if cache is not None and (known := cache.get(key)) is not None:
                return _Item(key, raw=known)
            pixels = image.pixels(content, network.size)
            del content
    except UnreadableImageError as error:
        return _Item(reason=str(error))
    if network.device.type == "cpu":
        return _Item(key, raw=network.describe_one(pixels, biases), fresh=True)
    return _Item(key, pixels=pixels, fresh=True)


def _describe_the_rest(network: Network, items: list[_Item], biases: torch.Tensor | None) -> None:
    waiting = [item for item in items if item.pixels is not None]
    for start in range(0, len(waiting), GPU_BATCH):
        batch = waiting[start : start + GPU_BATCH]
        pixels = np.stack([item.pixels for item in batch if item.pixels is not None])
        for item, raw in zip(batch, network.forward(pixels, biases), strict=True):
            item.raw, item.pixels = raw, None


def describe_toes(network: Network, images: Sequence[AnyImage], added: Floats) -> Floats:
    """Return a Head2Toe head's inputs for readable images; on a CPU each image runs alone, several in parallel."""
    toes, biases = choose_toes(added), network.biases(added)
    on_cpu = network.device.type == "cpu"

    def describe_batch(batch: Sequence[AnyImage]) -> Floats:
        pixels = np.stack([read_pixels(image, network.size) for image in batch])
        return toe_features(network, pixels, biases, toes)

    size = 1 if on_cpu else GPU_BATCH
    batches = [images[start : start + size] for start in range(0, len(images), size)]
    with one_thread_each(cpu_workers() if on_cpu else 1) as pool:
        spend("forward", len(images) * network.forward_macs)
        return np.concatenate(list(pool.map(describe_batch, batches)))
