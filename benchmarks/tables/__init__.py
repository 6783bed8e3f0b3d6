"""Shared parts of the tables in the docs: reading results, formatting rows, and the line below a table."""

from __future__ import annotations

import hashlib
import json
import re
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


def source(*names: str, short: bool = False) -> str:
    """Return the line below a table: commands, commits, seeds, data and dates of the results it was made from."""
    return measured_by([read(name)["provenance"] for name in names], short)


def measured_by(origins: Sequence[dict[str, Any]], short: bool = False) -> str:
    """Return the line below a table made from one or several runs; `short` shows only the first command."""
    parts = [
        _commands(origins, short),
        f"commit {', '.join(sorted(_values(origins, 'commit')))}",
        f"seed {', '.join(sorted(_values(origins, 'seed'), key=int))}",
        *data_of(origins),
        ", ".join(sorted(_values(origins, "date"))),
    ]
    remarks = dict.fromkeys(origin["remark"] for origin in origins if "remark" in origin)
    return " · ".join([*parts, *remarks])


def _commands(origins: Sequence[dict[str, Any]], short: bool) -> str:
    """Return up to three different commands; of more commands, the first two and the number of the others."""
    commands = list(dict.fromkeys(f"`{command_of(origin)}`" for origin in origins))
    if short and len(commands) > 1:
        return f"{commands[0]} and {len(commands) - 1} more"
    if len(commands) > 3:
        return f"{', '.join(commands[:2])} and {len(commands) - 2} more, see docs/results"
    return ", ".join(commands)


def command_of(origin: dict[str, Any]) -> str:
    """Return the command that measured a result, with `TASKS` for the folder that held the tasks.

    An option at the end that only names the file for the result is left out.
    """
    command: str = origin["command"]
    option = "--(json|out)" if command.startswith("skillmesh eval ") else "--json"
    command = re.sub(rf" {option} \S+\.json$", "", command)
    return command.replace("../shared/tasks", "TASKS").replace("../shared/weights/", "")


def _values(origins: Sequence[dict[str, Any]], name: str) -> set[str]:
    """Return the different commits, seeds or dates; one origin may list several of them, separated by commas."""
    return {value for origin in origins for value in str(origin[name]).split(", ")}


def data_of(origins: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the images that were measured; nothing for results that used none."""
    known = read("data")
    manifest = f"manifest {known['manifest_hash'][:12]}"
    digests = dict.fromkeys(origin["data_hash"] for origin in origins if origin["data_hash"] != NO_IMAGES)
    counts = {digest: len(known["data_hashes"].get(digest, ())) for digest in digests}  # 0: other images
    names = [manifest] if len(known["tasks"]) in counts.values() else []
    if parts := [str(count) for count in counts.values() if 0 < count < len(known["tasks"])]:
        names.append(f"{' and '.join(parts)} {'task' if parts == ['1'] else 'tasks'} of {manifest}")
    names += [f"data {digest[:12]}" for digest, count in counts.items() if not count]
    return [", ".join(names)] if names else []
