"""What a module holds of an adapted network: biases of channels, or a pattern on the input.

Everything here does without torch: who only carries modules checks them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.images import Pixels
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import TensorError
from skillmesh.numerics.arrays import Spec, Tensors

BLOCK = 128
"""Channels that share a scale."""
MAX_BYTES = 44_000
"""Of all biases of a module; what is more is pruned, the smallest first."""


@dataclass(frozen=True)
class Biases:
    """One number for every channel behind a layer of the backbone, to be added there."""

    added: NDArray[np.float32]

    def tensors(self) -> Tensors:
        """Round to int8, 127 for the largest of a block; what rounds to nothing is left out."""
        scale = _blocks(np.abs(self.added)).max(axis=1) / 127
        steps = np.rint(self.added / _spread(np.where(scale > 0, scale, 1), len(self.added))).astype(np.int8)
        steps[np.argsort(-np.abs(self.added), kind="stable")[room_for(len(self.added)) :]] = 0
        return {
            "bias.mask": np.packbits(steps != 0),
            "bias.value": steps[steps != 0],
            "bias.scale": scale.astype(np.float32),
        }

    @classmethod
    def read(cls, tensors: Tensors, channels: int) -> Self:
        there = np.unpackbits(tensors["bias.mask"])[:channels].astype(bool)
        values = tensors["bias.value"]
        if np.count_nonzero(np.unpackbits(tensors["bias.mask"])) != len(values) or there.sum() != len(values):
            raise TensorError(
                f"tensor 'bias.value' has {len(values)} numbers, expected {there.sum()}, as many as 'bias.mask' "
                "marks; ask the teacher for the module again"
            )
        added = np.zeros(channels, dtype=np.float32)
        added[there] = values
        return cls(added * _spread(tensors["bias.scale"], channels))

    @staticmethod
    def specs(channels: int, stored: int) -> dict[str, Spec]:
        return {
            "bias.mask": Spec("U8", (-(-channels // 8),)),
            "bias.value": Spec("I8", (stored,)),
            "bias.scale": Spec("F32", (-(-channels // BLOCK),), low=0, high=10),
        }


def room_for(channels: int) -> int:
    """How many channels fit; of networks with hundreds of thousands, none."""
    return max(0, MAX_BYTES - -(-channels // 8) - 4 * -(-channels // BLOCK))


def _blocks(values: NDArray[np.floating]) -> NDArray[np.floating]:
    padded = np.pad(values, (0, -len(values) % BLOCK))
    return padded.reshape(-1, BLOCK)


def _spread(scale: NDArray[np.floating], channels: int) -> NDArray[np.float32]:
    """Give each channel its block's scale."""
    return np.repeat(scale, BLOCK)[:channels].astype(np.float32)


# A pattern on the input, as modules hold it: one byte per pixel and colour, 128 for nothing.

NOTHING = 128


def stored(pattern: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Round a pattern to what a module holds of it."""
    rounded: NDArray[np.uint8] = np.clip(np.rint(pattern) + NOTHING, 0, 255).astype(np.uint8)
    return rounded


def reprogrammed(images: Pixels, pattern: NDArray[np.uint8]) -> Pixels:
    """Add a stored pattern to images; what leaves the range of a pixel is cut."""
    return np.clip(images.astype(np.int16) + pattern.astype(np.int16) - NOTHING, 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Patterned:
    """An image with a task's pattern on it."""

    image: AnyImage
    pattern: NDArray[np.uint8]

    @property
    def name(self) -> str:
        return self.image.name

    def size(self) -> int:
        return self.image.size()

    def content(self) -> bytes:
        return self.image.content()

    def pixels(self, content: bytes, size: int) -> Pixels:
        return reprogrammed(self.image.pixels(content, size), self.pattern)
