"""What all demo tasks share: a pen in unit coordinates, backdrops, and the finish (blur, light, noise).

Tasks draw at twice the wanted size in coordinates from -1 to 1 (y points down), and the pen's pose turns,
squeezes and moves everything at once. The reduction to the wanted size smooths the edges.
"""

import colorsys
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from skillmesh.data.demo.fonts import glyph

Colour = tuple[int, int, int]
Point = tuple[float, float]
Array = npt.NDArray[np.float64]

WHITE: Colour = (250, 250, 246)
BLACK: Colour = (24, 24, 28)


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """A colour by hue (0 to 1, wraps round), saturation and value."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return int(red * 255), int(green * 255), int(blue * 255)


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """The colour `share` of the way from the first to the second."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def vary(rng: np.random.Generator, colour: Colour, amount: int = 14) -> Colour:
    """A colour close to the given one."""
    red, green, blue = (int(np.clip(part + rng.integers(-amount, amount + 1), 0, 255)) for part in colour)
    return red, green, blue


def blotches(rng: np.random.Generator, side: int, colours: Sequence[Colour], cells: int = 2) -> Image.Image:
    """A soft backdrop: a grid of random colours, blown up. Two cells make a gradient."""
    grid = np.array(colours, dtype=np.uint8)[rng.integers(len(colours), size=(cells, cells))]
    soft = Image.fromarray(grid).resize((24, 24), Image.Resampling.BICUBIC)  # small first: it is quicker
    return soft.resize((side, side), Image.Resampling.BILINEAR)


def smooth_field(rng: np.random.Generator, side: int, cells: int) -> Array:
    """Smooth random heights of about unit spread, `cells` bumps across."""
    grid = Image.fromarray(rng.standard_normal((cells, cells)).astype(np.float32))
    return np.asarray(grid.resize((side, side), Image.Resampling.BICUBIC), dtype=np.float64)


def turned_grid(rng: np.random.Generator, side: int, turn: float = 180.0) -> tuple[Array, Array]:
    """Pixel coordinates from -1 to 1, turned by up to `turn` degrees and moved by a random phase."""
    axis = np.linspace(-1.0, 1.0, side)
    angle = np.deg2rad(rng.uniform(-turn, turn))
    right, down = rng.uniform(0.0, 5.0, size=2)
    x, y = axis[None, :], axis[:, None]
    return x * np.cos(angle) + y * np.sin(angle) + right, y * np.cos(angle) - x * np.sin(angle) + down


def paint(share: Array, first: Colour, second: Colour) -> Image.Image:
    """An image whose pixels lie `share` of the way from the first colour to the second."""
    part = np.clip(share, 0.0, 1.0)[..., None].astype(np.float32)
    start, stop = np.array(first, dtype=np.float32), np.array(second, dtype=np.float32)
    return Image.fromarray((start + part * (stop - start)).astype(np.uint8))


def finish(image: Image.Image, rng: np.random.Generator, size: int) -> Image.Image:
    """Bring a drawing to size and make a photograph of it: blur, exposure and grain."""
    small = image.resize((size, size), Image.Resampling.BOX)
    small = small.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.9) * size / 160))
    pixels = np.asarray(small, dtype=np.float32)
    pixels = (pixels - 128) * rng.uniform(0.85, 1.05) + 128 + rng.uniform(-12, 12)
    grain = rng.standard_normal((size, size, 1), dtype=np.float32) * np.float32(rng.uniform(1.5, 7.0))
    return Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))


class Pen:
    """Draws in unit coordinates on an image, through one linear map and a shift."""

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
    ) -> "Pen":
        """A pen of random place, size and turn (in degrees); the disc of radius `reach` stays inside."""
        half = image.width / 2
        size = rng.uniform(*scale)
        wide = 1.0 + rng.uniform(-squeeze, squeeze)
        matrix = _rotation(rng.uniform(-turn, turn)) @ np.diag([wide, 1 / wide]) * size * half
        room = max(0.0, 0.97 - size * reach) * half
        return cls(image, matrix, half + rng.uniform(-room, room, size=2))

    def at(self, x: float, y: float, scale: float = 1.0, turn: float = 0.0) -> "Pen":
        """A pen whose origin lies at (x, y) of this one, scaled and turned by degrees."""
        matrix = self.matrix @ _rotation(turn) * scale
        return Pen(self.image, matrix, self.matrix @ np.array([x, y]) + self.shift)

    def poly(self, points: Iterable[Point], fill: Colour) -> None:
        self._draw.polygon(self._map(points), fill=fill)

    def disc(self, x: float, y: float, radius: float, fill: Colour, *, tall: float = 1.0) -> None:
        """A disc, or an ellipse `tall` times as high as wide."""
        self.poly([(x + radius * a, y + radius * tall * b) for a, b in _CIRCLE], fill)

    def line(self, points: Iterable[Point], width: float, fill: Colour) -> None:
        """A line with round joints and ends; `width` in units."""
        mapped = self._map(points)
        pixels = max(1, round(width * self.unit))
        self._draw.line(mapped, fill=fill, width=pixels, joint="curve")
        for x, y in (mapped[0], mapped[-1]):
            reach = (pixels - 1) / 2
            self._draw.ellipse((x - reach, y - reach, x + reach, y + reach), fill=fill)

    def arc(
        self, x: float, y: float, radius: float, start: float, stop: float, width: float, fill: Colour
    ) -> None:
        """Part of a circle, in degrees clockwise from the right."""
        angles = np.deg2rad(np.linspace(start, stop, 28))
        self.line([(x + radius * np.cos(a), y + radius * np.sin(a)) for a in angles], width, fill)

    def text(
        self, words: str, fill: Colour, *, font: str = "DejaVuSans-Bold", high: float = 1.0, wide: float = 1.0
    ) -> None:
        """Words centred on the origin, as large as fits between ±`high` and ±`wide`."""
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
