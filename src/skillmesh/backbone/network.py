"""The frozen network: pixels in, raw descriptors out, in one forward pass; many images in parallel.

A raw descriptor is the pooled last layer (the *features*), then the mean and then the standard deviation over
space of every tapped module's channels. It is rounded to float16 immediately, so that cached and newly computed
descriptors are the same numbers.

Two engines compute it: ONNX Runtime (`runtime.py`), which learns and answers without PyTorch, and PyTorch
(`torch_network.py`) for training adaptations, for GPUs and for networks that were not exported. Their descriptors
differ by rounding; the fingerprint is the same, since it is that of network and weights.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from skillmesh.backbone.backbone import DescriptorCache, content_key
from skillmesh.backbone.calibration import Raw
from skillmesh.backbone.spec import NetworkSpec, Place, Toes, choose_toes, refuse_missing, runs_on_onnx
from skillmesh.common.extras import TORCH
from skillmesh.data.images import CONTENTS, Pixels, UnreadableImageError, thumbnail
from skillmesh.data.inputs import AnyImage, Unreadable, read_pixels
from skillmesh.data.views import ViewedImage
from skillmesh.errors import BackboneError, DeviceError
from skillmesh.numerics.arrays import Floats, spend
from skillmesh.numerics.process import Advance, cores, one_thread_each

if TYPE_CHECKING:
    from skillmesh.backbone.torch_network import TorchNetwork

log = logging.getLogger(__name__)

LARGEST_HALF = 65504.0
"""Largest number of float16."""


@dataclass(frozen=True)
class Origin:
    """What a network was loaded by, so that the other engine can load the same one."""

    name: str
    weights: Path | None = None
    device: str | None = None
    """The device that the user named."""


class Network(ABC):
    """A frozen image network that computes raw descriptors of images, whichever engine runs it.

    On a CPU every image runs alone on one thread, and several images run in parallel. That is as fast as batches
    on all threads (lite0: faster, since the activations of one image fit in the CPU's cache), and the result
    depends neither on the batch nor on the number of threads.
    """

    spec: NetworkSpec
    fingerprint: str
    """Hash of everything that determines raw descriptors: architecture, input, taps and weights."""
    parameters: int
    features: int
    """Number of features, the first part of a raw descriptor."""
    channels: dict[str, int]
    """Number of channels of each tap."""
    places: tuple[Place, ...]
    """The layers that can have biases, in the order of the vector of biases."""
    forward_macs: int
    """MACs of the forward pass of one image."""
    on_cpu: bool
    single_threaded: bool
    """Whether a pass takes one thread in whichever thread it runs, without changing settings of that thread."""
    engine: ClassVar[str]
    """Name of the engine that runs it: `onnx` or `torch`."""
    cached_as: str | None = None
    """What its descriptors are cached as, if not by its engine alone: other graphs may give others."""
    origin: Origin | None = None
    """What `load_network` loaded it by; `None` if it was made in another way."""

    @abstractmethod
    def forward(self, images: Pixels, added: Floats | None = None) -> Raw:
        """Return the raw descriptors of a batch (n, size, size, 3), with a task's biases added if given."""

    @abstractmethod
    def toe_features(self, images: Pixels, added: Floats, toes: Toes) -> Floats:
        """Return the features, then the grid of each chosen channel, with a task's biases added."""

    def describe_one(self, image: Pixels, added: Floats | None = None) -> Raw:
        """Return one image's raw descriptor; on a CPU, callers may run it in many threads of `one_thread_each`."""
        raw: Raw = self.forward(image[None], added)[0]
        return raw

    @property
    def size(self) -> int:
        """Width and height of the network's input images, in pixels."""
        assert self.spec.size is not None
        return self.spec.size

    @property
    def width(self) -> int:
        """Number of values of a raw descriptor."""
        return self.features + 2 * sum(self.channels.values())

    @property
    def bias_count(self) -> int:
        """Number of biases: one for each output channel of each layer."""
        last = self.places[-1]
        return last.start + last.channels

    @property
    def toe_sizes(self) -> tuple[int, int, int]:
        """Number of channels, side of their grids, and number of features of a Head2Toe head over this network."""
        toes = choose_toes(np.zeros(self.bias_count))
        return len(toes.channels), toes.grid, self.features


def load_network(name: str = "lite0", weights: Path | None = None, device: str | None = None) -> Network:
    """Return a network on the engine that fits, on the named device or the best one.

    lite0 and exported networks (`weights` is their folder) run on ONNX Runtime. All others, and GPUs that PyTorch
    can use, run on PyTorch. `SKILLMESH_ENGINE` chooses another engine. A `name` that a user typed may be a folder:
    `resolve` it first.
    """
    refuse_missing(name, weights)
    engine = chosen_engine() or _fitting_engine(name, weights, device)
    if engine == "torch":
        network: Network = load_torch_network(name, weights, device)
    else:
        network = _load_onnx_network(name, weights, device)
    network.origin = Origin(name, None if weights is None else weights.absolute(), device)
    return network


def _load_onnx_network(name: str, weights: Path | None, device: str | None) -> Network:
    if not runs_on_onnx(name, weights):
        raise BackboneError(
            f"SKILLMESH_ENGINE is 'onnx', but the backbone {name!r} is not exported; expected lite0 or the folder "
            f"of an exported network; export it with `skillmesh backbone {name} --export DIR`, or unset "
            "SKILLMESH_ENGINE"
        )
    from skillmesh.backbone.runtime import OnnxNetwork, usable_device

    def opened(device: str) -> Network:
        if weights is not None and weights.is_dir():
            return OnnxNetwork.open(weights, device)
        return OnnxNetwork.lite0(weights, device)

    usable = usable_device(device, sign_of_gpu())
    try:
        return opened(usable)
    except DeviceError as error:
        if device is not None:
            raise
        log.warning("%s; using the CPU", error)
        return opened("cpu")


def load_torch_network(name: str, weights: Path | None = None, device: str | None = None) -> TorchNetwork:
    """Return a network on PyTorch; raise `BackboneError` without the extra `torch`."""
    require_torch("SKILLMESH_ENGINE=torch" if chosen_engine() == "torch" else f"the backbone {name!r}")
    loaded: TorchNetwork = torch_networks().TorchNetwork(name, weights, device)
    return loaded


def torch_networks() -> ModuleType:
    """Return the module of networks on PyTorch; raise `BackboneError` if PyTorch is there but cannot be loaded."""
    try:
        from skillmesh.backbone import torch_network
    except (ImportError, OSError) as error:  # missing or unfitting libraries
        raise BackboneError(
            f"PyTorch is installed, but cannot be loaded ({str(error)[:200]}); install it again with "
            f"`{TORCH.command}`, or remove it"
        ) from error
    return torch_network


def chosen_engine() -> str | None:
    """Return the engine that `SKILLMESH_ENGINE` names, `onnx` or `torch`; `None` if it names none."""
    engine = os.environ.get("SKILLMESH_ENGINE") or None
    if engine not in (None, "onnx", "torch"):
        raise BackboneError(f"SKILLMESH_ENGINE is {engine!r}; expected onnx or torch; correct or unset it")
    return engine


def _fitting_engine(name: str, weights: Path | None, device: str | None) -> str:
    """Return the engine for a network; PyTorch takes seconds to import, so it is not asked without need."""
    if not runs_on_onnx(name, weights):
        return "torch"
    if not has_torch():
        return "onnx"
    if weights is not None and weights.is_file() and not _readable_without_torch(weights):
        return "torch"
    if device == "cpu" or (device is None and not sign_of_gpu()):
        return "onnx"
    try:
        return "onnx" if torch_networks().best_torch_device() == "cpu" else "torch"
    except BackboneError as error:
        if device is not None:
            raise
        log.warning("%s; using ONNX Runtime", error)
        return "onnx"


def _readable_without_torch(weights: Path) -> bool:
    """Return whether a file can be read for ONNX Runtime; what `torch.save` writes today, for one, cannot."""
    from skillmesh.backbone.weights import read_weights

    try:
        read_weights(weights)
    except BackboneError:
        return False
    return True


def has_torch() -> bool:
    """Return whether PyTorch and timm are installed, without importing them."""
    return TORCH.installed


def require_torch(what: str) -> None:
    """Raise `BackboneError` if PyTorch is missing; `what` needs it."""
    TORCH.require(what, BackboneError)


def sign_of_gpu() -> bool:
    """Return whether this machine may have a GPU, as far as can be seen without loading an engine."""
    drivers = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    return sys.platform in ("darwin", "win32") or any(map(os.path.exists, drivers))


def cpu_workers() -> int:
    """Return the number of images that are described in parallel: `SKILLMESH_THREADS`, or the number of cores."""
    if limit := os.environ.get("SKILLMESH_THREADS"):
        if not limit.isdecimal() or int(limit) < 1:
            raise BackboneError(f"SKILLMESH_THREADS is {limit!r}; expected a number of at least 1")
        return int(limit)
    return cores()


def fingerprint(spec: NetworkSpec, state: Mapping[str, NDArray[Any]]) -> str:
    """Return the hash of everything that determines raw descriptors: architecture, input, taps and weights."""
    card = {"timm": spec.timm_name, "size": spec.size, "mean": spec.mean, "std": spec.std, "taps": spec.taps}
    digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode())
    for name, tensor in sorted(state.items()):
        if not name.endswith("num_batches_tracked"):
            digest.update(f"{name} {tensor.shape} torch.{tensor.dtype}".encode())
            digest.update(np.ascontiguousarray(tensor).data)
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
    """For each row of `raw`, a hash of its image's content, also for a view: equal files have equal keys."""
    thumbnails: list[Pixels | None] = field(default_factory=list)
    """For each row of `raw`, a small version of its image if that was decoded, is no view, and was wanted."""


