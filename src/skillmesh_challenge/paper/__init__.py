"""Recalculation of the SKILL paper's tables: printed figures, results of its own formulas, and the differences.

`printed.csv` holds the figures as printed, `inputs.py` the inputs of the formulas. `single.py`, `parallel.py`,
`sharing.py` and `replay.py` recalculate the tables; `datasets.py` counts the list of datasets. This package needs
only the standard library.
"""

from skillmesh_challenge.paper.tables import report

__all__ = ["report"]
