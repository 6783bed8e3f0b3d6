"""Many images to raw descriptors: read, decode and describe in parallel, the cache before the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from skillmesh.backbone.cache import DescriptorCache, content_key
from skillmesh.backbone.network import Network, cpu_workers
from skillmesh.backbone.representation import Raw
from skillmesh.backbone.toes import choose_toes, toe_features
from skillmesh.common.progress import Advance
from skillmesh.data.images import Pixels, UnreadableImageError
from skillmesh.data.inputs import AnyImage, Unreadable, read_pixels
from skillmesh.data.limits import CONTENTS
from skillmesh.numerics.costs import spend
from skillmesh.numerics.tensors import Floats
from skillmesh.numerics.threads import one_thread_each

GPU_BATCH = 64
WINDOW = 256
"""Images under way at once: bounds memory, and how much work a kill can lose."""


@dataclass
class Described:
    """Raw descriptors of the images that could be read, and the others."""

    raw: Raw
    readable: NDArray[np.int64]
    """For each row of `raw`, the index of its image among those handed in."""
    unreadable: list[Unreadable] = field(default_factory=list)
    fresh: int = 0
    """How many were not in the cache."""
    keys: list[bytes] = field(default_factory=list)
    """For each row of `raw`, a hash of its image's content: equal files have equal keys."""


def describe(
    network: Network,
    images: Sequence[AnyImage],
    cache: DescriptorCache | None = None,
    progress: Advance | None = None,
    biases: torch.Tensor | None = None,
) -> Described:
    """Describe all images, skipping and listing what cannot be read; with biases, nothing is cached."""
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
    """One image on its way: its descriptor, or the pixels still to be described, or why there are none."""

    key: bytes = b""
    raw: Raw | None = None
    pixels: Pixels | None = None
    reason: str = ""
    fresh: bool = False
    """Not from the cache."""


def _prepare(
    network: Network, cache: DescriptorCache | None, biases: torch.Tensor | None, image: AnyImage
) -> _Item:
    """Do what one thread can do alone: all of it on a CPU, all but the forward pass on a GPU."""
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
    """What a Head2Toe head sees of images that can be read: each alone on a CPU, several side by side."""
    toes, biases = choose_toes(added), network.biases(added)
    on_cpu = network.device.type == "cpu"

    def some(batch: Sequence[AnyImage]) -> Floats:
        pixels = np.stack([read_pixels(image, network.size) for image in batch])
        return toe_features(network, pixels, biases, toes)

    size = 1 if on_cpu else GPU_BATCH
    batches = [images[start : start + size] for start in range(0, len(images), size)]
    with one_thread_each(cpu_workers() if on_cpu else 1) as pool:
        spend("forward", len(images) * network.forward_macs)
        return np.concatenate(list(pool.map(some, batches)))