def describe(
    network: Network,
    images: Sequence[AnyImage],
    cache: DescriptorCache | None = None,
    progress: Advance | None = None,
    added: Floats | None = None,
    thumbnails: bool = False,
) -> Described:
    """Return raw descriptors of all readable images, and list the others.

    `added` are biases of a task. They change the descriptors, so pass no cache with them. With `thumbnails`, small
    versions of the images that are decoded are kept, so that looking for copies need not decode them again.
    """
    rows: list[Raw] = []
    readable: list[int] = []
    unreadable: list[Unreadable] = []
    keys: list[bytes] = []
    small: list[Pixels | None] = []
    fresh = 0
    alone = network.single_threaded and len(images) == 1  # starting a thread takes a tenth of a pass
    with nullcontext() if alone else one_thread_each(cpu_workers()) as pool:
        for start in range(0, len(images), WINDOW):
            window = images[start : start + WINDOW]
            items = list((pool.map if pool else map)(partial(_prepare, network, cache, added, thumbnails), window))
            _describe_the_rest(network, items, added)
            for index, item in enumerate(items, start):
                if item.raw is None:
                    unreadable.append(Unreadable(images[index].name, item.reason))
                else:
                    rows.append(item.raw)
                    readable.append(index)
                    keys.append(item.picture or item.key)
                    small.append(item.thumbnail)
            fresh += sum(item.fresh for item in items)
            if cache is not None:
                cache.put([(item.key, item.raw) for item in items if item.fresh and item.raw is not None])
            if progress is not None:
                progress(len(window))
    spend("forward", len(rows) * network.forward_macs)
    raw = np.stack(rows) if rows else np.empty((0, network.width), dtype=np.float16)
    return Described(raw, np.array(readable, dtype=np.int64), unreadable, fresh, keys, small)


