"""`import skillmesh` and `skillmesh --help` are fast, since they import no heavy library."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from running import PLAIN

from skillmesh.core import Core

HEAVY = (
    "torch",
    "torchvision",
    "timm",
    "sklearn",
    "scipy",
    "numpy",
    "PIL",
    "pydantic",
    "cryptography",
    "matplotlib",
)
COMMANDS = (
    *("init", "learn", "ask", "tasks", "show", "export", "import", "forget"),
    *("eval", "calibrate", "backbone", "demo"),
)
HELP = """
import sys
from skillmesh.cli import main
sys.argv = ["skillmesh", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


UNUSED_BY_ASK = (
    *("torch", "timm", "sklearn", "scipy", "zenoh", "numpy.ma", "rich.progress"),
    *("skillmesh.learning.lesson", "skillmesh.vetting", "skillmesh.synergy", "skillmesh.evaluation"),
    *("skillmesh.mesh.node", "skillmesh.mesh.session", "skillmesh.cli.mesh", "skillmesh.cli.learn"),
)
"""Modules that answering an image does not need; each would take time or memory from every `ask`."""
ASK = """
import sys
from skillmesh.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("loaded:", *sys.modules)
"""


@pytest.mark.parametrize("code", ["import skillmesh", HELP], ids=["import", "help"])
def test_no_heavy_library_is_imported(code: str):
    code += f"\nimport sys\nprint('loaded:', *(set(sys.modules) & set({HEAVY!r})))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=PLAIN, check=True)
    assert ran.stdout.splitlines()[-1] == "loaded:"


def test_help_names_all_commands_and_is_fast():
    command = Path(sys.executable).with_name("skillmesh")
    costs = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = subprocess.run([command, "--help"], capture_output=True, text=True, env=PLAIN)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert ran.returncode == 0
    # Processor time, the best of five runs, since the machine may be busy. On one of two cores under load,
    # 0.3 s became 0.38; PyTorch alone would take more than a second.
    assert min(costs) < 0.5
    for name in COMMANDS:
        assert f"\n  {name} " in ran.stdout


@pytest.mark.long
def test_ask_without_a_node_imports_only_what_answers(tiny_taught: Core, mixed: list[Path], tmp_path: Path):
    variables = PLAIN | {"SKILLMESH_CACHE": str(tmp_path)}
    words = [sys.executable, "-c", ASK, "--home", str(tiny_taught.home), "ask", str(mixed[0])]
    ran = subprocess.run(words, capture_output=True, text=True, env=variables, check=True)
    answer, loaded = ran.stdout.splitlines()
    assert answer.split("\t")[2] == mixed[0].parts[-4]
    assert "skillmesh.answering.answering" in loaded.split()
    assert not set(UNUSED_BY_ASK) & set(loaded.split())


def test_public_names_are_imported_on_first_use():
    import skillmesh

    assert skillmesh.Agent.__module__ == "skillmesh.agent"
    assert issubclass(skillmesh.SkillmeshError, ValueError)
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        skillmesh.Agnet  # noqa: B018
