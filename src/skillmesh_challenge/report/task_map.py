"""Map of the tasks in two dimensions: distances between their anchors, and which tasks are confused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh.errors import SkillmeshError
from skillmesh_challenge.record import Record
from skillmesh_challenge.report.collect import Comparison, Group
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.heat import confused_pairs, slug
from skillmesh_challenge.report.style import GREY, PALETTE, canvas
from skillmesh_challenge.report.table import ReportTable, number, rows, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Points = NDArray[np.float64]
LINKS = 12
"""Largest number of pairs that are joined by lines."""


def task_maps(comparison: Comparison) -> tuple[list[Figure], list[str]]:
    """Return a map for each method with modules, and notes on the methods that have none."""
    figures: list[Figure] = []
    lacking: dict[str, list[str]] = {}
    for group in comparison.shown:
        try:
            centres = _centres(group.first)
        except (OSError, SkillmeshError) as error:
            lacking.setdefault(f"modules cannot be read ({error})", []).append(group.label)
            continue
        if centres is None or len(centres) < 3:
            why = "there are no modules" if centres is None else "it needs three tasks or more"
            lacking.setdefault(why, []).append(group.label)
            continue
        figures.append(_figure(group, *project(centres)))
    return figures, [f"No map of tasks for {'; '.join(labels)}: {why}." for why, labels in lacking.items()]


def _centres(record: Record) -> Points | None:
    """Return the mean of each task's anchor, a row per task; None for a method without modules."""
    from skillmesh.anchors import KINDS
    from skillmesh.module import Module
    from skillmesh.store.bank import specs_for

    if not all(record.module_file(position).exists() for position in range(len(record.settings.tasks))):
        return None
    centres = []
    for position in range(len(record.settings.tasks)):
        module = Module.load(record.module_file(position), specs_for)
        anchor = KINDS[module.card.anchors[0]].read(module.tensors)
        means = np.asarray(anchor.means, dtype=np.float64)  # type: ignore[attr-defined]
        centres.append(np.average(means, axis=0, weights=getattr(anchor, "weights", None)))
    return np.array(centres)


def project(centres: Points) -> tuple[Points, float]:
    """Return the points scaled to two dimensions (classical scaling), and the share of the spread that is kept."""
    centred = centres - centres.mean(axis=0)
    left, strength, _ = np.linalg.svd(centred, full_matrices=False)
    placed = left[:, :2] * strength[:2]
    signs = np.sign(placed[np.abs(placed).argmax(axis=0), [0, 1]])
    placed *= np.where(signs < 0, -1, 1)  # the same signs whatever BLAS is used
    spread = float(np.square(strength).sum())
    return placed, float(np.square(strength[:2]).sum()) / spread if spread else 1.0


def _figure(group: Group, placed: Points, kept: float) -> Figure:
    title = f"Map of the tasks as {group.label} sees them"
    caption = (
        f"Each point is the mean of a task's anchor, placed by classical scaling of the distances to two "
        f"dimensions, which keep {100 * kept:.0f} % of the spread: points that are near here may be far apart in "
        f"the other dimensions. Lines join the tasks most often taken for each other; wider lines mean more "
        f"images. The mapper also uses the shape of each class."
    )
    pairs = confused_pairs(group, LINKS)
    alt = f"{len(placed)} named points. Joined: " + "; ".join(
        f"{group.tasks[i]} with {group.tasks[j]}" for i, j, _, _ in pairs[:5]
    )
    name = f"task-map-{slug(group.label)}"
    cells = [
        [text(task), number(float(x), "{:.3f}"), number(float(y), "{:.3f}")]
        for task, (x, y) in zip(group.tasks, placed, strict=True)
    ]
    table = ReportTable(name, title, ("task", "first dimension", "second dimension"), rows(cells))
    return Figure(name, title, caption, alt, lambda: _draw(group.tasks, placed, pairs), table)


