"""Running commands, and their outcome."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import pytest

LEARNED = ("shapes", "dice", "latin", "greek")
"""The drawn tasks that the shared agents have learned."""
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
"""Environment without coverage settings: measuring coverage in the child would slow it down."""


class Ran(NamedTuple):
    """The outcome of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def failed(ran: Ran, *words: str) -> None:
    """Assert that the command failed with one line on stderr, nothing on stdout, and exit status 1."""
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err.startswith("skillmesh: ")
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err
