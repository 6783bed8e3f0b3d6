"""Clocks at the full hour."""

import numpy as np
from PIL import Image

from skillmesh.data.demo import canvas
from skillmesh.data.demo.canvas import BLACK, WHITE, Colour, DrawnTask, Pen, blotches, hsv, mix, vary

HOURS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def _dial(pen: Pen, rng: np.random.Generator, ink: Colour) -> None:
    style = rng.integers(3)
    for hour in range(1, 13):
        angle = np.deg2rad(30 * hour - 90)
        x, y = float(np.cos(angle)), float(np.sin(angle))
        if style == 0 and hour % 3 == 0:
            pen.at(0.7 * x, 0.7 * y).text(str(hour), ink, high=0.11, wide=0.2)
        elif style == 1:
            pen.disc(0.74 * x, 0.74 * y, 0.05, ink)
        else:
            pen.line([(0.68 * x, 0.68 * y), (0.78 * x, 0.78 * y)], 0.05 if hour % 3 else 0.09, ink)


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    wall = hsv(rng.uniform(), rng.uniform(0.1, 0.45), rng.uniform(0.6, 0.95))
    image = blotches(rng, side, [wall, vary(rng, wall), mix(wall, BLACK, 0.15)], 3)
    pen = Pen.posed(image, rng, turn=8, scale=(0.62, 0.88), squeeze=0.04)
    frame = hsv(rng.uniform(), rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.7))
    dark = rng.uniform() < 0.25
    face, ink = (mix(frame, BLACK, 0.6), WHITE) if dark else (mix(WHITE, frame, 0.06), BLACK)
    rim = canvas.round_box(0.95, 0.95, 0.2) if rng.uniform() < 0.3 else canvas.regular(60)
    Pen(image, pen.matrix, pen.shift + side * 0.015).poly(rim, mix(wall, BLACK, 0.4))
    pen.poly(rim, frame)
    pen.disc(0, 0, 0.88, face)
    _dial(pen, rng, mix(ink, frame, 0.3))
    hour = HOURS.index(cls.removesuffix(" o clock")) + 1
    hands = ink if rng.uniform() < 0.6 else hsv(rng.uniform(), 0.8, 0.9 if dark else 0.5)
    pen.at(0, 0, 1, 30 * hour).line([(0, 0.1), (0, -0.42)], 0.12, hands)
    pen.line([(0, 0.12), (0, -0.72)], 0.06, hands)
    pen.disc(0, 0, 0.09, mix(hands, frame, 0.3))
    return image


TASKS = (DrawnTask("clocks", tuple(f"{hour} o clock" for hour in HOURS), draw),)
