"""The benchmarks can be imported, and combine results of several runs correctly."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from skillmesh_challenge.errors import RunError
from skillmesh_challenge.metrics import interval

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parents[2] / "benchmarks"
IMPORT_ALL = """
import importlib, sys, traceback
failed = 0
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        failed += 1
        print(name, traceback.format_exc(limit=-1))
sys.exit(failed)
"""


def test_every_file_can_be_imported() -> None:
    files = sorted(FOLDER.rglob("*.py"))
    names = [".".join(file.relative_to(FOLDER).with_suffix("").parts).removesuffix(".__init__") for file in files]
    assert len(names) > 30
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names], cwd=FOLDER, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


# Runs of several sessions in one file.


def a_row(finals: dict[int, float], **settings: Any) -> dict[str, Any]:
    return {
        "final": asdict(interval(list(finals.values()))),
        "told": True,
        "settings": {"name": "er", "rate": 0.1} | settings,
        "runs": [{"seed": seed} for seed in finals],
        "commits": [f"commit {min(finals)}"],
        "dates": ["today"],
    }


@pytest.fixture
def baselines(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("baselines")


def test_more_seeds_of_a_method_are_added_to_those_in_a_file(baselines: Any) -> None:
    some, others = {0: 0.7, 1: 0.8, 2: 0.75}, {3: 0.5, 4: 0.6}
    found = baselines.together(a_row(some), a_row(others))
    expected = interval([*some.values(), *others.values()])
    assert found["final"] == pytest.approx(asdict(expected))
    assert [run["seed"] for run in found["runs"]] == [0, 1, 2, 3, 4]
    assert found["commits"] == ["commit 0", "commit 3"]
    assert baselines.together(None, a_row(some)) == a_row(some)


def test_a_method_measured_again_with_all_seeds_replaces_its_row_in_a_file(baselines: Any) -> None:
    newer = a_row({0: 0.9, 1: 0.8, 2: 0.7, 3: 0.6}, rate=0.2)
    assert baselines.together(a_row({0: 0.7, 1: 0.8, 2: 0.75}), newer) == newer


@pytest.mark.parametrize("settings", [{}, {"rate": 0.2}])
def test_losing_seeds_of_a_file_is_an_error(baselines: Any, settings: dict[str, Any]) -> None:
    before = a_row({0: 0.7, 1: 0.8})
    with pytest.raises(RunError, match=r"has seeds \[0, 1\] of er, the runs have \[1, 2\]"):
        baselines.together(before, a_row({1: 0.9, 2: 0.9}, **settings))
    if settings:
        with pytest.raises(RunError, match="with other settings expected all"):
            baselines.together(before, a_row({2: 0.9, 3: 0.9}, **settings))


def test_settings_are_shortened_to_ranges_only_if_all_combinations_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    tried = importlib.import_module("tables.baselines")._tried
    pairs = [{"rate": rate, "keys": keys} for rate in (0.1, 0.2) for keys in ("a", "b")]
    assert tried(pairs) == "rate 0.1, 0.2; keys a, b"
    assert tried(pairs[:3]) == "rate 0.1, keys a / rate 0.1, keys b / rate 0.2, keys a"
    assert tried([pairs[0], {"rate": 0.3}]) == "rate 0.1, keys a / rate 0.3"


# How light an agent is: before and after.


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("light")


@pytest.mark.parametrize(
    ("before", "after", "limits", "target", "met"),
    [
        (4.0, 0.7, {"most": 0.8, "most_ratio": 0.2}, "≤ 0.8 s, ≤ 0.2 × before", True),
        (4.0, 0.9, {"most": 0.8, "most_ratio": 0.25}, "≤ 0.8 s, ≤ 0.25 × before", False),
        (3.0, 0.7, {"most": 0.8, "most_ratio": 0.2}, "≤ 0.8 s, ≤ 0.2 × before", False),
        (50.0, 75.0, {"least_ratio": 1.5}, "≥ 1.5 × before", True),
        (50.0, 74.0, {"least_ratio": 1.5}, "≥ 1.5 × before", False),
        (1.0, 9.0, {}, "–", True),
    ],
)
def test_a_target_is_met_only_if_all_its_limits_hold(
    light: Any, before: float, after: float, limits: dict[str, float], target: str, met: bool
) -> None:
    row = light.Row("work", "s", before, after, **limits)
    assert (row.target, row.met, row.ratio) == (target, met, after / before)


def test_the_peak_of_a_command_is_its_own_and_not_that_of_its_caller(light: Any, tmp_path: Path) -> None:
    """The system counts the process that starts another, which here holds more than the command needs."""
    ours = light._after(tmp_path)
    ballast = bytearray(os.urandom(2**20) * 300)
    peak = ours.probe("command", "--version")["peak_mb"]
    assert 10 < peak < 150
    assert len(ballast) / 1e6 > 300


def test_an_installation_is_named_by_its_folder_or_its_command(light: Any, tmp_path: Path) -> None:
    assert light._before(Path(sys.prefix), tmp_path).python == Path(sys.prefix) / "bin" / "python"
    assert light._before(Path(sys.prefix) / "bin" / "skillmesh", tmp_path).python.parent.name == "bin"
    with pytest.raises(SystemExit, match="is no installation; expected the folder of a virtual environment"):
        light._before(tmp_path, tmp_path)
    assert light._before(None, tmp_path).environment["SKILLMESH_ENGINE"] == "torch"


# What an installation takes.


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return an installation whose `skillmesh` prints the answers to two images, or fails when it learns."""
    monkeypatch.syspath_prepend(str(FOLDER))
    answers = [
        {"image": name, "task": "dice", "label": label} for name, label in (("1.jpg", "one"), ("2.jpg", "six"))
    ]
    command = tmp_path / "bin" / "skillmesh"
    command.parent.mkdir()
    command.write_text(
        f"#!/bin/sh\n[ $1 = learn ] && echo no space >&2 && exit 1\necho '{json.dumps({'answers': answers})}'\n"
    )
    command.chmod(0o700)
    return importlib.import_module("install").Installation(tmp_path, tmp_path)


def test_an_installation_must_answer_most_images_right(installation: Any) -> None:
    installation.ask("ask", "home", {"1.jpg": ("dice", "one"), "2.jpg": ("dice", "six")})
    assert [(step.what, step.ok, step.right, step.images) for step in installation.steps] == [("ask", True, 2, 2)]
    with pytest.raises(SystemExit, match=r"ask: 1 of 2 answers are right, expected most\n.*six"):
        installation.ask("ask", "home", {"1.jpg": ("dice", "one"), "2.jpg": ("dice", "two")})


def test_a_step_of_an_installation_that_fails_ends_the_run_with_its_output(installation: Any) -> None:
    with pytest.raises(SystemExit, match=r"learning failed: .*skillmesh learn photos\nno space"):
        installation.do("learning", "learn", "photos")
    assert installation.steps == []
