"""The layers of pyproject.toml are checked by `make lint`, and the check notices an import that breaks them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the packages in `root/src`, as `make lint` does with those of this checkout."""
    code = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports_command as run; run()"
    return subprocess.run([sys.executable, "-c", code, "--no-cache"], cwd=root, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_each_folder_imports_only_from_those_below_it(copy: Path) -> None:
    checked = lint_imports(copy)
    assert checked.returncode == 0, checked.stdout
    assert "2 kept, 0 broken" in checked.stdout


@pytest.mark.parametrize(
    "line",
    [
        "from skillmesh.mesh.wire import Wire",
        "def later() -> None:\n    from skillmesh.core import Core",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from skillmesh.core import Core",
        "from skillmesh_challenge.run import run",
    ],
    ids=["above", "in a function", "for a type", "the challenge"],
)
def test_a_forbidden_import_is_noticed(copy: Path, line: str) -> None:
    file = copy / "src" / "skillmesh" / "vetting" / "bank_trial.py"
    file.write_text(f"{file.read_text()}\n{line}\n")
    checked = lint_imports(copy)
    assert checked.returncode == 1
    assert "skillmesh.vetting.bank_trial ->" in checked.stdout
