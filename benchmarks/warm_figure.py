"""Draw accuracy by images per class, with warm and cold start.

    python benchmarks/warm_figure.py

Reads docs/results/warm-start.json and writes docs/images/warm-start.png.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillmesh_challenge.report.style import canvas, drawing, signs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parents[1] / "docs"
PANELS = {
    "same names": "other task, same names",
    "whole bank": "several tasks of a bank",
    "cut in two": "same task, other images",
}
SHOTS = (1, 3, 5, 10, "all")


def draw(axes: Axes, by_shots: dict[Any, dict[str, Any]], title: str) -> None:
    for index, start in enumerate(("warm", "cold")):
        figures = [by_shots[shots][start] for shots in SHOTS]
        look = signs(index)
        axes.plot(range(len(SHOTS)), [f["mean"] for f in figures], label=f"{start} start", **look)
        low, high = ([f[end] for f in figures] for end in ("low", "high"))
        axes.fill_between(range(len(SHOTS)), low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set_xticks(range(len(SHOTS)), [str(shots) for shots in SHOTS])
    axes.set(xlabel="images per class", title=f"{title} ({by_shots[1]['count']})")
    axes.grid(axis="y")


def main() -> None:
    rows = json.loads((DOCS / "results" / "warm-start.json").read_text())["summary"]
    with drawing():
        figure = canvas(9.5, 3.2)
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (pairs, title) in zip(panels, PANELS.items(), strict=True):
            draw(axes, {r["shots"]: r for r in rows if r["pairs"] == pairs and r["way"] == "head"}, title)
        panels[0].set_ylabel("test accuracy, %")
        panels[-1].legend(loc="lower right")
        figure.savefig(DOCS / "images" / "warm-start.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
