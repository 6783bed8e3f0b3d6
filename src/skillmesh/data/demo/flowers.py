"""Garden flowers in front of blurred leaves."""

from collections.abc import Callable

import numpy as np
from PIL import Image

from skillmesh.data.demo import canvas
from skillmesh.data.demo.canvas import BLACK, WHITE, Colour, DrawnTask, Pen, blotches, hsv, mix, vary

Flower = Callable[[Pen, np.random.Generator], None]


def _wreath(pen: Pen, count: int, length: float, wide: float, colour: Colour, start: float = 0.0) -> None:
    """Draw petals around the origin, every other one a little darker."""
    for k in range(count):
        tint = mix(colour, BLACK, 0.12 * (k % 2))
        pen.at(0, 0, 1, start + 360 * k / count).poly(canvas.petal(length, wide), tint)


def _stem(pen: Pen, rng: np.random.Generator, top: float = 0.0) -> None:
    green = hsv(rng.uniform(0.27, 0.36), 0.7, rng.uniform(0.35, 0.55))
    sway = rng.uniform(-0.25, 0.25)
    bend = [(sway * t * t, top + t * (2.2 - top)) for t in np.linspace(0, 1, 8).tolist()]
    pen.line(bend, 0.08, green)
    for turn in (55, -55):
        pen.at(bend[4][0], bend[4][1], 0.8, turn).poly(canvas.petal(0.9, 0.2), mix(green, WHITE, 0.08))


def _daisy(pen: Pen, rng: np.random.Generator) -> None:
    _wreath(pen, int(rng.integers(14, 19)), 1.0, 0.13, (248, 248, 250), rng.uniform(0, 30))
    pen.disc(0, 0, 0.28, (235, 160, 10))
    pen.disc(-0.03, -0.04, 0.22, (252, 200, 30))


def _sunflower(pen: Pen, rng: np.random.Generator) -> None:
    gold = hsv(rng.uniform(0.11, 0.14), 0.95, 0.98)
    for turn in (0, 10):
        _wreath(pen, 18, 1.0 - 0.01 * turn, 0.15, mix(gold, (220, 120, 0), turn / 30), turn)
    pen.disc(0, 0, 0.52, (70, 40, 18))
    for k in range(60):
        angle, radius = k * 2.39996, 0.48 * float(np.sqrt(k / 60))
        pen.disc(radius * float(np.cos(angle)), radius * float(np.sin(angle)), 0.035, (140, 90, 40))


def _tulip(pen: Pen, rng: np.random.Generator) -> None:
    colour = hsv(rng.choice([0.95, 0.98, 0.05, 0.12, 0.8]), rng.uniform(0.6, 0.9), 0.92)
    for x, turn in ((0.0, 0.0), (-0.3, -14.0), (0.3, 14.0)):
        pen.at(x, 0.55, 1, turn).poly(canvas.petal(1.5, 0.42), mix(colour, BLACK, 0.22))
    for turn in (-22, 22):
        pen.at(0, 0.75, 1, turn).poly(canvas.petal(1.5, 0.5), mix(colour, BLACK, 0.1))
    pen.at(0, 0.78).poly(canvas.petal(1.25, 0.42), colour)


def _rose(pen: Pen, rng: np.random.Generator) -> None:
    colour = hsv(rng.choice([0.98, 0.94, 0.03, 0.9]), rng.uniform(0.6, 0.9), 0.85)
    for ring, (radius, count) in enumerate(((0.62, 6), (0.42, 5), (0.24, 4), (0.1, 3))):
        turn = rng.uniform(0, 90)
        for k in range(count):
            part = pen.at(0, 0, 1, turn + 360 * k / count)
            part.disc(0, -radius, 0.42 - 0.08 * ring, mix(colour, BLACK, 0.45))
            part.disc(0.03, -radius + 0.03, 0.4 - 0.08 * ring, mix(colour, WHITE, 0.08 * ring + 0.06 * (k % 2)))
    pen.arc(0, 0, 0.1, 0, 250, 0.05, mix(colour, BLACK, 0.45))