def _draw(tasks: list[str], placed: Points, pairs: list[tuple[int, int, float, int]]) -> Canvas:
    low, high = placed.min(axis=0), placed.max(axis=0)
    wide, tall = np.maximum(high - low, 1e-9)
    figure = canvas(9.0, float(np.clip(9.0 * tall / wide, 4.5, 8.5)))
    axes = figure.add_subplot()
    joined: dict[frozenset[int], float] = {}
    for i, j, share, _ in pairs:
        joined[frozenset((i, j))] = max(share, joined.get(frozenset((i, j)), 0.0))
    for pair, share in joined.items():
        width = 0.8 + 2.4 * min(1.0, share / 0.3)
        axes.plot(*placed[sorted(pair)].T, color=PALETTE[1], linewidth=width, alpha=0.45, solid_capstyle="round")
    axes.scatter(placed[:, 0], placed[:, 1], s=22, color=PALETTE[0], zorder=4, linewidth=0)
    axes.margins(0.12, 0.06)
    axes.set(aspect="equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set(xlabel="first dimension", ylabel="second dimension")
    _name_points(axes, figure, tasks, placed)
    return figure


def _name_points(axes: Axes, figure: Canvas, tasks: list[str], placed: Points) -> None:
    """Put each name where it covers the fewest points and names; names in crowded places come last."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    pixels = axes.transData.transform(placed)
    height = 7.5 / 72 * figure.dpi
    frame: Box = tuple(map(float, axes.get_window_extent().extents))  # type: ignore[assignment]
    occupied = [(x - 5, y - 5, x + 5, y + 5) for x, y in pixels]
    near = np.linalg.norm(pixels[:, None] - pixels[None], axis=2)
    for index in np.argsort(-np.sort(near, axis=1)[:, min(3, len(tasks) - 1)], kind="stable"):
        width = 0.62 * height * len(tasks[index])
        spots = _spots(pixels[index], width, height)
        box = min(spots, key=lambda spot: (_covered(spot, occupied) + _outside(spot, frame), spots.index(spot)))
        occupied.append(box)
        x, y = axes.transData.inverted().transform(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))
        if _apart(box, pixels[index]) > height:  # else it is unclear which point the name belongs to
            axes.plot([placed[index, 0], x], [placed[index, 1], y], color=GREY, linewidth=0.4, zorder=1)
        back = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.4}
        axes.text(x, y, tasks[index], fontsize=7.5, ha="center", va="center", zorder=3, bbox=back)


Box = tuple[float, float, float, float]


def _spots(point: NDArray[np.float64], width: float, height: float) -> list[Box]:
    """Return places for a name around its point, the best ones first."""
    boxes = []
    for away in (0.0, 1.0, 2.0, 3.2):
        x_gap, y_gap = width / 2 + 6 + 3 * away, height * (0.9 + away)
        for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1), (0.8, 1), (-0.8, 1), (0.8, -1), (-0.8, -1)):
            if away and not y:
                continue
            cx, cy = point[0] + x * x_gap, point[1] + y * y_gap
            boxes.append((cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2))
    return boxes


def _outside(box: Box, frame: Box) -> float:
    """Return a high penalty for the part of a name that would be cut off."""
    across = max(0.0, frame[0] - box[0]) + max(0.0, box[2] - frame[2])
    down = max(0.0, frame[1] - box[1]) + max(0.0, box[3] - frame[3])
    return 100 * (across + down)


def _apart(box: Box, point: NDArray[np.float64]) -> float:
    across = max(box[0] - point[0], 0.0, point[0] - box[2])
    return float(np.hypot(across, max(box[1] - point[1], 0.0, point[1] - box[3])))


def _covered(box: Box, occupied: list[Box]) -> float:
    area = 0.0
    for other in occupied:
        across = min(box[2], other[2]) - max(box[0], other[0])
        down = min(box[3], other[3]) - max(box[1], other[1])
        small = other[2] - other[0] <= 10  # a point must stay visible, a name may be touched
        area += max(0.0, across) * max(0.0, down) * (20 if small else 1)
    return area
