"""Matrices as heat maps: accuracy after every task, and which tasks are taken for which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skillmesh_challenge.entries import Confusions
from skillmesh_challenge.report.collect import Comparison, Group
from skillmesh_challenge.report.figure import Figure
from skillmesh_challenge.report.style import HEAT, canvas
from skillmesh_challenge.report.table import ReportTable, number, percent, rows, text

if TYPE_CHECKING:
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure as Canvas

Shares = NDArray[np.float64]


def slug(label: str) -> str:
    """Return a label in a form that can be part of a file name."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in label.lower()).split())


def accuracy_matrices(comparison: Comparison) -> list[Figure]:
    return [_accuracy_matrix(group) for group in comparison.shown]


def _accuracy_matrix(group: Group) -> Figure:
    matrix, names = group.matrix, group.tasks
    title = f"Accuracy matrix of {group.label}"
    caption = (
        "Final accuracy of every task (column) after every step (row): a column that keeps "
        "its colour from the diagonal down loses nothing." + _seed_note(group)
    )
    lost = matrix[-1] - np.diagonal(matrix)
    worst = int(np.nanargmin(lost))
    alt = (
        f"A lower triangle of {len(names)} by {len(names)} cells. The largest loss since a task was learned is "
        f"{-100 * lost[worst]:.1f} points ({names[worst]})."
    )
    cells = [
        [number(t + 1), *(percent(None if np.isnan(v) else float(v)) for v in row)] for t, row in enumerate(matrix)
    ]
    name = f"accuracy-matrix-{slug(group.label)}"
    table = ReportTable(name, title, ("tasks", *names), rows(cells))
    steps = [f"{t}" for t in range(1, len(names) + 1)]

    def draw() -> Canvas:
        return _heat(100 * matrix, steps, names, "accuracy, %", "number of tasks learned", "task", (0, 100))

    return Figure(name, title, caption, alt, draw, table)


def confusions(comparison: Comparison) -> list[Figure]:
    return [_confusion(group, group.first.confusions) for group in comparison.shown if group.first.confusions]


def _confusion(group: Group, confusions: Confusions) -> Figure:
    counts = np.array(confusions.counts, dtype=np.float64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    title = f"Which tasks {group.label} takes for which"
    caption = (
        "Share of each task's test images (row) that were taken for another task (column), at "
        "the end. Right answers, on the diagonal, are left out so that the others are visible. "
        "White cells have none. The colour scale is of square roots." + _seed_note(group)
    )
    wrong = 1 - np.diagonal(shares)
    alt = (
        f"A matrix of {len(shares)} by {len(shares)} cells, most of them empty. Least recognised: "
        f"{confusions.tasks[int(wrong.argmax())]}, {100 * wrong.max():.1f} % taken for others."
    )
    name = f"confusion-{slug(group.label)}"
    cells = [
        [text(task), *(number(value) for value in row)]
        for task, row in zip(confusions.tasks, confusions.counts, strict=True)
    ]
    table = ReportTable(name, f"{title} (images)", ("task", *confusions.tasks), rows(cells))

    def draw() -> Canvas:
        off = np.where((shares > 0) & ~np.eye(len(shares), dtype=bool), 100 * shares, np.nan)
        tasks = list(confusions.tasks)
        most = float(np.nanmax(off)) if (~np.isnan(off)).any() else 1.0
        return _heat(off, tasks, tasks, "images, %", "task of the image", "taken for", (0, most), diagonal=True)

    return Figure(name, title, caption, alt, draw, table)


def confused_pairs(group: Group, most: int) -> list[tuple[int, int, float, int]]:
    """Return (task, task it is taken for, share of its images, number of images), the largest shares first."""
    confusions = group.first.confusions
    if confusions is None:
        return []
    counts = np.array(confusions.counts, dtype=np.float64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    pairs = [
        (i, j, float(shares[i, j]), int(counts[i, j]))
        for i in range(len(counts))
        for j in range(len(counts))
        if i != j and counts[i, j]
    ]
    return sorted(pairs, key=lambda pair: (-pair[2], pair[:2]))[:most]


def _heat(
    values: Shares,
    down: list[str],
    across: list[str],
    what: str,
    down_title: str,
    across_title: str,
    limits: tuple[float, float],
    diagonal: bool = False,
) -> Canvas:
    cell = 0.155 if len(across) > 12 else 0.4
    size = 7 if len(across) > 12 else 9
    left, below = (0.0085 * size * max(map(len, names)) + 0.5 for names in (down, across))
    figure = canvas(left + cell * len(across) + 1.1, below + cell * len(down) + 0.1)
    axes = figure.add_subplot()
    # An image, not drawn areas: forty tasks take a tenth of the bytes, and no seams are visible.
    extent = (0, len(across), len(down), 0)
    norm = _scale(diagonal, limits)
    image = axes.imshow(values, _colours(diagonal), norm=norm, extent=extent, interpolation="none")
    if diagonal:
        for place in range(len(values)):
            axes.fill([place, place + 1, place + 1, place], [place, place, place + 1, place + 1], color="#DDDDDD")
    axes.set(xlabel=across_title, ylabel=down_title)
    axes.set_xticks(np.arange(len(across)) + 0.5, across, rotation=90, fontsize=size)
    axes.set_yticks(np.arange(len(down)) + 0.5, down, fontsize=size)
    axes.set_xticks(np.arange(len(across) + 1), minor=True)
    axes.set_yticks(np.arange(len(down) + 1), minor=True)
    axes.grid(which="minor", color="#EEEEEE" if diagonal else "white", linewidth=0.4)
    axes.tick_params(which="both", length=0)
    for spine in axes.spines.values():
        spine.set_visible(True)
    bar = figure.colorbar(image, ax=axes, shrink=0.5, pad=0.015, aspect=18)
    bar.set_label(what)
    bar.outline.set_visible(False)
    return figure


def _colours(diagonal: bool) -> Colormap:
    """Return the colour map: for confusions pale to dark blue, so that a single image is visible on white."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    if not diagonal:
        return matplotlib.colormaps[HEAT]
    return ListedColormap(matplotlib.colormaps["Blues"](np.linspace(0.2, 1, 256)))


def _scale(diagonal: bool, limits: tuple[float, float]) -> Normalize:
    """Return the colour scale: of square roots for confusions, since most are small."""
    from matplotlib.colors import Normalize, PowerNorm

    return PowerNorm(0.5, *limits) if diagonal else Normalize(*limits)


def _seed_note(group: Group) -> str:
    return f" From the run with seed {group.first.settings.seed}." if len(group.records) > 1 else ""
