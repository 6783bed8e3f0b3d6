"""How figures look: few lines, colours that all people can tell apart, and a second sign beside colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from skillmesh.errors import SkillmeshError
from skillmesh_challenge.metrics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800")
"""Okabe and Ito's; their yellow is darkened, for on white nobody sees it."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo", "--")
End = tuple[float, float, str, str]
"""Where a curve ends (x and y), its name and its colour."""
GREY = "#666666"
HEAT = "cividis"
"""Even in brightness, and the same to people who do not see red or green."""
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
    """Draw with our settings and without a screen; what others set in matplotlib stays as it was."""
    try:
        import matplotlib
    except ImportError as error:
        raise SkillmeshError(
            "the report is drawn with matplotlib, which is not installed; pip install 'skillmesh[challenge]'"
        ) from error
    with matplotlib.rc_context(SETTINGS):
        yield


def canvas(width: float, height: float) -> Canvas:
    """A figure in inches that belongs to no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    made = Canvas(figsize=(width, height))
    FigureCanvasAgg(made)
    return made


def signs(index: int) -> dict[str, Any]:
    """Colour, marker and line of the curve at `index`: no two of the first 32 have all three in common."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[(index // len(PALETTE)) % len(LINES)],
    }


def draw_curve(
    axes: Axes, curve: Sequence[Interval | None], index: int, band: bool = True, **changes: Any
) -> None:
    """A series after 1, 2, … tasks, with its confidence band where there are several seeds and it is wanted."""
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
    """Write names beside the ends of curves, moved apart where they would touch."""
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
    """Heights of names that lie `step` apart at least, near those of their curves."""
    placed = [y for _, y, _, _ in ordered]
    for _ in range(200):
        for index in range(1, len(placed)):
            missing = placed[index - 1] + step - placed[index]
            if missing > 0:
                placed[index - 1] -= missing / 2
                placed[index] += missing / 2
    return placed


def limits(values: Sequence[float], step: float = 5.0) -> tuple[float, float]:
    """Return the ends of an axis of per cents that shows all values: a round number below them, and 100.

    Nothing is left above 100 % for markers: draw them with `clip_on=False`.
    """
    lowest = min(values, default=0.0)
    return min(max(0.0, step * ((lowest - 0.5) // step)), 100.0 - step), 100.0


def whole_numbers(axes: Axes) -> None:
    """Tasks come in ones."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
