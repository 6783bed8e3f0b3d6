"""Drawing tools of all demo tasks: letters, a pen in unit coordinates, outlines, backgrounds and photo effects.

Tasks draw at twice the final size in coordinates from -1 to 1 (y points down), and the pen's pose rotates,
stretches and moves everything together. Shrinking to the final size smooths the edges.
"""

from __future__ import annotations

import colorsys
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from skillmesh.common.extras import MATPLOTLIB
from skillmesh.errors import DataError

PIXELS = 150


@lru_cache(maxsize=1)
def font_folder() -> Path:
    """Return the folder with the fonts."""
    try:
        import matplotlib
    except ImportError as error:
        raise DataError(MATPLOTLIB.missing("drawing tasks with letters")) from error
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


@lru_cache(maxsize=16)
def font(name: str) -> ImageFont.FreeTypeFont:
    """Return a font by its file name without the extension."""
    path = font_folder() / f"{name}.ttf"
    try:
        return ImageFont.truetype(path, PIXELS)
    except OSError as error:
        raise DataError(
            f"cannot read the font {path}: {error}; reinstall it with: pip install --force-reinstall matplotlib"
        ) from error


@lru_cache(maxsize=1024)
def glyph(name: str, words: str) -> Image.Image:
    """Return a mask of the words with an empty border of one pixel. It is cached: copy it before changing it."""
    left, top, right, bottom = font(name).getbbox(words)
    stencil = Image.new("L", (int(right - left) + 2, int(bottom - top) + 2))
    ImageDraw.Draw(stencil).text((1 - left, 1 - top), words, fill=255, font=font(name))
    return stencil


Colour = tuple[int, int, int]
Point = tuple[float, float]
Array = npt.NDArray[np.float64]

WHITE: Colour = (250, 250, 246)
BLACK: Colour = (24, 24, 28)


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """Return a colour by hue (0 to 1, wraps around), saturation and value."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return int(red * 255), int(green * 255), int(blue * 255)


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """Return a mixture of two colours; `share` is the second colour's part, 0 to 1."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def vary(rng: np.random.Generator, colour: Colour, amount: int = 14) -> Colour:
    """Return a random colour close to the given one."""
    red, green, blue = (int(np.clip(part + rng.integers(-amount, amount + 1), 0, 255)) for part in colour)
    return red, green, blue


def blotches(rng: np.random.Generator, side: int, colours: Sequence[Colour], cells: int = 2) -> Image.Image:
    """Return a soft background: a small grid of random colours, enlarged. Two cells make a gradient."""
    grid = np.array(colours, dtype=np.uint8)[rng.integers(len(colours), size=(cells, cells))]
    soft = Image.fromarray(grid).resize((24, 24), Image.Resampling.BICUBIC)  # small first: it is quicker
    return soft.resize((side, side), Image.Resampling.BILINEAR)


def smooth_field(rng: np.random.Generator, side: int, cells: int) -> Array:
    """Return smooth random heights with a standard deviation of about 1 and `cells` bumps per side."""
    grid = Image.fromarray(rng.standard_normal((cells, cells)).astype(np.float32))
    return np.asarray(grid.resize((side, side), Image.Resampling.BICUBIC), dtype=np.float64)


def turned_grid(rng: np.random.Generator, side: int, turn: float = 180.0) -> tuple[Array, Array]:
    """Return pixel coordinates from -1 to 1, rotated by up to `turn` degrees and moved by a random phase."""
    axis = np.linspace(-1.0, 1.0, side)
    angle = np.deg2rad(rng.uniform(-turn, turn))
    right, down = rng.uniform(0.0, 5.0, size=2)
    x, y = axis[None, :], axis[:, None]
    return x * np.cos(angle) + y * np.sin(angle) + right, y * np.cos(angle) - x * np.sin(angle) + down


def paint(share: Array, first: Colour, second: Colour) -> Image.Image:
    """Return an image that mixes two colours; `share` is the second colour's part for each pixel, 0 to 1."""
    part = np.clip(share, 0.0, 1.0)[..., None].astype(np.float32)
    start, stop = np.array(first, dtype=np.float32), np.array(second, dtype=np.float32)
    return Image.fromarray((start + part * (stop - start)).astype(np.uint8))


def finish(image: Image.Image, rng: np.random.Generator, size: int) -> Image.Image:
    """Return a drawing at its final size, with the blur, exposure and grain of a photo."""
    small = image.resize((size, size), Image.Resampling.BOX)
    small = small.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.9) * size / 160))
    pixels = np.asarray(small, dtype=np.float32)
    pixels = (pixels - 128) * rng.uniform(0.85, 1.05) + 128 + rng.uniform(-12, 12)
    grain = rng.standard_normal((size, size, 1), dtype=np.float32) * np.float32(rng.uniform(1.5, 7.0))
    return Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))


