"""Shared parts of the tables in the docs: reading results, formatting rows, and the line below a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NO_IMAGES = hashlib.sha256().hexdigest()  # the hash of no data


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
    """Return the line below a table: the command, commits, seed, data and date of the results it was made from."""
    return measured_by([read(name)["provenance"] for name in names])


def measured_by(origins: Sequence[dict[str, Any]]) -> str:
    """Return the line below a table made from several runs: the first run's command and data, all commits."""
    first = origins[0]
    commits = ", ".join(sorted({origin["commit"] for origin in origins}))
    parts = [
        f"`{command_of(first)}`",
        f"commit {commits}",
        f"seed {first['seed']}",
        *data_of(first),
        first["date"],
    ]
    return " · ".join([*parts, *(origin["remark"] for origin in origins if "remark" in origin)])


def command_of(origin: dict[str, Any]) -> str:
    """Return the command that measured a result, with `TASKS` for the folder that held the tasks."""
    command: str = origin["command"]
    return command.replace("../shared/tasks", "TASKS").replace("../shared/weights/", "")


def data_of(origin: dict[str, Any]) -> list[str]:
    """Return the name of the images that were measured; nothing for a result that used none."""
    digest = origin["data_hash"]
    if digest == NO_IMAGES:
        return []
    known = read("data")
    tasks = known["data_hashes"].get(digest)
    if tasks is None:
        return [f"data {digest[:12]}"]
    manifest = f"manifest {known['manifest_hash'][:12]}"
    return [
        manifest if tasks == len(known["tasks"]) else f"{tasks} {'task' if tasks == 1 else 'tasks'} of {manifest}"
    ]
