"""Machine-readable codes on labels. They look real but hold no data. The demo never learns them."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image

from skillmesh.data.demo import canvas
from skillmesh.data.demo.canvas import WHITE, Colour, DrawnTask, Pen, blotches, hsv, mix

Cells = npt.NDArray[np.int64]
INK: Colour = (18, 18, 20)


def _cells(pen: Pen, cells: Cells, wide: float = 0.82, high: float = 0.82) -> None:
    """Draw a grid of dark cells between ±`wide` and ±`high`, in the pen's pose, all at once."""
    rows, columns = cells.shape
    per_unit = np.diag([columns / (2 * wide), rows / (2 * high)])
    back = per_unit @ np.linalg.inv(pen.matrix)
    start = np.array([columns, rows]) / 2 - back @ pen.shift
    stencil = Image.fromarray((cells * 255).astype(np.uint8)).transform(
        pen.image.size, Image.Transform.AFFINE, (*back[0], start[0], *back[1], start[1])
    )
    pen.image.paste(INK, mask=stencil)


def _rings(cells: Cells, row: int, column: int, reach: int, quiet: int) -> None:
    """Draw concentric squares with an empty margin of `quiet` cells around them."""
    for ring in range(reach + quiet, -1, -1):
        dark = int(ring <= reach and ring % 2 == reach % 2)
        top, left = max(0, row - ring), max(0, column - ring)
        cells[top : row + ring + 1, left : column + ring + 1] = dark


def _bars(pen: Pen, rng: np.random.Generator) -> None:
    row = rng.integers(2, size=57)
    row[[0, 2, 28, 56, 54]] = 1
    row[[1, 55]] = 0
    _cells(pen.at(0, -0.12), row[None, :], high=0.6)
    pen.at(0, 0.68).text(" ".join(str(d) for d in rng.integers(10, size=9)), INK, high=0.1, wide=0.8)


def _qr(pen: Pen, rng: np.random.Generator) -> None:
    cells = rng.integers(2, size=(25, 25))
    for row, column in ((3, 3), (3, 21), (21, 3)):
        cells[max(0, row - 4) : row + 5, max(0, column - 4) : column + 5] = 0
        cells[row - 3 : row + 4, column - 3 : column + 4] = 1
        cells[row - 2 : row + 3, column - 2 : column + 3] = 0
        cells[row - 1 : row + 2, column - 1 : column + 2] = 1
    _rings(cells, 18, 18, 2, 0)
    _cells(pen, cells)


def _data_matrix(pen: Pen, rng: np.random.Generator) -> None:
    cells = rng.integers(2, size=(16, 16))
    cells[0], cells[:, -1] = np.arange(16) % 2 == 0, np.arange(16) % 2 == 1
    cells[:, 0] = cells[-1] = 1
    _cells(pen, cells)


def _aztec(pen: Pen, rng: np.random.Generator) -> None:
    cells = rng.integers(2, size=(23, 23))
    _rings(cells, 11, 11, 6, 1)
    _cells(pen, cells)


def _postal(pen: Pen, rng: np.random.Generator) -> None:
    for y in (-0.4, 0.4):
        for x in np.linspace(-0.8, 0.8, 26).tolist():
            up, down = rng.choice([0.08, 0.28], size=2).tolist()
            pen.poly(canvas.box(x - 0.015, y - up, x + 0.015, y + down), INK)


def _stacked(pen: Pen, rng: np.random.Generator) -> None:
    cells = rng.integers(2, size=(12, 60))
    edge = np.array([1, 1, 1, 1, 0, 1, 0, 1, 0])
    cells[:, :9], cells[:, -9:] = edge, edge[::-1]
    _cells(pen, cells, high=0.5)


CODES: dict[str, Callable[[Pen, np.random.Generator], None]] = {
    "barcode": _bars,
    "QR code": _qr,
    "data matrix": _data_matrix,
    "Aztec code": _aztec,
    "postal code": _postal,
    "stacked code": _stacked,
}


def draw(cls: str, rng: np.random.Generator, side: int) -> Image.Image:
    box = hsv(rng.uniform(0.04, 0.12), rng.uniform(0.2, 0.5), rng.uniform(0.55, 0.8))
    image = blotches(rng, side, [box, mix(box, WHITE, 0.15), mix(box, INK, 0.12)], 4)
    pen = Pen.posed(image, rng, turn=25, scale=(0.62, 0.8), reach=1.25)
    label = canvas.round_box(1, 1, 0.04)
    pen.at(0.02, 0.03).poly(label, mix(box, INK, 0.4))
    pen.poly(label, mix(WHITE, box, rng.uniform(0, 0.15)))
    CODES[cls](pen, rng)
    return image


TASKS = (DrawnTask("barcodes", tuple(CODES), draw, hidden=True),)
