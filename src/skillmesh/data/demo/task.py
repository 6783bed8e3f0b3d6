"""What a demo task is, and the seed of an image."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

#: (class, generator, side in pixels) -> an RGB image of about that side; `canvas.finish` brings it to size.
Drawer = Callable[[str, np.random.Generator, int], Image.Image]


@dataclass(frozen=True)
class DrawnTask:
    """One demo task; a hidden one is never learned by the demo."""

    name: str
    classes: tuple[str, ...]
    drawer: Drawer
    hidden: bool = False


def stable_seed(*parts: str | int) -> int:
    """128 bits that depend on nothing but the parts: Python's own `hash` changes with every process."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")
