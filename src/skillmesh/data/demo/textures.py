"""Materials and patterns that fill the whole image, at any angle."""

from collections.abc import Callable

import numpy as np
from PIL import Image

from skillmesh.data.demo.canvas import Array, Colour, DrawnTask, hsv, mix, paint, smooth_field, turned_grid

Texture = Callable[[Array, Array, np.random.Generator], Array]


def _wave(x: Array) -> Array:
    return np.sin(2 * np.pi * x)


def _bricks(x: Array, y: Array, rng: np.random.Generator) -> Array:
    row = np.floor(y)
    u, v = (x / 2.2 + row * 0.5) % 1.0, y % 1.0
    brick = (u > 0.05) & (v > 0.11)
    tint = np.sin(np.floor(x / 2.2 + row * 0.5) * 12.9 + row * 78.2) * 0.18
    return np.where(brick, 0.75 + tint, 0.0)


def _wood(x: Array, y: Array, rng: np.random.Generator) -> Array:
    bent = x * 0.6 + 0.5 * smooth_field(rng, x.shape[0], 4) + 0.05 * y
    fibre = 0.12 * _wave(x * 9 + 0.4 * np.sin(y))
    rings: Array = (bent * 1.5) % 1.0
    return rings**1.5 * 0.85 + fibre


def _marble(x: Array, y: Array, rng: np.random.Generator) -> Array:
    side = x.shape[0]
    field = smooth_field(rng, side, 4) + 0.5 * smooth_field(rng, side, 9) + 0.25 * smooth_field(rng, side, 20)
    veins: Array = 1 - np.abs(np.sin(0.55 * x + 1.5 * field))
    return veins**3


def _honeycomb(x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Return the hexagonal distance to the nearer of two interleaved grids of cell centres."""
    step = np.sqrt(3.0)

    def reach(u: Array, v: Array) -> Array:
        du, dv = np.abs((u + 0.5) % 1.0 - 0.5), np.abs((v + step / 2) % step - step / 2)
        far: Array = np.maximum(du, 0.5 * du + dv * step / 2)
        return far

    x, y = x / 1.4, y / 1.4
    edge = np.minimum(reach(x, y), reach(x + 0.5, y + step / 2))
    return np.where(edge > 0.43, 0.0, 1.0 - 0.5 * edge)


def _scales(x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Return rows of discs, half a disc apart; each row overlaps the one below it."""
    value = np.zeros_like(x)
    for below in (1, 0, -1):
        row = np.floor(y * 2) + below
        u = (x + row % 2 * 0.5) % 1.0 - 0.5
        reach = np.hypot(u, y - row / 2) / 0.52
        value = np.where(reach < 1, 1.0 - 0.9 * reach**4, value)
    return value


def _weave(x: Array, y: Array, rng: np.random.Generator) -> Array:
    over = (np.floor(x) + np.floor(y)) % 2 == 0
    across, along = np.abs(x % 1 - 0.5), np.abs(y % 1 - 0.5)
    bend, edge = np.where(over, across, along), np.where(over, along, across)
    return np.where(edge > 0.42, 0.0, np.where(over, 1.0, 0.55) - 0.7 * bend)


def _dots(x: Array, y: Array, rng: np.random.Generator) -> Array:
    return np.where(np.hypot(x % 1 - 0.5, y % 1 - 0.5) < 0.3, 1.0, 0.0)


TEXTURES: dict[str, tuple[Texture, float]] = {  # with the hue of the material, or -1 for any hue
    "bricks": (_bricks, 0.03),
    "wood": (_wood, 0.08),
    "marble": (_marble, -1.0),
    "honeycomb": (_honeycomb, 0.12),
    "scales": (_scales, -1.0),
    "weave": (_weave, -1.0),
    "polka dots": (_dots, -1.0),
    "stripes": (lambda x, y, rng: np.where(x % 1 < 0.5, 1.0, 0.0) + 0 * y, -1.0),
    "zigzag": (lambda x, y, rng: np.where((x + 0.7 * np.abs(y % 2 - 1)) % 1 < 0.5, 1.0, 0.0), -1.0),
    "checkerboard": (lambda x, y, rng: (np.floor(x) + np.floor(y)) % 2, -1.0),
}


def _colours(rng: np.random.Generator, cls: str, hue: float) -> tuple[Colour, Colour]:
    if cls == "marble":
        light = hsv(rng.uniform(), 0.06, rng.uniform(0.85, 0.95))
        return light, mix(light, hsv(rng.uniform(), 0.4, 0.25), 0.85)
    if hue >= 0:
        hue += rng.uniform(-0.02, 0.02)
        dark, light = hsv(hue, 0.75, rng.uniform(0.25, 0.4)), hsv(hue, 0.65, rng.uniform(0.75, 0.95))
        return (hsv(hue, 0.1, 0.85), mix(dark, light, 0.55)) if cls == "bricks" else (dark, light)
    hue = rng.uniform()
    return hsv(hue, rng.uniform(0.3, 0.7), 0.35), hsv(hue + rng.uniform(-0.15, 0.15), rng.uniform(0.1, 0.6), 0.95)


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    side = side * 3 // 4  # every pixel is computed, and this size is sufficient
    texture, hue = TEXTURES[cls]
    turn = 12.0 if cls in {"bricks", "scales"} else 180.0
    x, y = turned_grid(rng, side, turn)
    zoom = rng.uniform(2.2, 4.0)
    dark, light = _colours(rng, cls, hue)
    image = paint(texture(x * zoom, y * zoom, rng), dark, light)
    glow = smooth_field(rng, 8, 3)
    lamp = Image.fromarray(np.clip(225 + 25 * glow, 0, 255).astype(np.uint8)).resize((side, side))
    image.paste(Image.new("RGB", (side, side), (0, 0, 0)), mask=lamp.point(lambda level: (255 - level) // 2))
    return image


TASKS = (DrawnTask("textures", tuple(TEXTURES), draw),)
