"""The measurements start: every file of them can be imported, with what it takes from the others and from us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "benchmarks"
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
