"""Kinds of snow crystals on a dark background. The demo never learns them."""

from collections.abc import Callable

import numpy as np
from PIL import Image

from skillmesh.data.demo import canvas
from skillmesh.data.demo.canvas import Colour, DrawnTask, Pen, blotches, hsv, mix

ICE: Colour = (226, 240, 252)
DEEP: Colour = (120, 165, 210)


def _arm(pen: Pen, branches: list[tuple[float, float]], width: float) -> None:
    """Draw an arm upwards with pairs of branches, each given as (distance from the centre, length)."""
    pen.line([(0, 0), (0, -0.97)], width, ICE)
    for out, length in branches:
        for sign in (-0.87, 0.87):
            pen.line([(0, -out), (length * sign, -out - 0.5 * length)], width * 0.8, ICE)


def _star(pen: Pen, rng: np.random.Generator) -> None:
    for k in range(6):
        _arm(pen.at(0, 0, 1, 60 * k), [], 0.11)
    pen.poly(canvas.regular(6, 0.2, 0), ICE)


def _fern(pen: Pen, rng: np.random.Generator) -> None:
    count = int(rng.integers(6, 9))
    outs = np.linspace(0.2, 0.85, count).tolist()
    lengths = [(0.42 - 0.3 * out) * rng.uniform(0.8, 1.15) for out in outs]
    for k in range(6):
        _arm(pen.at(0, 0, 1, 60 * k), list(zip(outs, lengths, strict=True)), 0.04)


def _plate(pen: Pen, rng: np.random.Generator) -> None:
    for radius, colour in ((0.95, ICE), (0.86, DEEP), (0.62, ICE), (0.54, mix(DEEP, ICE, 0.4)), (0.2, ICE)):
        pen.poly(canvas.regular(6, radius * rng.uniform(0.97, 1.03)), colour)


def _sectored(pen: Pen, rng: np.random.Generator) -> None:
    notch = rng.uniform(0.5, 0.62)
    pen.poly(canvas.star(6, notch + 0.15), ICE)
    for k in range(6):
        sector = pen.at(0, 0, 1, 60 * k)
        sector.poly([(0.05, -0.3), (0.05, -0.82), (0.3, -0.5)], DEEP)
        sector.poly([(-0.05, -0.3), (-0.05, -0.82), (-0.3, -0.5)], DEEP)


def _stellar_plate(pen: Pen, rng: np.random.Generator) -> None:
    """Draw arms that end in small plates."""
    size = rng.uniform(0.2, 0.26)
    for k in range(6):
        arm = pen.at(0, 0, 1, 60 * k)
        _arm(arm, [(0.38, 0.16)], 0.07)
        arm.at(0, -0.75, size).poly(canvas.regular(6), ICE)
        arm.at(0, -0.75, size * 0.6).poly(canvas.regular(6), DEEP)
    pen.poly(canvas.regular(6, 0.28), ICE)


def _needles(pen: Pen, rng: np.random.Generator) -> None:
    for _ in range(int(rng.integers(6, 10))):
        x, y = rng.uniform(-0.35, 0.35, size=2)
        needle = pen.at(x, y, rng.uniform(0.55, 0.8), rng.uniform(0, 180))
        needle.line([(0, -1), (0, 1)], 0.09, DEEP)
        needle.line([(0.03, -1), (0.03, 1)], 0.05, ICE)


FLAKES: dict[str, Callable[[Pen, np.random.Generator], None]] = {
    "simple star": _star,
    "fern dendrite": _fern,
    "hexagonal plate": _plate,
    "sectored plate": _sectored,
    "stellar plate": _stellar_plate,
    "needles": _needles,
}


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    hue = rng.uniform(0.56, 0.7)
    image = blotches(rng, side, [hsv(hue, 0.7, value) for value in (0.15, 0.25, 0.4)], 4)
    speck = Pen(image, np.eye(2) * side / 2, np.full(2, side / 2))
    for x, y in rng.uniform(-1, 1, size=(14, 2)).tolist():
        speck.disc(x, y, rng.uniform(0.008, 0.025), mix(hsv(hue, 0.5, 0.5), ICE, rng.uniform()))
    FLAKES[cls](Pen.posed(image, rng, turn=180, scale=(0.65, 0.88)), rng)
    return image


TASKS = (DrawnTask("snowflakes", tuple(FLAKES), draw, hidden=True),)
