"""Style of the figures: few lines, colours safe for colour-blind readers, and a second sign beside colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from skillmesh.common.extras import REPORT
from skillmesh.errors import SkillmeshError
from skillmesh_challenge.metrics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800")
"""Colours of Okabe and Ito; their yellow is darkened to be visible on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo", "--")
End = tuple[float, float, str, str]
"""End of a curve (x and y), its name and its colour."""
GREY = "#666666"
HEAT = "cividis"
"""Colour map with even brightness steps that looks the same to people who do not see red or green."""
SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.6,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "skillmesh",
    "savefig.facecolor": "white",
}


@contextmanager
def drawing() -> Iterator[None]:
    """Apply our matplotlib settings inside the block and restore the caller's afterwards."""
    try:
        import matplotlib
    except ImportError as error:
        raise SkillmeshError(REPORT.missing("the report")) from error
    with matplotlib.rc_context(SETTINGS):
        yield


def canvas(width: float, height: float) -> Canvas:
    """Return an empty figure, sized in inches, that belongs to no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def signs(index: int) -> dict[str, Any]:
    """Return colour, marker and line style of a curve; no two of the first 32 share all three."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[(index // len(PALETTE)) % len(LINES)],
    }


def draw_curve(
    axes: Axes, curve: Sequence[Interval | None], index: int, band: bool = True, **changes: Any
) -> None:
    """Draw a curve over 1, 2, … tasks; if `band` and with several seeds, with its confidence band."""
    points = [(t, point) for t, point in enumerate(curve, 1) if point is not None]
    if not points:
        return
    x = [t for t, _ in points]
    y = [100 * point.mean for _, point in points]
    look = signs(index) | {"markevery": max(1, len(x) // 10), "clip_on": False} | changes
    axes.plot(x, y, **look)
    wide = [100 * (point.half_width or 0) for _, point in points]
    if band and any(wide):
        low, high = ([v + sign * w for v, w in zip(y, wide, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)


def label_ends(axes: Axes, ends: Sequence[End], gap: float = 0.06) -> None:
    """Write names beside the ends of curves, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    ordered = sorted(ends, key=lambda end: end[1])
    for y, (x, true, name, colour) in zip(_apart(ordered, gap * (high - low)), ordered, strict=True):
        line = {
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.6,
            "shrinkA": 1,
            "shrinkB": 2,
            "relpos": (0, 0.5),
        }
        axes.annotate(
            name,
            (x, true),
            (right + 0.03 * (right - left), y),
            color=colour,
            va="center",
            ha="left",
            annotation_clip=False,
            arrowprops=line,
        )


def _apart(ordered: Sequence[End], step: float) -> list[float]:
    """Return heights for names that are at least `step` apart and near the ends of their curves."""
    placed = [y for _, y, _, _ in ordered]
    for _ in range(200):
        for index in range(1, len(placed)):
            missing = placed[index - 1] + step - placed[index]
            if missing > 0:
                placed[index - 1] -= missing / 2
                placed[index] += missing / 2
    return placed


def limits(values: Sequence[float], step: float = 5.0) -> tuple[float, float]:
    """Return the limits of a percentage axis that shows all values: a round number below them, and 100.

    There is no room above 100 % for markers: draw them with `clip_on=False`.
    """
    lowest = min(values, default=0.0)
    return min(max(0.0, step * ((lowest - 0.5) // step)), 100.0 - step), 100.0


def whole_numbers(axes: Axes) -> None:
    """Put ticks at whole numbers only, since tasks are counted."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
