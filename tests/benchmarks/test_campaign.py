"""The campaign resumes where it stopped, adds up its figures, and fails if a part found something."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return a function that runs the command with a part `files` that counts its calls."""
    monkeypatch.syspath_prepend(str(FOLDER))
    command = importlib.import_module("campaign")
    published = tmp_path / "campaign.json"

    def run(*words: str, finds: bool = False) -> tuple[int, dict[str, Any]]:
        def count(seconds: float, seed: int, kept: Path, say: Callable[[str], None]) -> dict[str, Any]:
            state = kept / "state.json"
            calls = (json.loads(state.read_text()) if state.exists() else 0) + 1
            state.write_text(json.dumps(calls))
            say(f"{seconds:.0f} s with seed {seed}")
            return {"counted": calls, "failures": [{"what": "a crash", "repeat": "like this"}] if finds else []}

        part = ModuleType("attacks.files")
        part.run = count  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "attacks.files", part)
        line = [
            "campaign.py",
            "--only",
            "files",
            "--kept",
            str(tmp_path / "kept"),
            "--json",
            str(published),
            *words,
        ]
        monkeypatch.setattr(sys, "argv", line)
        return int(command.main()), json.loads(published.read_text())["parts"]["files"]

    return run


def test_results_of_a_second_call_are_added_to_the_first(
    campaign: Callable[..., tuple[int, dict[str, Any]]],
) -> None:
    campaign("--seconds", "10")
    status, figures = campaign("--seconds", "20")
    assert status == 0
    assert figures["counted"] == 2
    assert [call["command"].split()[-1] for call in figures["calls"]] == ["10", "20"]


def test_another_seed_needs_another_folder(campaign: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    campaign("--seed", "1")
    with pytest.raises(SystemExit, match="belongs to seed 1, not to 2: name another --kept"):
        campaign("--seed", "2")


def test_findings_are_shown_and_the_command_fails(
    campaign: Callable[..., tuple[int, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = campaign(finds=True)
    assert status == 1
    assert "FAILED a crash\n    repeat: like this" in capsys.readouterr().out
