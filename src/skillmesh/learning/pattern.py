"""A pattern on the input, as modules hold it: one byte per pixel and colour, 128 for nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skillmesh.data.images import Pixels
from skillmesh.data.inputs import AnyImage

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
