"""Dice and playing cards on a table."""

import numpy as np
from PIL import Image

from skillmesh.data.demo import canvas
from skillmesh.data.demo.canvas import BLACK, WHITE, Colour, DrawnTask, Pen, Point, blotches, hsv, mix, vary

CORNERS: list[Point] = [(-1, -1), (1, 1), (1, -1), (-1, 1)]
PIPS: dict[str, list[Point]] = {
    "one": [(0, 0)],
    "two": CORNERS[:2],
    "three": [*CORNERS[:2], (0, 0)],
    "four": CORNERS,
    "five": [*CORNERS, (0, 0)],
    "six": [*CORNERS, (-1, 0), (1, 0)],
}
SUITS = ("hearts", "diamonds", "clubs", "spades")
RANKS: dict[str, tuple[str, list[Point]]] = {
    "ace": ("A", [(0, 0)]),
    "three": ("3", [(0, -1), (0, 0), (0, 1)]),
    "five": ("5", PIPS["five"]),
}


def draw_die(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    """Draw one die from above; its sides are visible as a rim that is thicker on the near edge."""
    wood = hsv(rng.uniform(0.05, 0.12), rng.uniform(0.4, 0.6), rng.uniform(0.4, 0.65))
    image = blotches(rng, side, [wood, vary(rng, wood), mix(wood, BLACK, 0.2)], 4)
    pen = Pen.posed(image, rng, turn=180, scale=(0.42, 0.6), reach=1.45)
    body = WHITE if rng.uniform() < 0.5 else hsv(rng.uniform(), 0.8, rng.uniform(0.4, 0.75))
    dots = BLACK if body == WHITE and rng.uniform() < 0.7 else mix(WHITE, body, 0.05)
    if body == WHITE and dots != BLACK:
        dots = (190, 30, 40)
    down = side * rng.uniform(0.03, 0.06)
    face = canvas.round_box(1.0, 1.0, rng.uniform(0.15, 0.4))
    for drop, colour in ((1.8 * down, mix(wood, BLACK, 0.5)), (down, mix(body, BLACK, 0.35)), (0.0, body)):
        Pen(image, pen.matrix, pen.shift + np.array([0.4, 1.0]) * drop).poly(face, colour)
    pen.at(0, 0, 0.93).poly(face, mix(body, WHITE, 0.25))
    radius = 0.16 if cls != "one" else 0.22
    for x, y in PIPS[cls]:
        pen.disc(0.52 * x, 0.52 * y, radius, mix(dots, BLACK, 0.3))
        pen.disc(0.52 * x, 0.52 * y + 0.015, radius * 0.85, dots)
    return image


def draw_card(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    rank, suit = cls.split(" of ")
    felt: Colour = hsv(rng.uniform(0.33, 0.62), rng.uniform(0.5, 0.8), rng.uniform(0.3, 0.5))
    image = blotches(rng, side, [felt, vary(rng, felt, 10), mix(felt, BLACK, 0.15)], 3)
    pen = Pen.posed(image, rng, turn=35, scale=(0.62, 0.84), reach=1.1)
    paper = vary(rng, (246, 244, 236), 6)
    ink = vary(rng, (200, 24, 36) if suit in SUITS[:2] else (26, 26, 32), 12)
    edge = canvas.round_box(0.72, 1.0, 0.1)
    Pen(image, pen.matrix, pen.shift + side * 0.02).poly(edge, mix(felt, BLACK, 0.45))
    pen.poly(edge, mix(paper, BLACK, 0.2))
    pen.at(0, 0, 0.98).poly(edge, paper)
    letter, pips = RANKS[rank]
    for turn, sign in ((0, -1), (180, 1)):
        pen.at(0.56 * sign, 0.8 * sign, 1, turn).text(letter, ink, high=0.13, wide=0.13)
        canvas.suit(pen.at(0.56 * sign, 0.54 * sign, 0.1, turn), suit, ink)
    for x, y in pips:
        spread = pen.at(0.25 * x, 0.56 * y, 0.42 if rank == "ace" else 0.21, 180 if y > 0 else 0)
        canvas.suit(spread, suit, ink)
    return image


TASKS = (
    DrawnTask("dice", tuple(PIPS), draw_die),
    DrawnTask("cards", tuple(f"{rank} of {suit}" for suit in SUITS for rank in RANKS), draw_card),
)