def _poppy(pen: Pen, rng: np.random.Generator) -> None:
    colour = hsv(rng.uniform(-0.01, 0.03), 0.92, 0.9)
    start = rng.uniform(0, 90)
    for k in (0, 2, 1, 3):
        part = pen.at(0, 0, 1, start + 90 * k)
        part.disc(0, -0.46, 0.62, mix(colour, BLACK, 0.3), tall=0.84)
        part.disc(0, -0.47, 0.58, mix(colour, WHITE, 0.05 * k), tall=0.84)
        part.disc(0, -0.12, 0.22, (40, 12, 20))
    pen.disc(0, 0, 0.2, (60, 80, 40))
    _wreath(pen, 10, 0.18, 0.03, (160, 170, 90))


def _lavender(pen: Pen, rng: np.random.Generator) -> None:
    colour = hsv(rng.uniform(0.71, 0.78), 0.55, 0.8)
    for x, turn in ((-0.5, -14.0), (0.5, 14.0), (0.0, 0.0)):
        spike = pen.at(x, 0.3, 1, turn)
        spike.line([(0, 1.6), (0, -1.0)], 0.05, (90, 130, 80))
        for row in range(9):
            for sign in (-1, 1):
                bud = spike.at(0, 0.5 - 0.18 * row, 1, 38 * sign)
                bud.poly(canvas.petal(0.3, 0.1), vary(rng, colour, 18))


def _bluebell(pen: Pen, rng: np.random.Generator) -> None:
    colour = hsv(rng.uniform(0.63, 0.69), rng.uniform(0.45, 0.6), 0.88)
    green = (80, 140, 70)
    pen.line([(-0.75, 2.0), (-0.75, 0.0), (-0.6, -0.6), (-0.2, -0.95), (0.4, -0.9), (0.75, -0.7)], 0.07, green)
    for x, y, size in ((-0.55, -0.45, 0.62), (0.1, -0.85, 0.68), (0.72, -0.62, 0.56)):
        bell = pen.at(x, y, size, rng.uniform(-12, 6))
        bell.line([(0, -0.1), (0, 0.2)], 0.08, green)
        for dx in (-0.42, 0.42, 0.0):
            lobe = mix(colour, WHITE, 0.22 if dx == 0 else 0.05)
            bell.at(dx, 1.2, 1, 30 * dx).poly(
                [(-0.2, -0.2), (0.2, -0.2), (0.26, 0.2), (0, 0.38), (-0.26, 0.2)], lobe
            )
        bell.poly([(-0.22, 0.15), (0.22, 0.15), (0.42, 0.45), (0.5, 1.2), (-0.5, 1.2), (-0.42, 0.45)], colour)
        bell.poly([(-0.1, 0.2), (0.1, 0.2), (0.16, 1.2), (-0.16, 1.2)], mix(colour, WHITE, 0.22))


def _forget_me_not(pen: Pen, rng: np.random.Generator) -> None:
    colour = hsv(rng.uniform(0.54, 0.6), 0.5, 0.95)
    for x, y in ((-0.5, -0.45), (0.48, -0.5), (-0.42, 0.45), (0.52, 0.4), (0.0, 0.0)):
        bloom = pen.at(x, y, 0.5, rng.uniform(0, 72))
        for k in range(5):
            petal = bloom.at(0, 0, 1, 72 * k)
            petal.disc(0, -0.52, 0.4, mix(colour, BLACK, 0.25))
            petal.disc(0, -0.52, 0.36, vary(rng, colour, 8))
        bloom.disc(0, 0, 0.26, WHITE)
        bloom.disc(0, 0, 0.2, (245, 200, 40))


FLOWERS: dict[str, Flower] = {
    "daisy": _daisy,
    "sunflower": _sunflower,
    "tulip": _tulip,
    "rose": _rose,
    "poppy": _poppy,
    "lavender": _lavender,
    "bluebell": _bluebell,
    "forget-me-not": _forget_me_not,
}


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    greens = [hsv(rng.uniform(0.2, 0.4), rng.uniform(0.3, 0.6), rng.uniform(0.3, 0.7)) for _ in range(4)]
    image = blotches(rng, side, greens, 6)
    pen = Pen.posed(image, rng, turn=12, scale=(0.5, 0.74), squeeze=0.08)
    if cls not in {"lavender", "bluebell"}:
        _stem(pen, rng)
    FLOWERS[cls](pen, rng)
    return image


TASKS = (DrawnTask("flowers", tuple(FLOWERS), draw),)
