"""The commands in the README and the tutorial work as written, and the tutorial shows their real output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transcripts import Step, comparable, rewritten, run, steps_of

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs/tutorial.md").read_text()


def commands_of(readme: str) -> list[str]:
    """Return the lines of the README's indented blocks that call the command, in order.

    `skillmesh page` is left out: it runs until it is stopped, and the tests of the page start it.
    """
    lines = re.findall(r"^    (\S.*)$", readme, flags=re.MULTILINE)
    called = [line.partition("  #")[0].strip() for line in lines if line.startswith("skillmesh ")]
    return [line for line in called if line != "skillmesh page"]


def folders(place: Path) -> tuple[Path, Path]:
    work, home = place / "work", place / "home"
    work.mkdir()
    home.mkdir()
    return work, home


def refuse_failures(steps: list[Step]) -> None:
    failed = [f"{step.command}: status {step.status}\n{step.output}" for step in steps if step.status]
    assert not failed, "\n".join(failed)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Step], Path]:
    """The README's commands, run in an empty folder by a user without any agent."""
    work, home = folders(tmp_path_factory.mktemp("readme"))
    return run([*commands_of(README), "kill %1"], work, home), work


def test_every_line_of_the_readme_succeeds(followed: tuple[list[Step], Path]):
    steps, _ = followed
    assert len(steps) == 10
    refuse_failures(steps)


def test_bob_in_the_readme_answers_tasks_taught_by_another_agent(followed: tuple[list[Step], Path]):
    (asked,) = [step for step in followed[0] if "--home bob ask" in step.command]
    lines = [line.split() for line in asked.output.splitlines() if line.startswith("photos/")]
    assert len(lines) == 48
    right = [line[1] == Path(line[0]).parent.name and line[2] == "dice" for line in lines]
    assert sum(right) > 40


def test_the_readmes_python_runs(followed: tuple[list[Step], Path], tmp_path: Path):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    work = followed[1]
    ran = subprocess.run([sys.executable, "-c", code], cwd=work, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    rose, tulip, broken, *matrix = ran.stdout.splitlines()
    assert rose.startswith("rose flowers ")
    assert tulip == "tulip"
    assert "broken.jpg" in broken
    assert len(matrix) == 8  # one row for each class


def test_the_tutorial_prints_what_it_says(tmp_path: Path):
    work, home = folders(tmp_path)
    told = steps_of(TUTORIAL)
    steps = run([step.command for step in told], work, home)
    for expected, found in zip(told, steps, strict=True):
        assert comparable(found.output) == comparable(expected.output), found.command
        fails = found.output.startswith("skillmesh: ") or "skipped: " in found.output
        assert found.status == (1 if fails else 0), found.command


def test_a_transcript_is_read_and_written_back():
    document = "Text.\n\n```console\n$ echo a\na\n$ echo b \\\n  c\nb c\n```\n\nMore.\n\n```console\n$ true\n```\n"
    steps = steps_of(document)
    assert [step.command for step in steps] == ["echo a", "echo b \\\n  c", "true"]
    assert [step.output for step in steps] == ["a\n", "b c\n", ""]
    assert rewritten(document, steps) == document


def test_transcripts_compare_equal_only_if_they_differ_in_figures_or_the_order_of_arrivals():
    first = "$\n17:46:39 imported 'a' by anna\n17:46:40 imported 'b' by anna\nmet 1 agent\n"
    other_order = "$\n17:50:01 imported 'b' by anna\n17:50:01 imported 'a' by anna\nmet 1 agent\n"
    assert comparable(first) == comparable(other_order)
    assert comparable(first) != comparable(other_order.replace("'b'", "'c'"))
    assert comparable("x\ny\n") != comparable("y\nx\n")


@pytest.mark.slow
def test_the_readmes_install_is_enough_in_a_new_environment(tmp_path: Path):
    """As in an empty container: a copy of the checkout, a new environment, the README's pip line, an answer."""
    copy = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(".?*", "demo-out", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    (line,) = re.findall(r"^    pip (install .*?)  +#", README, flags=re.MULTILINE)
    subprocess.run([python, "-m", "pip", "-q", *line.split()], cwd=copy, check=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SKILLMESH_HOME")}
    environment |= {"HOME": str(tmp_path), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    (tmp_path / "empty").mkdir()
    for command in commands_of(README)[:5]:
        subprocess.run(["bash", "-c", command], cwd=tmp_path / "empty", env=environment, check=True)
