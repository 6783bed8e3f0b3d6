"""Run the product's fast tests in a copy of the checkout without the challenge and the benchmarks.

python tools/product_alone.py [--installed] [arguments for pytest]

The product is the source in the copy. With `--installed` it is the package that is installed in the environment of
this program, the tests of the project itself are left out, and those marked `light` always run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = (
    "src/skillmesh_challenge/",
    "benchmarks/",
    "tests/challenge/",
    "tests/benchmarks/",
    "tests/project/test_layers.py",  # the layers of both packages
)
LEFT_OUT_IF_INSTALLED = ("benchmarks/", "tests/challenge/", "tests/benchmarks/", "tests/project/")
KEPT_IF_INSTALLED = "tests/challenge/test_challenge_light.py"
ABSENT = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)\n"
"""Content of a module that hides the environment's installed challenge package, which points at the checkout."""


def main() -> int:
    """Copy the checkout, run the tests, and return pytest's exit status."""
    words = sys.argv[1:]
    if installed := words[:1] == ["--installed"]:
        refuse_checkout()
        words = words[1:]
    fast = "not slow and not long"
    words = words or ["-n", "2", "-m", f"({fast}) or light" if installed else fast]
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    left_out, kept = (LEFT_OUT_IF_INSTALLED, KEPT_IF_INSTALLED) if installed else (LEFT_OUT, None)
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)  # some tests run as another user, who must be able to read the copy
        copy, absent = Path(scratch, "checkout"), Path(scratch, "absent")
        for name in names:
            if (ROOT / name).is_file() and (name == kept or not name.startswith(left_out)):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        if not installed:
            absent.mkdir()
            (absent / "skillmesh_challenge.py").write_text(ABSENT)
            environment["PYTHONPATH"] = os.pathsep.join([str(copy / "src"), str(absent)])
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
        return subprocess.run(command, cwd=copy, env=environment).returncode


def refuse_checkout() -> None:
    """Exit if the product that would be imported is not an installed one."""
    spec = find_spec("skillmesh")
    if spec is None or spec.origin is None or Path(spec.origin).is_relative_to(ROOT / "src"):
        where = "nothing" if spec is None else spec.origin
        sys.exit(f"found {where}; expected the product to be installed in this environment: pip install .")


if __name__ == "__main__":
    sys.exit(main())
