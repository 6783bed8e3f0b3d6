"""Plain shapes in bright colours on soft backgrounds."""

from collections.abc import Callable

import numpy as np
from PIL import Image

from skillmesh.data.demo import canvas
from skillmesh.data.demo.canvas import DrawnTask, Pen, Point, blotches, hsv, mix

SHAPES: dict[str, Callable[[], list[Point]]] = {
    "circle": lambda: canvas.regular(48),
    "triangle": lambda: canvas.regular(3),
    "square": lambda: canvas.box(-0.8, -0.8, 0.8, 0.8),
    "pentagon": lambda: canvas.regular(5),
    "hexagon": lambda: canvas.regular(6),
    "star": lambda: canvas.star(5),
    "heart": canvas.heart,
    "crescent": canvas.crescent,
    "cross": canvas.cross,
    "arrow": lambda: [(0, -1), (0.8, -0.1), (0.3, -0.1), (0.3, 1), (-0.3, 1), (-0.3, -0.1), (-0.8, -0.1)],
}


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    hue = rng.uniform()
    ground = [hsv(hue + 0.1 * k, 0.25, 0.95 - 0.08 * k) for k in range(3)]
    image = blotches(rng, side, ground, 2)
    pen = Pen.posed(image, rng, turn=180, scale=(0.45, 0.8))
    fill = hsv(hue + rng.uniform(0.3, 0.7), rng.uniform(0.6, 0.95), rng.uniform(0.55, 0.95))
    points = SHAPES[cls]()
    shade = mix(ground[1], (0, 0, 0), 0.25)
    Pen(image, pen.matrix, pen.shift + side * 0.02).poly(points, shade)
    pen.poly(points, mix(fill, (0, 0, 0), 0.3))
    pen.at(0, 0, rng.uniform(0.86, 0.94)).poly(points, fill)
    return image


TASKS = (DrawnTask("shapes", tuple(SHAPES), draw),)
