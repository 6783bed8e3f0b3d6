"""Road signs on a post, in front of sky and trees."""

from collections.abc import Callable

import numpy as np
from PIL import Image

from skillmesh.data.demo import canvas
from skillmesh.data.demo.canvas import BLACK, WHITE, Colour, DrawnTask, Pen, blotches, vary

RED: Colour = (200, 28, 36)
BLUE: Colour = (20, 80, 170)
YELLOW: Colour = (250, 196, 20)


def _layers(pen: Pen, points: list[tuple[float, float]], *layers: tuple[float, Colour]) -> None:
    for scale, colour in layers:
        pen.at(0, 0, scale).poly(points, colour)


def _stop(pen: Pen, rng: np.random.Generator) -> None:
    _layers(pen, canvas.regular(8, turn=22.5), (1.0, WHITE), (0.93, RED))
    pen.text("STOP", WHITE, high=0.32, wide=0.72)


def _give_way(pen: Pen, rng: np.random.Generator) -> None:
    _layers(pen.at(0, -0.2), canvas.regular(3, turn=90), (1.05, RED), (0.6, WHITE))


def _danger(pen: Pen, rng: np.random.Generator) -> None:
    _layers(pen.at(0, 0.2), canvas.regular(3), (1.1, RED), (0.72, WHITE))
    pen.at(0, 0.16).text("!", BLACK, high=0.38)


def _no_entry(pen: Pen, rng: np.random.Generator) -> None:
    _layers(pen, canvas.regular(48), (1.0, WHITE), (0.95, RED))
    pen.poly(canvas.box(-0.68, -0.16, 0.68, 0.16), WHITE)


def _speed_limit(pen: Pen, rng: np.random.Generator) -> None:
    _layers(pen, canvas.regular(48), (1.0, RED), (0.76, WHITE))
    pen.text(str(rng.choice([30, 40, 50, 60, 70, 80, 90])), BLACK, high=0.4, wide=0.55)


def _priority(pen: Pen, rng: np.random.Generator) -> None:
    _layers(pen, canvas.regular(4), (1.05, BLACK), (1.01, WHITE), (0.72, YELLOW))


def _parking(pen: Pen, rng: np.random.Generator) -> None:
    _layers(pen, canvas.round_box(0.85, 0.85, 0.15), (1.0, WHITE), (0.94, BLUE))
    pen.text("P", WHITE, high=0.55)


def _turn(sign: int) -> Callable[[Pen, np.random.Generator], None]:
    def draw(pen: Pen, rng: np.random.Generator) -> None:
        _layers(pen, canvas.regular(48), (1.0, WHITE), (0.95, BLUE))
        pen.line([(-0.35 * sign, 0.55), (-0.35 * sign, -0.05), (0.2 * sign, -0.05)], 0.22, WHITE)
        pen.poly([(0.15 * sign, -0.42), (0.7 * sign, -0.05), (0.15 * sign, 0.32)], WHITE)

    return draw


def _roundabout(pen: Pen, rng: np.random.Generator) -> None:
    _layers(pen, canvas.regular(48), (1.0, WHITE), (0.95, BLUE))
    for turn in (0, 120, 240):
        part = pen.at(0, 0, 1, turn)
        part.arc(0, 0, 0.5, -85, -15, 0.17, WHITE)
        part.at(0.5, -0.12).poly([(-0.25, -0.02), (0.25, -0.02), (-0.04, 0.36)], WHITE)


def _crossing(pen: Pen, rng: np.random.Generator) -> None:
    _layers(pen, canvas.round_box(0.88, 0.88, 0.1), (1.0, WHITE), (0.95, BLUE))
    pen.poly([(0, -0.72), (0.72, 0.68), (-0.72, 0.68)], WHITE)
    walker = pen.at(0, 0.14, 0.42)
    walker.disc(0.05, -0.85, 0.2, BLACK)
    walker.line([(0, -0.5), (0, 0.1)], 0.3, BLACK)
    for limb in ([(0, 0.1), (0.5, 1.05)], [(0, 0.1), (-0.5, 1.05)], [(0, -0.5), (0.5, 0)], [(0, -0.5), (-0.5, 0)]):
        walker.line(limb, 0.17, BLACK)


SIGNS: dict[str, Callable[[Pen, np.random.Generator], None]] = {
    "stop": _stop,
    "give way": _give_way,
    "no entry": _no_entry,
    "speed limit": _speed_limit,
    "danger": _danger,
    "priority road": _priority,
    "parking": _parking,
    "turn left": _turn(-1),
    "turn right": _turn(1),
    "roundabout": _roundabout,
    "pedestrian crossing": _crossing,
}


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    skies: list[Colour] = [(140, 180, 220), (200, 220, 235), (230, 230, 225), (120, 150, 110), (90, 120, 80)]
    image = blotches(rng, side, [vary(rng, colour) for colour in skies], int(rng.integers(3, 6)))
    pen = Pen.posed(image, rng, turn=9, scale=(0.5, 0.76), squeeze=0.1)
    pen.poly(canvas.box(-0.07, 0, 0.07, 4), vary(rng, (120, 122, 128), 25))
    SIGNS[cls](pen, rng)
    return image


TASKS = (DrawnTask("signs", tuple(SIGNS), draw),)
