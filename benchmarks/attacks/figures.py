"""Counts that are kept on disk, so that a stopped campaign can resume."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

MOST_FAILURES = 50
"""Kinds of failures that are kept; others are only counted."""
_NAMES = re.compile(r"[0-9a-f]{16,}|tmp\w{8}")


class Figures:
    """The figures of kills and power cuts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        fresh: dict[str, Any] = {
            "tries": 0,
            "kills": 0,
            "kills_by_command": {},
            "finished_before_the_kill": 0,
            "run_again": 0,
            "opened": 0,
            "losses": 0,
            "prefixes_by_command": {},
            "prefix_states": 0,
            "power_cut_states": 0,
            "different_states": 0,
            "rounds": 0,
            "seconds": 0.0,
            "next_prefix": {},
            "failed": 0,
            "failures": [],
        }
        self.values = json.loads(path.read_text()) if path.exists() else fresh

    def save(self) -> None:
        partial = self._path.with_suffix(".new")
        partial.write_text(json.dumps(self.values, indent=1))
        partial.replace(self._path)

    def add(self, name: str, key: str | None = None) -> None:
        """Count one more of something, or of one kind of it."""
        counts, name = (self.values, name) if key is None else (self.values[name], key)
        counts[name] = counts.get(name, 0) + 1

    def fail(self, command: str, what: str, repeat: str) -> None:
        """Record a failure; one already known for this command, except for file names, is only counted."""
        self.add("failed")
        kind = f"{command}: {_NAMES.sub('…', what)}"
        for known in self.values["failures"]:
            if known["kind"] == kind:
                known["times"] += 1
                return
        if len(self.values["failures"]) < MOST_FAILURES:
            self.values["failures"].append({"what": what, "repeat": repeat, "kind": kind, "times": 1})

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in self.values.items() if name != "next_prefix"}

    def __str__(self) -> str:
        values = self.values
        return (
            f"{values['kills']} kills, {values['losses']} losses; {values['prefix_states']} states of killed "
            f"processes and {values['power_cut_states']} after power cuts; {values['failed']} failures"
        )