@dataclass
class _Item:
    """One image in progress: its descriptor, or the pixels still to be described, or why it is unreadable."""

    key: bytes = b""
    picture: bytes = b""
    """For a view, the key of its image."""
    raw: Raw | None = None
    pixels: Pixels | None = None
    reason: str = ""
    fresh: bool = False
    """Whether it was not in the cache."""
    thumbnail: Pixels | None = None


def _prepare(
    network: Network, cache: DescriptorCache | None, added: Floats | None, thumbnails: bool, image: AnyImage
) -> _Item:
    """Do the work of one thread for one image: everything on a CPU, everything but the forward pass on a GPU."""
    try:
        with CONTENTS.taken(image.size()):
            content = image.content()
            key = content_key(content)
            picture = content_key(image.picture(content)) if isinstance(image, ViewedImage) else b""
            if cache is not None and (known := cache.get(key)) is not None:
                return _Item(key, picture, known)
            pixels = image.pixels(content, network.size)
            del content
    except UnreadableImageError as error:
        return _Item(reason=str(error))
    small = thumbnail(pixels) if thumbnails and not picture else None
    if network.on_cpu:
        return _Item(key, picture, network.describe_one(pixels, added), fresh=True, thumbnail=small)
    return _Item(key, picture, pixels=pixels, fresh=True, thumbnail=small)


def _describe_the_rest(network: Network, items: list[_Item], added: Floats | None) -> None:
    waiting = [item for item in items if item.pixels is not None]
    for start in range(0, len(waiting), GPU_BATCH):
        batch = waiting[start : start + GPU_BATCH]
        pixels = np.stack([item.pixels for item in batch if item.pixels is not None])
        for item, raw in zip(batch, network.forward(pixels, added), strict=True):
            item.raw, item.pixels = raw, None


def describe_toes(network: Network, images: Sequence[AnyImage], added: Floats) -> Floats:
    """Return a Head2Toe head's inputs for readable images; on a CPU each image runs alone, several in parallel."""
    toes = choose_toes(added)

    def describe_batch(batch: Sequence[AnyImage]) -> Floats:
        pixels = np.stack([read_pixels(image, network.size) for image in batch])
        return network.toe_features(pixels, added, toes)

    size = 1 if network.on_cpu else GPU_BATCH
    batches = [images[start : start + size] for start in range(0, len(images), size)]
    with one_thread_each(cpu_workers() if network.on_cpu else 1) as pool:
        spend("forward", len(images) * network.forward_macs)
        return np.concatenate(list(pool.map(describe_batch, batches)))
