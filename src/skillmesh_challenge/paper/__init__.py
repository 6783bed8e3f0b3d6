"""The SKILL paper's arithmetic, made again: what it prints, what its own formulas give, and what lies between.

`printed.csv` holds its figures as printed. `inputs.py` holds what they are made from; `single.py`, `parallel.py`,
`agents.py` and `replay.py` make them, a table each; `datasets.py` counts its list of datasets. Nothing here needs
more than the standard library.
"""

from skillmesh_challenge.paper.tables import report

__all__ = ["report"]
