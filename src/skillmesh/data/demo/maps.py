"""Relief maps of different landscapes. The demo never learns them."""

from collections.abc import Callable

import numpy as np
from PIL import Image

from skillmesh.data.demo.canvas import Array, DrawnTask, smooth_field

#: Height (0 is the shore) and its colour, from the deep sea to snow.
LEVELS = np.array([-1.6, -0.5, -0.02, 0.0, 0.06, 0.5, 1.0, 1.5, 2.0])
TINTS = np.array(
    [
        (40, 84, 140), (96, 150, 196), (160, 204, 224), (236, 224, 176), (150, 190, 120), (110, 164, 90),
        (200, 180, 110), (160, 116, 80), (246, 244, 242),
    ]
)  # fmt: skip


def _island(x: Array, y: Array, rough: Array) -> Array:
    return 1.3 - 2.6 * np.hypot(x, y) + 0.35 * rough


def _archipelago(x: Array, y: Array, rough: Array) -> Array:
    return 0.9 * np.cos(7.5 * x) * np.cos(7.5 * y) - 0.3 + 0.4 * rough


def _lake(x: Array, y: Array, rough: Array) -> Array:
    return 2.2 * np.hypot(x, y * 1.25) - 1.15 + 0.25 * rough


def _coast(x: Array, y: Array, rough: Array) -> Array:
    return 1.5 * x + 0.3 * np.sin(4 * y) + 0.3 * rough


def _river(x: Array, y: Array, rough: Array) -> Array:
    bend = np.abs(x + 0.28 * np.sin(4.2 * y) + 0.03 * rough)
    return np.where(bend < 0.09, -0.3, 0.12 + 0.8 * bend + 0.12 * rough)


def _strait(x: Array, y: Array, rough: Array) -> Array:
    return 2.4 * np.abs(x) - 0.85 + 0.28 * rough


def _mountains(x: Array, y: Array, rough: Array) -> Array:
    return 1.3 * np.exp(-7 * x**2) + 0.2 + (0.2 + 0.4 * np.exp(-7 * x**2)) * np.abs(rough)


MAPS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "island": _island,
    "archipelago": _archipelago,
    "lake": _lake,
    "coast": _coast,
    "river": _river,
    "strait": _strait,
    "mountain range": _mountains,
}


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    side //= 2
    angle, (right, down) = rng.uniform(0, 2 * np.pi), rng.uniform(-0.2, 0.2, size=2)
    axis = np.linspace(-1, 1, side)
    x = (axis[None, :] - right) * np.cos(angle) + (axis[:, None] - down) * np.sin(angle)
    y = (axis[:, None] - down) * np.cos(angle) - (axis[None, :] - right) * np.sin(angle)
    rough = smooth_field(rng, side, 7) + 0.5 * smooth_field(rng, side, 15) + 0.25 * smooth_field(rng, side, 40)
    height = MAPS[cls](x, y, rough)
    slope = np.clip(1 + 2.5 * (np.roll(height, -1, 1) - np.roll(height, 1, 1)), 0.75, 1.2)
    light = np.where(height > 0, slope, 1.0)
    tints = [np.interp(height, LEVELS, TINTS[:, channel]) * light for channel in range(3)]
    lines = np.abs(height * 4 - np.round(height * 4)) < 0.06
    shade = np.where(lines & (height > 0.1), 0.82, 1.0)
    return Image.fromarray(np.clip(np.stack(tints, axis=-1) * shade[..., None], 0, 255).astype(np.uint8))


TASKS = (DrawnTask("maps", tuple(MAPS), draw, hidden=True),)
