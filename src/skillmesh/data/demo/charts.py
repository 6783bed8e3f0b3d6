"""Charts as printed in a report."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from PIL import Image

from skillmesh.data.demo import canvas
from skillmesh.data.demo.canvas import WHITE, Colour, DrawnTask, Pen, Point, blotches, hsv, mix

AXIS: Colour = (90, 94, 104)
GRID: Colour = (222, 225, 230)
Palette = list[Colour]


def _axes(pen: Pen) -> None:
    for y in (-0.6, -0.2, 0.2):
        pen.line([(-0.75, y), (0.8, y)], 0.012, GRID)
    pen.line([(-0.75, -0.8), (-0.75, 0.65), (0.8, 0.65)], 0.03, AXIS)


def _walk(rng: np.random.Generator, count: int) -> list[Point]:
    """Return a random line from the left of the chart to its right."""
    heights = np.clip(np.cumsum(rng.normal(0, 0.28, count)) + rng.uniform(-0.3, 0.3), -0.75, 0.5)
    return list(zip(np.linspace(-0.7, 0.75, count).tolist(), heights.tolist(), strict=True))


def _bars(pen: Pen, rng: np.random.Generator, colours: Palette) -> None:
    _axes(pen)
    count = int(rng.integers(4, 8))
    step = 1.5 / count
    for k in range(count):
        left = -0.7 + k * step
        pen.poly(canvas.box(left, rng.uniform(-0.75, 0.4), left + 0.7 * step, 0.64), colours[k % 3])


def _lines(pen: Pen, rng: np.random.Generator, colours: Palette) -> None:
    _axes(pen)
    for colour in colours[: rng.integers(1, 4)]:
        points = _walk(rng, int(rng.integers(6, 10)))
        pen.line(points, 0.045, colour)
        for x, y in points:
            pen.disc(x, y, 0.045, colour)


def _area(pen: Pen, rng: np.random.Generator, colours: Palette) -> None:
    _axes(pen)
    low = _walk(rng, 9)
    low = [(x, 0.3 + 0.35 * y) for x, y in low]
    rise = rng.uniform(0.2, 0.7, size=9).tolist()
    high = [(x, max(-0.8, y - r)) for (x, y), r in zip(low, rise, strict=True)]
    for points, colour in ((high, colours[0]), (low, colours[1])):
        pen.poly([(-0.7, 0.64), *points, (0.75, 0.64)], colour)


def _pie(pen: Pen, rng: np.random.Generator, colours: Palette) -> None:
    shares = rng.dirichlet(np.full(int(rng.integers(3, 6)), 3.0))
    edges = np.concatenate([[0], np.cumsum(shares)]) * 2 * np.pi + rng.uniform(0, 6)
    for k, (start, stop) in enumerate(pairwise(edges)):
        middle = (start + stop) / 2
        rim = [(0.8 * float(np.cos(a)), 0.8 * float(np.sin(a))) for a in np.linspace(start, stop, 20)]
        slice_ = pen.at(0.03 * float(np.cos(middle)), 0.03 * float(np.sin(middle)))
        slice_.poly([(0, 0), *rim], colours[k % len(colours)])


def _scatter(pen: Pen, rng: np.random.Generator, colours: Palette) -> None:
    _axes(pen)
    slope = rng.choice([-1.0, 0.0, 1.0])
    for colour in colours[: rng.integers(1, 3)]:
        x = rng.uniform(-0.65, 0.7, size=28)
        y = np.clip(0.6 * slope * x + rng.normal(0, 0.2, 28) - 0.1, -0.8, 0.55)
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            pen.disc(a, b, 0.045, colour)


def _radar(pen: Pen, rng: np.random.Generator, colours: Palette) -> None:
    corners = int(rng.integers(5, 8))
    for radius in (0.85, 0.57, 0.28):
        ring = canvas.regular(corners, radius)
        pen.line([*ring, ring[0]], 0.02, mix(AXIS, GRID, 0.5))
    tips = canvas.regular(corners)
    for x, y in tips:
        pen.line([(0, 0), (0.85 * x, 0.85 * y)], 0.015, GRID)
    reach = rng.uniform(0.25, 0.85, size=corners).tolist()
    web = [(r * x, r * y) for r, (x, y) in zip(reach, tips, strict=True)]
    pen.poly(web, mix(colours[0], WHITE, 0.45))
    pen.line([*web, web[0]], 0.045, colours[0])


def _heat_map(pen: Pen, rng: np.random.Generator, colours: Palette) -> None:
    cells = int(rng.integers(5, 8))
    step = 1.6 / cells
    for k, share in enumerate(rng.uniform(size=cells * cells).tolist()):
        left, top = -0.8 + k % cells * step, -0.8 + k // cells * step
        cell = canvas.box(left, top, left + step * 0.96, top + step * 0.96)
        pen.poly(cell, mix(mix(colours[0], WHITE, 0.85), mix(colours[0], (0, 0, 40), 0.3), share))


def _box_plot(pen: Pen, rng: np.random.Generator, colours: Palette) -> None:
    _axes(pen)
    for k, x in enumerate((-0.5, -0.08, 0.34) if rng.uniform() < 0.5 else (-0.55, -0.22, 0.11, 0.44)):
        middle = rng.uniform(-0.3, 0.15)
        top, bottom = middle - rng.uniform(0.12, 0.25), middle + rng.uniform(0.12, 0.25)
        reach = rng.uniform(0.1, 0.25, size=2)
        pen.line([(x + 0.1, top - reach[0]), (x + 0.1, bottom + reach[1])], 0.025, AXIS)
        for y in (top - reach[0], bottom + reach[1]):
            pen.line([(x + 0.03, y), (x + 0.17, y)], 0.03, AXIS)
        pen.poly(canvas.box(x, top, x + 0.2, bottom), colours[k % 3])
        pen.line([(x + 0.01, middle), (x + 0.19, middle)], 0.04, WHITE)


def _network(pen: Pen, rng: np.random.Generator, colours: Palette) -> None:
    count = int(rng.integers(7, 11))
    angles = np.arange(count) * 2.4 + rng.uniform(0, 6)
    radii = 0.85 * np.sqrt((np.arange(count) + 0.3) / count)
    nodes = list(zip((radii * np.cos(angles)).tolist(), (radii * np.sin(angles)).tolist(), strict=True))
    for k in range(1, count):
        for other in {int(rng.integers(k)), max(0, k - 3)}:
            pen.line([nodes[k], nodes[other]], 0.025, mix(AXIS, GRID, 0.4))
    for k, (x, y) in enumerate(nodes):
        pen.disc(x, y, rng.uniform(0.08, 0.15), colours[k % 3])


CHARTS: dict[str, Callable[[Pen, np.random.Generator, Palette], None]] = {
    "bar chart": _bars,
    "line chart": _lines,
    "area chart": _area,
    "pie chart": _pie,
    "scatter plot": _scatter,
    "radar chart": _radar,
    "heat map": _heat_map,
    "box plot": _box_plot,
    "network": _network,
}


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    desk = hsv(rng.uniform(0.5, 0.7), rng.uniform(0.05, 0.2), rng.uniform(0.7, 0.85))
    image = blotches(rng, side, [desk, mix(desk, WHITE, 0.2)], 2)
    pen = Pen.posed(image, rng, turn=6, scale=(0.8, 0.92), squeeze=0.08)
    pen.at(0.02, 0.03).poly(canvas.round_box(1, 1, 0.05), mix(desk, (0, 0, 0), 0.2))
    pen.poly(canvas.round_box(1, 1, 0.05), (252, 252, 252))
    hue, step = rng.uniform(), rng.choice([0.09, 0.22, 0.33])
    colours = [hsv(hue + k * step, rng.uniform(0.5, 0.8), rng.uniform(0.65, 0.9)) for k in range(5)]
    CHARTS[cls](pen, rng, colours)
    return image


TASKS = (DrawnTask("charts", tuple(CHARTS), draw),)
