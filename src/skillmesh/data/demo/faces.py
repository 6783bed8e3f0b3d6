"""Round faces that show feelings."""

from collections.abc import Callable

import numpy as np
from PIL import Image

from skillmesh.data.demo import canvas
from skillmesh.data.demo.canvas import BLACK, WHITE, Colour, DrawnTask, Pen, blotches, hsv, mix

INK: Colour = (60, 36, 24)
RED: Colour = (214, 40, 60)
TEAR: Colour = (70, 160, 235)


def _eyes(pen: Pen, tall: float = 1.5) -> None:
    for x in (-0.36, 0.36):
        pen.disc(x, -0.22, 0.12, INK, tall=tall)
        pen.disc(x + 0.04, -0.3, 0.035, WHITE)


def _brows(pen: Pen, inner: float, outer: float) -> None:
    for sign in (-1, 1):
        pen.line([(0.16 * sign, inner), (0.56 * sign, outer)], 0.09, INK)


def _closed_eye(pen: Pen, x: float, *, up: bool) -> None:
    """Draw a closed eye: an arch for laughing (`up`), a bowl for sleeping."""
    start, y = (200, -0.12) if up else (20, -0.32)
    pen.arc(x, y, 0.19, start, start + 140, 0.08, INK)


def _grin(pen: Pen) -> None:
    bowl = [(0.56 * float(np.cos(a)), 0.18 + 0.5 * float(np.sin(a))) for a in np.linspace(0, np.pi, 24)]
    pen.poly(bowl, mix(RED, BLACK, 0.6))
    pen.poly(canvas.box(-0.5, 0.18, 0.5, 0.29), WHITE)


def _happy(pen: Pen) -> None:
    _eyes(pen)
    pen.arc(0, 0.05, 0.55, 20, 160, 0.1, INK)


def _laughing(pen: Pen) -> None:
    for x in (-0.36, 0.36):
        _closed_eye(pen, x, up=True)
    _grin(pen)


def _sad(pen: Pen) -> None:
    _eyes(pen)
    _brows(pen, -0.66, -0.5)
    pen.arc(0, 0.82, 0.45, 215, 325, 0.1, INK)


def _crying(pen: Pen) -> None:
    for x in (-0.36, 0.36):
        _closed_eye(pen, x, up=False)
        pen.poly(canvas.box(x - 0.11, -0.1, x + 0.11, 0.72), TEAR)
        pen.disc(x, 0.72, 0.11, TEAR)
    pen.disc(0, 0.5, 0.19, mix(RED, BLACK, 0.6), tall=1.3)


def _angry(pen: Pen) -> None:
    _eyes(pen, 1.1)
    _brows(pen, -0.38, -0.64)
    pen.arc(0, 0.85, 0.4, 220, 320, 0.1, INK)


def _surprised(pen: Pen) -> None:
    for x in (-0.36, 0.36):
        pen.disc(x, -0.25, 0.2, WHITE)
        pen.disc(x, -0.25, 0.1, INK)
        pen.arc(x, -0.4, 0.24, 225, 315, 0.07, INK)
    pen.disc(0, 0.45, 0.2, mix(RED, BLACK, 0.6), tall=1.3)


def _neutral(pen: Pen) -> None:
    _eyes(pen)
    pen.line([(-0.42, 0.42), (0.42, 0.42)], 0.1, INK)


def _sleeping(pen: Pen) -> None:
    for x in (-0.36, 0.36):
        _closed_eye(pen, x, up=False)
    pen.disc(0.05, 0.45, 0.12, mix(RED, BLACK, 0.6))
    for x, y, size in ((0.52, -0.6, 0.13), (0.78, -0.84, 0.18)):
        pen.at(x, y).text("Z", (40, 80, 170), high=size)


def _winking(pen: Pen) -> None:
    pen.disc(-0.36, -0.22, 0.12, INK, tall=1.5)
    pen.disc(-0.32, -0.3, 0.035, WHITE)
    pen.line([(0.52, -0.34), (0.2, -0.2), (0.52, -0.08)], 0.08, INK)
    pen.arc(0.05, 0.05, 0.55, 30, 150, 0.1, INK)


def _in_love(pen: Pen) -> None:
    for x in (-0.38, 0.38):
        pen.at(x, -0.24, 0.27).poly(canvas.heart(), RED)
    _grin(pen)


FACES: dict[str, Callable[[Pen], None]] = {
    "happy": _happy,
    "laughing": _laughing,
    "sad": _sad,
    "crying": _crying,
    "angry": _angry,
    "surprised": _surprised,
    "neutral": _neutral,
    "sleeping": _sleeping,
    "winking": _winking,
    "in love": _in_love,
}


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    hue = rng.uniform()
    image = blotches(rng, side, [hsv(hue, 0.3, 0.95), hsv(hue + 0.08, 0.4, 0.85), hsv(hue, 0.15, 1.0)], 3)
    pen = Pen.posed(image, rng, turn=15, scale=(0.55, 0.8), squeeze=0.08)
    skin = hsv(rng.uniform(0.09, 0.15), rng.uniform(0.5, 0.85), rng.uniform(0.9, 1.0))
    pen.disc(0, 0, 1.0, mix(skin, (160, 80, 0), 0.4))
    pen.disc(0, -0.02, 0.95, skin)
    if rng.uniform() < 0.5:
        for x in (-0.62, 0.62):
            pen.disc(x, 0.2, 0.17, mix(skin, (240, 90, 90), 0.45))
    FACES[cls](pen)
    return image


TASKS = (DrawnTask("faces", tuple(FACES), draw),)
