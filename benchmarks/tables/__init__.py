"""What all tables in the docs are made with: results, rows, and where they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def kilobytes(count: float) -> str:
    return f"{count / 1000:.0f}"


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = [c.strip() for c in head.split("|")]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" + "---:|" * (len(columns) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def source(*names: str) -> str:
    """Where a table's rows come from; rows measured at several commits name all of these."""
    return measured_by([read(name)["provenance"] for name in names])


def measured_by(origins: Sequence[dict[str, Any]]) -> str:
    """The first command, and the commits of all."""
    first = origins[0]
    commits = ", ".join(sorted({origin["commit"] for origin in origins}))
    data = f"data {first['data_hash'][:12]}"
    line = f"`{first['command']}` · commit {commits} · seed {first['seed']} · {data} · {first['date']}"
    remarks = [origin["remark"] for origin in origins if "remark" in origin]
    return " · ".join([line, *remarks])