class Pen:
    """A pen that draws on an image in unit coordinates, through one linear map and a shift."""

    def __init__(self, image: Image.Image, matrix: Array, shift: Array) -> None:
        self.image = image
        self.matrix = matrix
        self.shift = shift
        self.unit = float(np.sqrt(abs(np.linalg.det(matrix))))  # pixels per unit, for line widths
        self._draw = ImageDraw.Draw(image)

    @classmethod
    def posed(
        cls,
        image: Image.Image,
        rng: np.random.Generator,
        *,
        turn: float = 0.0,
        scale: tuple[float, float] = (0.6, 0.85),
        squeeze: float = 0.06,
        reach: float = 1.0,
    ) -> Pen:
        """Return a pen of random position, size and rotation (degrees); a disc of radius `reach` stays inside."""
        half = image.width / 2
        size = rng.uniform(*scale)
        wide = 1.0 + rng.uniform(-squeeze, squeeze)
        matrix = _rotation(rng.uniform(-turn, turn)) @ np.diag([wide, 1 / wide]) * size * half
        room = max(0.0, 0.97 - size * reach) * half
        return cls(image, matrix, half + rng.uniform(-room, room, size=2))

    def at(self, x: float, y: float, scale: float = 1.0, turn: float = 0.0) -> Pen:
        """Return a pen whose origin is at (x, y) of this one, scaled and rotated by `turn` degrees."""
        matrix = self.matrix @ _rotation(turn) * scale
        return Pen(self.image, matrix, self.matrix @ np.array([x, y]) + self.shift)

    def poly(self, points: Iterable[Point], fill: Colour) -> None:
        self._draw.polygon(self._map(points), fill=fill)

    def disc(self, x: float, y: float, radius: float, fill: Colour, *, tall: float = 1.0) -> None:
        """Draw a disc, or an ellipse that is `tall` times as high as wide."""
        self.poly([(x + radius * a, y + radius * tall * b) for a, b in _CIRCLE], fill)

    def line(self, points: Iterable[Point], width: float, fill: Colour) -> None:
        """Draw a line with round joints and ends; `width` is in units."""
        mapped = self._map(points)
        pixels = max(1, round(width * self.unit))
        self._draw.line(mapped, fill=fill, width=pixels, joint="curve")
        for x, y in (mapped[0], mapped[-1]):
            reach = (pixels - 1) / 2
            self._draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=fill)

    def arc(
        self, x: float, y: float, radius: float, start: float, stop: float, width: float, fill: Colour
    ) -> None:
        """Draw a part of a circle; angles are in degrees clockwise from the right."""
        angles = np.deg2rad(np.linspace(start, stop, 28))
        self.line([(x + radius * np.cos(a), y + radius * np.sin(a)) for a in angles], width, fill)

    def text(
        self, words: str, fill: Colour, *, font: str = "DejaVuSans-Bold", high: float = 1.0, wide: float = 1.0
    ) -> None:
        """Draw words centred on the origin, as large as fits between ±`high` and ±`wide`."""
        mask = glyph(font, words)
        per_unit = max(mask.height / (2 * high), mask.width / (2 * wide))
        back = np.linalg.inv(self.matrix) * per_unit
        start = np.array(mask.size) / 2 - back @ self.shift
        data = (*back[0], start[0], *back[1], start[1])
        stencil = mask.transform(self.image.size, Image.Transform.AFFINE, data, resample=Image.Resampling.BILINEAR)
        self.image.paste(fill, mask=stencil)

    def _map(self, points: Iterable[Point]) -> list[Point]:
        mapped = np.array(list(points), dtype=np.float64) @ self.matrix.T + self.shift
        return [(x, y) for x, y in mapped.tolist()]


def _rotation(degrees: float) -> Array:
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[cos, -sin], [sin, cos]])


_CIRCLE = [(float(np.cos(a)), float(np.sin(a))) for a in np.linspace(0, 2 * np.pi, 40, endpoint=False)]


# Outlines that several tasks draw, as points in the unit square (y points down).


def regular(corners: int, radius: float = 1.0, turn: float = -90.0) -> list[Point]:
    """Return a regular polygon; by default a corner points up."""
    angles = np.deg2rad(turn) + np.arange(corners) * 2 * np.pi / corners
    return [(float(radius * np.cos(a)), float(radius * np.sin(a))) for a in angles]


def star(points: int, inner: float = 0.42) -> list[Point]:
    """Return a star; `inner` is the radius of its inner corners as a share of that of its tips."""
    tips, valleys = regular(points), regular(points, inner, -90 + 180 / points)
    return [corner for pair in zip(tips, valleys, strict=True) for corner in pair]


def box(left: float, top: float, right: float, bottom: float) -> list[Point]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def round_box(wide: float, high: float, radius: float) -> list[Point]:
    """Return a box around the origin with rounded corners."""
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
    """Return a petal that extends upwards from the origin, widest in the middle."""
    steps = np.linspace(0, np.pi, 14)
    right = [(wide * float(np.sin(s) ** 1.2), -length * float((1 - np.cos(s)) / 2)) for s in steps]
    return right + [(-x, y) for x, y in reversed(right)]


def suit(pen: Pen, name: str, fill: Colour) -> None:
    """Draw a playing card's suit in the unit square."""
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


# The type of a demo task, and the seed of an image.

#: (class, generator, side in pixels) -> an RGB image of about that side; `canvas.finish` brings it to size.
Drawer = Callable[[str, np.random.Generator, int], Image.Image]


@dataclass(frozen=True)
class DrawnTask:
    """One demo task; a hidden one is never learned by the demo."""

    name: str
    classes: tuple[str, ...]
    drawer: Drawer
    hidden: bool = False


def stable_seed(*parts: str | int) -> int:
    """Return a 128-bit seed that depends only on the parts; Python's own `hash` changes with every process."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")
