"""All tables of the paper with our recalculation of each cell, and the account of its datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from skillmesh_challenge.paper.cells import PaperCell
from skillmesh_challenge.paper.datasets import account
from skillmesh_challenge.paper.parallel import parallel_cells
from skillmesh_challenge.paper.replay import mapper_cells, replay_cells
from skillmesh_challenge.paper.sharing import sharing_cells
from skillmesh_challenge.paper.single import single_cells

TABLES: dict[str, tuple[str, Callable[[], list[PaperCell]]]] = {
    "single": ("Table 1: one agent learns all 102 tasks", single_cells),
    "parallel": ("Table 2: many agents learn 102 tasks in parallel", parallel_cells),
    "replay": ("Appendix D: rehearsing old tasks", replay_cells),
    "sharing": ("Appendix G: what is sent of a task", sharing_cells),
    "mapper": ("Appendix C and section 5: the mapper's costs and limits", mapper_cells),
}


def report() -> dict[str, Any]:
    """Return all tables as a JSON-compatible dict."""
    computed = {name: make() for name, (_, make) in TABLES.items()}
    verdicts = Counter(cell.verdict for table in computed.values() for cell in table)
    tables = {name: {"title": TABLES[name][0]} | _noted(table) for name, table in computed.items()}
    return {"tables": tables, "verdicts": dict(verdicts), "datasets": account()}


def _noted(table: list[PaperCell]) -> dict[str, Any]:
    """Return the cells and the notes on differences; cells with the same note share its number, from 1."""
    notes = list(dict.fromkeys(cell.note for cell in table if cell.note))
    cells = [cell.summary() | {"note": notes.index(cell.note) + 1 if cell.note else None} for cell in table]
    return {"cells": cells, "notes": notes}
