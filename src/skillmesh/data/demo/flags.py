"""National flags that wave in the wind, in front of a sky."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from skillmesh.data.demo import canvas
from skillmesh.data.demo.canvas import WHITE, Colour, DrawnTask, Pen, blotches, mix

WIDE, HIGH = 180, 120
RED: Colour = (206, 32, 44)
BLUE: Colour = (16, 62, 140)
YELLOW: Colour = (252, 206, 24)
GREEN: Colour = (0, 140, 70)
INK: Colour = (20, 20, 22)

STRIPES: dict[str, tuple[bool, tuple[Colour, ...]]] = {  # upright or not, and the colours
    "France": (True, (BLUE, WHITE, RED)),
    "Italy": (True, (GREEN, WHITE, RED)),
    "Nigeria": (True, (GREEN, WHITE, GREEN)),
    "Germany": (False, (INK, RED, YELLOW)),
    "Ukraine": (False, ((0, 88, 180), YELLOW)),
    "Poland": (False, (WHITE, RED)),
}
CROSSES: dict[str, tuple[Colour, Colour, Colour]] = {  # the field, the cross, the cross on the cross
    "Sweden": ((0, 96, 168), YELLOW, YELLOW),
    "Denmark": (RED, WHITE, WHITE),
    "Norway": (RED, WHITE, BLUE),
}
OTHERS = ("Japan", "Switzerland", "Czechia")


def _bands(image: Image.Image, upright: bool, colours: tuple[Colour, ...]) -> None:
    length = WIDE if upright else HIGH
    for k, colour in enumerate(colours):
        start, stop = k * length // len(colours), (k + 1) * length // len(colours)
        image.paste(colour, (start, 0, stop, HIGH) if upright else (0, start, WIDE, stop))


def _nordic(image: Image.Image, cross: Colour, inner: Colour) -> None:
    for colour, half in ((cross, 13), (inner, 7)):
        image.paste(colour, (62 - half, 0, 62 + half, HIGH))
        image.paste(colour, (0, HIGH // 2 - half, WIDE, HIGH // 2 + half))


@lru_cache(maxsize=32)
def _flat(country: str) -> npt.NDArray[np.float32]:
    image = Image.new("RGB", (WIDE, HIGH), RED if country == "Switzerland" else WHITE)
    pen = Pen(image, np.eye(2) * HIGH / 2, np.array([WIDE / 2, HIGH / 2]))
    if country in STRIPES:
        _bands(image, *STRIPES[country])
    elif country in CROSSES:
        field, cross, inner = CROSSES[country]
        image.paste(field, (0, 0, WIDE, HIGH))
        _nordic(image, cross, inner)
    elif country == "Japan":
        pen.disc(0, 0, 0.6, RED)
    elif country == "Switzerland":
        pen.at(0, 0, 0.65).poly(canvas.cross(0.3), WHITE)
    else:
        _bands(image, False, (WHITE, RED))
        pen.poly([(-1.5, -1), (0, 0), (-1.5, 1)], BLUE)
    return np.asarray(image, dtype=np.float32)


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    skies: list[Colour] = [(150, 190, 230), (190, 215, 240), (225, 235, 245), (215, 205, 200)]
    sky = blotches(rng, side, skies, 3)
    half_wide, middle = rng.uniform(0.55, 0.8), rng.uniform(-0.12, 0.12, size=2)
    left = middle[0] - half_wide
    pole = Pen(sky, np.eye(2) * side / 2, np.full(2, side / 2))
    metal = mix((90, 80, 75), (170, 170, 175), rng.uniform())
    pole.poly(canvas.box(left - 0.05, middle[1] - half_wide * 0.75, left, 1.1), metal)
    x = np.linspace(-1, 1, side)
    u = (x - left) / (2 * half_wide)
    swell = rng.uniform(0.02, 0.07) * np.clip(u * 3, 0, 1)
    angle = rng.uniform(5, 11) * u + rng.uniform(0, 2 * np.pi)
    tilt = rng.uniform(-0.15, 0.15)
    half_high = half_wide / 1.5 * rng.uniform(0.92, 1.08)
    v = (x[:, None] - middle[1] - (swell * np.sin(angle) + tilt * (u - 0.5))[None, :]) / (2 * half_high) + 0.5
    inside = (v >= 0) & (v < 1) & ((u >= 0) & (u < 1))[None, :]
    rows = np.clip((v * HIGH).astype(np.intp), 0, HIGH - 1)
    columns = np.clip((u * WIDE).astype(np.intp), 0, WIDE - 1)
    light = (1 - 3.2 * swell * np.cos(angle))[None, :, None].astype(np.float32)
    cloth = np.clip(_flat(cls)[rows, columns[None, :]] * light, 0, 255).astype(np.uint8)
    sky.paste(Image.fromarray(cloth), mask=Image.fromarray(inside))
    return sky


TASKS = (DrawnTask("flags", (*STRIPES, *CROSSES, *OTHERS), draw),)
