"""Run the product's fast tests in a copy of the checkout without the challenge and the benchmarks.

python tools/product_alone.py [arguments for pytest]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = (
    "src/skillmesh_challenge/",
    "benchmarks/",
    "tests/challenge/",
    "tests/benchmarks/",
    "tests/project/test_layers.py",  # the layers of both packages
)
ABSENT = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)\n"
"""Content of a module that hides the environment's installed challenge package, which points at the checkout."""


def main() -> int:
    """Copy the checkout, run the tests, and return pytest's exit status."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)  # some tests run as another user, who must be able to read the copy
        copy, absent = Path(scratch, "checkout"), Path(scratch, "absent")
        for name in names:
            if (ROOT / name).is_file() and not name.startswith(LEFT_OUT):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        absent.mkdir()
        (absent / "skillmesh_challenge.py").write_text(ABSENT)
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        found_in = {"PYTHONPATH": os.pathsep.join([str(copy / "src"), str(absent)])}
        words = sys.argv[1:] or ["-n", "2", "-m", "not slow and not long"]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
        return subprocess.run(command, cwd=copy, env=os.environ | one_thread | found_in).returncode


if __name__ == "__main__":
    sys.exit(main())
