"""Draw what the baselines and our method learned, forgot and retained, in the style of the report.

    python benchmarks/baselines_figure.py

Reads docs/results/baselines.json and writes docs/images/baselines.png. It leaves out the methods on a frozen
backbone except the best one, and the networks that start from random weights: docs/appendix/baselines.md has them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from skillmesh_challenge.metrics import Interval
from skillmesh_challenge.report.dots import DotRow, best_first, draw
from skillmesh_challenge.report.style import drawing

DOCS = Path(__file__).parent.parent / "docs"
REGULARISED = ("ewc", "ewc-online", "si", "mas")
"""Methods with a quadratic penalty on important weights."""
SHOWN = {
    *("sketch-auto", "sketch", "slda-descriptor"),
    *("naive", "joint", "lwf", "er", "psp", "supsup"),
    *REGULARISED,
    *(f"{name}-steady" for name in REGULARISED),
}
"""Methods in the figure."""


def row(name: str, method: dict[str, Any]) -> DotRow:
    """Return the figure's row of one method."""
    learned, forgotten, final = (Interval(**method[key]) for key in ("after_learning", "forgetting", "final"))
    return DotRow(name, method["told"], learned, forgotten, final)


def main() -> None:
    methods = json.loads((DOCS / "results" / "baselines.json").read_text())["methods"]
    with drawing():
        drawn = draw(best_first([row(name, method) for name, method in methods.items() if name in SHOWN]))
        out = DOCS / "images" / "baselines.png"
        drawn.savefig(out, dpi=130, metadata={"Software": "skillmesh"})
    print(out.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
