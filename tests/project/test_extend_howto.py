"""The page on extending skillmesh: its examples, applied to a copy of the source, learn and answer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "extend.md"
Command = Callable[..., str]
BLOCK = re.compile(r"^```(python|diff)\n# (src/\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def lines_of(diff: str, sign: str) -> str:
    return "".join(line[1:] for line in diff.splitlines(keepends=True) if line.startswith(sign))


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with every block of the page applied: new files, and lines to replace."""
    copy = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for language, name, content in BLOCK.findall(PAGE.read_text()):
        file = copy / name
        if language == "python":
            assert not file.exists(), f"{name} exists already"
            file.write_text(content)
        else:
            old, text = lines_of(content, "-"), file.read_text()
            assert text.count(old) == 1, f"{name} has {text.count(old)} times: {old}"
            file.write_text(text.replace(old, lines_of(content, "+")))
    return copy / "src"


@pytest.fixture
def extended_command(extended: Path, tmp_path: Path) -> Command:
    """Run `skillmesh` from the copy and return what it prints."""

    def command(*arguments: str | Path) -> str:
        environment = os.environ | {"PYTHONPATH": str(extended), "SKILLMESH_HOME": str(tmp_path / "home")}
        program = [sys.executable, "-m", "skillmesh", *map(str, arguments)]
        result = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return command


def test_the_page_has_an_example_of_each():
    new = [name for language, name, _ in BLOCK.findall(PAGE.read_text()) if language == "python"]
    assert [Path(name).parent.name for name in new] == ["anchors", "learning", "baselines"]


def pattern_in(command: Command, folder: Path) -> np.ndarray:
    """Return the pattern in the module of the task `dice`; a module is a safetensors file."""
    command("export", "dice", folder / "dice.skill")
    return load((folder / "dice.skill").read_bytes())["pattern"]


@pytest.mark.long
def test_the_anchor_and_the_adaptation_learn_and_answer(
    extended_command: Command, tiny_tasks: Path, tmp_path: Path
):
    extended_command("init", "--anchor", "means")
    extended_command("learn", tiny_tasks / "shapes")
    adapt = ("--adapt", "always", "--adaptation", "colour", "--epochs", "1")
    extended_command("learn", tiny_tasks / "dice", *adapt)
    card = json.loads(extended_command("show", "dice", "--json"))
    assert card["anchors"] == ["means"]
    shift = pattern_in(extended_command, tmp_path)
    assert shift.any()
    assert np.array_equal(shift, np.broadcast_to(shift[0, 0], shift.shape))  # one colour for all pixels
    images = sorted((tiny_tasks / "dice" / "test").glob("*/*"))
    answers = json.loads(extended_command("ask", *images, "--json"))["answers"]
    assert [answer["task"] for answer in answers] == ["dice"] * len(images)


@pytest.mark.long
def test_the_baseline_runs(extended_command: Command, tiny_tasks: Path, tmp_path: Path):
    tasks = [tiny_tasks / "shapes", tiny_tasks / "dice"]
    how = ("--method", "nearest-image", "--no-bound", "--out", tmp_path / "run")
    (run,) = json.loads(extended_command("challenge", "run", *tasks, *how, "--json"))
    assert run["results"]["final_accuracy"] > 0.5
    assert (tmp_path / "run" / "learned" / "0001-dice.json").exists()
