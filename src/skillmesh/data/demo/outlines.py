"""Outlines that several tasks draw, as points in the unit square (y points down)."""

import numpy as np

from skillmesh.data.demo.canvas import Colour, Pen, Point


def regular(corners: int, radius: float = 1.0, turn: float = -90.0) -> list[Point]:
    """A regular polygon; by default a corner points up."""
    angles = np.deg2rad(turn) + np.arange(corners) * 2 * np.pi / corners
    return [(float(radius * np.cos(a)), float(radius * np.sin(a))) for a in angles]


def star(points: int, inner: float = 0.42) -> list[Point]:
    """A star whose valleys lie `inner` of the way to its tips."""
    tips, valleys = regular(points), regular(points, inner, -90 + 180 / points)
    return [corner for pair in zip(tips, valleys, strict=True) for corner in pair]


def box(left: float, top: float, right: float, bottom: float) -> list[Point]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def round_box(wide: float, high: float, radius: float) -> list[Point]:
    """A box round the origin with rounded corners."""
    corners = ((1, 1, 0), (-1, 1, 90), (-1, -1, 180), (1, -1, 270))
    return [
        (
            sx * (wide - radius) + radius * float(np.cos(np.deg2rad(start + step))),
            sy * (high - radius) + radius * float(np.sin(np.deg2rad(start + step))),
        )
        for sx, sy, start in corners
        for step in range(0, 91, 15)
    ]


def heart() -> list[Point]:
    angles = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    x = np.sin(angles) ** 3
    y = -(13 * np.cos(angles) - 5 * np.cos(2 * angles) - 2 * np.cos(3 * angles) - np.cos(4 * angles)) / 16
    return list(zip(x.tolist(), (y - 0.08).tolist(), strict=True))


def crescent() -> list[Point]:
    outer = [(float(np.cos(a)), float(np.sin(a))) for a in np.linspace(0.75, 2 * np.pi - 0.75, 40)]
    tip_x, tip_y = outer[0]
    start = np.arctan2(tip_y, tip_x - 0.42)
    reach = float(np.hypot(tip_x - 0.42, tip_y))
    inner = [
        (0.42 + reach * float(np.cos(a)), reach * float(np.sin(a)))
        for a in np.linspace(2 * np.pi - start, start, 30)
    ]
    return outer + inner


def cross(arm: float = 0.34) -> list[Point]:
    quarter = [(arm, -1.0), (arm, -arm), (1.0, -arm)]
    points: list[Point] = []
    for _ in range(4):
        points += quarter
        quarter = [(-y, x) for x, y in quarter]
    return points


def petal(length: float, wide: float) -> list[Point]:
    """A petal from the origin upwards, widest past the middle."""
    steps = np.linspace(0, np.pi, 14)
    right = [(wide * float(np.sin(s) ** 1.2), -length * float((1 - np.cos(s)) / 2)) for s in steps]
    return right + [(-x, y) for x, y in reversed(right)]


def suit(pen: Pen, name: str, fill: Colour) -> None:
    """A playing card's suit, in the unit square."""
    if name == "hearts":
        pen.poly(heart(), fill)
    elif name == "diamonds":
        pen.poly([(0, -1), (0.72, 0), (0, 1), (-0.72, 0)], fill)
    else:
        if name == "spades":
            pen.poly([(0.9 * x, -0.85 * y - 0.15) for x, y in heart()], fill)
        else:
            for x, y in ((0.0, -0.52), (0.5, 0.2), (-0.5, 0.2)):
                pen.disc(x, y, 0.45, fill)
            pen.disc(0.0, 0.0, 0.3, fill)
        pen.poly([(-0.08, 0.1), (0.08, 0.1), (0.34, 1.0), (-0.34, 1.0)], fill)
