"""What a module stores of an adaptation: biases of channels, or a pattern on the input.

Nothing here needs torch: agents that only pass modules on check these tensors too.
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
"""Number of channels that share a scale."""
MAX_BYTES = 44_000
"""Largest size of a module's biases, in bytes; the smallest biases are pruned until the rest fits."""


@dataclass(frozen=True)
class Biases:
    """Learned biases: one number to add to each output channel of the backbone's layers."""

    added: NDArray[np.float32]

    def tensors(self) -> Tensors:
        """Return the biases as int8, 127 for the largest of each block; those that round to zero are left out."""
        scale = _blocks(np.abs(self.added)).max(axis=1) / 127
        steps = np.rint(self.added / _per_channel(np.where(scale > 0, scale, 1), len(self.added))).astype(np.int8)
        steps[np.argsort(-np.abs(self.added), kind="stable")[room_for(len(self.added)) :]] = 0
        return {
            "bias.mask": np.packbits(steps != 0),
            "bias.value": steps[steps != 0],
            "bias.scale": scale.astype(np.float32),
        }

    @classmethod
    def read(cls, tensors: Tensors, channels: int) -> Self:
        """Return the stored biases; raise `TensorError` where their number differs from what the mask marks."""
        marked = np.unpackbits(tensors["bias.mask"])[:channels].astype(bool)
        values = tensors["bias.value"]
        if np.count_nonzero(np.unpackbits(tensors["bias.mask"])) != len(values) or marked.sum() != len(values):
            raise TensorError(
                f"tensor 'bias.value' has {len(values)} numbers, expected {marked.sum()}, as many as 'bias.mask' "
                "marks; ask the teacher for the module again"
            )
        added = np.zeros(channels, dtype=np.float32)
        added[marked] = values
        return cls(added * _per_channel(tensors["bias.scale"], channels))

    @staticmethod
    def specs(channels: int, stored: int) -> dict[str, Spec]:
        return {
            "bias.mask": Spec("U8", (-(-channels // 8),)),
            "bias.value": Spec("I8", (stored,)),
            "bias.scale": Spec("F32", (-(-channels // BLOCK),), low=0, high=10),
        }


def room_for(channels: int) -> int:
    """Return how many biases fit in a module: none for networks with hundreds of thousands of channels."""
    return max(0, MAX_BYTES - -(-channels // 8) - 4 * -(-channels // BLOCK))


def _blocks(values: NDArray[np.floating]) -> NDArray[np.floating]:
    padded = np.pad(values, (0, -len(values) % BLOCK))
    return padded.reshape(-1, BLOCK)


def _per_channel(scale: NDArray[np.floating], channels: int) -> NDArray[np.float32]:
    return np.repeat(scale, BLOCK)[:channels].astype(np.float32)


# A pattern on the input, as modules store it: one byte per pixel and colour; 128 changes nothing.

NOTHING = 128


def stored(pattern: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the pattern rounded to the bytes that a module stores."""
    rounded: NDArray[np.uint8] = np.clip(np.rint(pattern) + NOTHING, 0, 255).astype(np.uint8)
    return rounded


def reprogrammed(images: Pixels, pattern: NDArray[np.uint8]) -> Pixels:
    """Return images with a stored pattern added, clipped to 0–255."""
    return np.clip(images.astype(np.int16) + pattern.astype(np.int16) - NOTHING, 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Patterned:
    """An image with a task's pattern added to its pixels."""

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
