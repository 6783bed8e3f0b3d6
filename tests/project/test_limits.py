"""The limits that docs/appendix/security-limits.md states are those of the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "appendix" / "security-limits.md"
UNITS = {
    "": 1,
    "s": 1,
    "times": 1,
    "bytes": 1,
    "million": 10**6,
    "KB": 10**3,
    "KiB": 2**10,
    "MB": 10**6,
    "MiB": 2**20,
}
STATED = re.findall(r"^\| [^|]+ \| ([\d,.]+) ?(\w*) \| `([\w.]+)` \|$", PAGE.read_text(), re.MULTILINE)


def in_code(name: str) -> float:
    """Return the number that stands under a dotted name in the package."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            value = importlib.import_module("skillmesh." + ".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            value = getattr(value, part)
        return float(value)
    raise LookupError(name)


@pytest.mark.parametrize(("figure", "unit", "name"), STATED, ids=[name for _, _, name in STATED])
def test_a_limit_is_as_the_docs_state_it(figure: str, unit: str, name: str) -> None:
    in_millions = name.endswith("MEGAPIXELS")
    stated = float(figure.replace(",", "")) * (1 if in_millions else UNITS[unit])
    assert in_code(name) == stated


def test_every_line_of_the_table_is_compared() -> None:
    rows = PAGE.read_text().partition("## The limits in figures")[2].partition("\n## ")[0]
    assert len(STATED) == len(re.findall(r"^\| .*`[\w.]+` \|$", rows, re.MULTILINE)) > 40
