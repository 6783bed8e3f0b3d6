"""Draw the accuracy of composed tasks by epochs, from known and from random rows, like the paper's figure.

    python benchmarks/composition_figure.py

Reads docs/results/composition.json and writes docs/images/composition.png.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillmesh_challenge.report.style import GREY, LINES, MARKERS, PALETTE, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parent.parent / "docs"
CURVES = {
    "ours, from blend": ("ours, from the composed head", 0, 0),
    "ours, from nothing": ("ours, cold start", 0, 1),
    "two, from rows": ("2-norm, from the tasks' rows", 1, 0),
    "two, from nothing": ("2-norm, from random rows", 1, 1),
    "infinity, from rows": ("∞-norm, from the tasks' rows", 2, 0),
    "infinity, from nothing": ("∞-norm, from random rows", 2, 1),
}
"""Label and indices of colour and line style, by the key of the curve in the results."""


def draw(axes: Axes, summary: dict[str, Any]) -> None:
    for name, (label, colour, line) in CURVES.items():
        curve = {int(epoch): figures for epoch, figures in summary["epochs"][name].items()}
        epochs = sorted(curve)
        means = [curve[epoch]["mean"] for epoch in epochs]
        axes.plot(
            epochs,
            means,
            color=PALETTE[colour],
            linestyle=LINES[line],
            marker=MARKERS[colour],
            markerfacecolor=PALETTE[colour] if line == 0 else "white",
            label=label,
        )
    given = summary["without images"]["given"]["mean"]
    axes.axhline(given, color=GREY, linewidth=0.8, linestyle=LINES[2])
    axes.text(0.05, given - 0.4, "each task's own head, task given", color=GREY, fontsize=7.5, va="top")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks([0, 1, 2, 5, 10, 20, 30], labels=["0", "1", "2", "5", "10", "20", "30"])
    axes.minorticks_off()
    axes.set_xlim(-0.15, 34)
    axes.set_ylim(bottom=55)  # random starts begin at a few percent, which would leave little room for the rest
    axes.set_xlabel("epochs with images of both tasks (ours: rounds of L-BFGS)")
    axes.set_ylabel("accuracy of the composed task, %")
    axes.grid(axis="y")
    axes.legend(loc="lower right", fontsize=8)


def main() -> None:
    report = json.loads((DOCS / "results" / "composition.json").read_text())
    with drawing():
        from matplotlib.figure import Figure

        canvas = Figure(figsize=(7, 4.2))
        axes = canvas.subplots()
        draw(axes, report["summary"])
        axes.set_title(f"Tasks composed of two known tasks, average of {len(report['pairs'])} pairs")
        out = DOCS / "images" / "composition.png"
        canvas.savefig(out, dpi=160, metadata={"Software": "skillmesh"})
    print(out.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
