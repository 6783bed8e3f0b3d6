"""The origin of a number: the commit of the running source, marked if the source was changed since."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMIT = "from skillmesh.evaluation.provenance import provenance; print(provenance('', [], 0)['commit'])"


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with both packages."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    return tmp_path


def commit_of(checkout: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-c", COMMIT]
    return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("changed", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("src/*/__init__.py")))
def test_a_change_in_any_package_marks_the_commit(checkout: Path, changed: str) -> None:
    head = git(checkout, "rev-parse", "HEAD")[:12]
    assert commit_of(checkout) == head
    (checkout / changed).write_text((checkout / changed).read_text() + "\n")
    assert commit_of(checkout) == f"{head}+"
    git(checkout, "checkout", "-q", changed)
    (checkout / "notes.txt").write_text("not source code")
    assert commit_of(checkout) == head
