"""Measure what an installation takes, and whether an agent does all of its work in it.

    python benchmarks/install.py [--python PYTHON]... [--json docs/results/install.json]

For each Python, `pip install -c constraints.txt .` fills a fresh virtual environment from this checkout, with
nothing taken from pip's cache. Its `skillmesh` then draws three tasks, learns them, answers, evaluates, shares
them with a second agent over this machine's loopback address, and answers with adapted modules that PyTorch made.
The first step that fails ends the run. Without `--python`, the Pythons 3.11 to 3.13 on the PATH are taken.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from skillmesh.data.folder import find_tasks
from skillmesh.evaluation.provenance import provenance
from skillmesh.numerics.process import cores

ROOT = Path(__file__).resolve().parents[1]
ADAPTED = ROOT / "tests" / "fixtures" / "adapted"
PYTHONS = ("python3.11", "python3.12", "python3.13")
ABSENT = {"torch", "torchvision", "timm", "scikit-learn"}
"""Packages that a plain installation must not bring."""
MOST = 0.8
"""Smallest share of images that must be answered right."""
LOOPBACK = ("--network", "fixed", "--listen", "tcp/127.0.0.1:0", "--trust", "open")
LOOK_INSIDE = """
import importlib.metadata, json, platform, skillmesh
names = sorted({d.name.lower() for d in importlib.metadata.distributions()} - {"pip", "setuptools"})
print(json.dumps({"python": platform.python_version(), "packages": names, "from": skillmesh.__file__}))
"""


@dataclass(frozen=True)
class Step:
    """Something that was done in an installation, and the images that it answered, if any."""

    what: str
    seconds: float
    ok: bool
    right: int | None = None
    images: int | None = None


@dataclass
class Installation:
    """A virtual environment with skillmesh, a folder to work in, and what was done there."""

    folder: Path
    work: Path
    steps: list[Step] = field(default_factory=list)

    def do(self, what: str, *words: object) -> str:
        """Run the installed `skillmesh` as a step; return its output."""
        seconds, out = timed(what, [self.folder / "bin" / "skillmesh", *words], self.work)
        self.steps.append(Step(what, seconds, ok=True))
        return out

    def ask(self, what: str, home: str, expected: Mapping[str, tuple[str, str]]) -> None:
        """Ask for all images as a step; fail unless most answers are the expected tasks and labels."""
        out = self.do(what, "--home", home, "ask", "--json", *expected)
        answers = json.loads(out)["answers"]
        right = sum((answer["task"], answer["label"]) == expected[answer["image"]] for answer in answers)
        if right < MOST * len(expected):
            raise SystemExit(f"{what}: {right} of {len(expected)} answers are right, expected most\n{out}")
        self.steps[-1] = Step(what, self.steps[-1].seconds, True, right, len(expected))

    @contextmanager
    def serving(self, home: str) -> Iterator[str]:
        """Run a node on a home, and stop it at the end; yield the address that it listens at."""
        command = [self.folder / "bin" / "skillmesh", "--home", home, "serve", *LOOPBACK]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(command, cwd=self.work, env=environment(self.work), **pipes) as process:
            lines = []
            try:
                for line in process.stdout or ():
                    lines.append(line)
                    if "trusts" in line:  # the last line of its greeting
                        break
                else:
                    raise SystemExit(f"serve failed:\n{''.join(lines)}")
                yield next(line.split()[1] for line in lines if "listening" in line)
            finally:
                process.send_signal(signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="PYTHON", help="a Python to install into; repeatable")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pythons = options.python or [name for name in PYTHONS if runs(name)]
    with TemporaryDirectory(prefix="skillmesh-install-") as scratch:
        works = [Path(scratch, str(number)) for number in range(len(pythons))]
        rows = [measured(python, work) for python, work in zip(pythons, works, strict=True)]
        show(rows)
        if options.json:
            given = " --python PYTHON" * len(options.python or ())
            drawn = find_tasks([works[0] / "photos"])
            report = {
                "rows": rows,
                "machine": f"{platform.machine()}, {cores()} cores",
                "provenance": provenance(f"python benchmarks/install.py{given} --json FILE", drawn, seed=0),
            }
            options.json.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")


def runs(python: str) -> bool:
    """Return whether a Python is on the PATH and runs; a version manager may list some that do not."""
    return shutil.which(python) is not None and not subprocess.run([python, "-V"], capture_output=True).returncode


def measured(python: str, work: Path) -> dict[str, Any]:
    """Install into a fresh environment of a Python, use it, and return all that was measured."""
    work.mkdir()
    here = Installation(work / "venv", work)
    venv_seconds, _ = timed("venv", [python, "-m", "venv", here.folder], work, folder=Path.cwd())
    pip = [here.folder / "bin" / "pip", "install", "-c", "constraints.txt", "."]
    install_seconds, _ = timed("pip install", pip, work, folder=ROOT)
    _, size = timed("du", ["du", "-sm", here.folder], work)
    _, text = timed("looking inside", [here.folder / "bin" / "python", "-c", LOOK_INSIDE], work)
    inside = json.loads(text)
    if present := ABSENT.intersection(inside["packages"]):
        raise SystemExit(f"{python}: found {', '.join(sorted(present))} in the environment, expected none of them")
    if not Path(inside["from"]).is_relative_to(here.folder):
        raise SystemExit(f"{python}: skillmesh is imported from {inside['from']}, expected from {here.folder}")
    use(here)
    return {
        "python": inside["python"],
        "venv_seconds": venv_seconds,
        "install_seconds": install_seconds,
        "environment_mb": int(size.split()[0]),
        "packages": len(inside["packages"]),
        "steps": [asdict(step) for step in here.steps],
    }


def use(here: Installation) -> None:
    """Do with two agents, anna and bob, what the README shows; a third, carol, receives adapted modules."""
    here.do("draw 3 tasks", "samples", "photos")
    here.do("learn them", "--home", "anna", "learn", "photos", "--each-folder")
    images = sorted(here.work.glob("photos/*/test/*/*"))
    tests = {str(path.relative_to(here.work)): (path.parts[-4], path.parts[-2]) for path in images}
    here.ask("ask about their test images", "anna", tests)
    here.do("eval: learn and test again", "eval", "photos", "--json")
    here.do("make a second agent", "--home", "bob", "init")
    with here.serving("anna") as place:
        here.do("sync it with a node", "--home", "bob", "sync", *LOOPBACK, "--connect", place)
    here.ask("ask the second agent", "bob", tests)
    calibration = next(here.folder.glob("lib/*/site-packages/skillmesh/backbone/calibrations/earlier/lite0-1.*"))
    here.do("make a third agent", "--home", "carol", "init", "--compact", "--calibration", calibration)
    files = sorted(ADAPTED.glob("*.skill.gz"))
    for file in files:
        (here.work / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    here.do("import adapted modules", "--home", "carol", "import", *(file.stem for file in files))
    torch = json.loads((ADAPTED / "answers.json").read_text())
    best = {name: (name.partition("-")[0], max(found, key=found.get)) for name, found in torch.items()}
    here.ask("ask with adapted modules", "carol", {str(ADAPTED / "images" / name): best[name] for name in best})


def timed(what: str, command: list[Any], work: Path, folder: Path | None = None) -> tuple[float, str]:
    """Run a command; return its seconds and output, or end with what failed."""
    started = time.monotonic()
    words = list(map(str, command))
    done = subprocess.run(words, cwd=folder or work, env=environment(work), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{what} failed: {' '.join(words)}\n{done.stdout}{done.stderr}")
    return time.monotonic() - started, done.stdout


def environment(work: Path) -> dict[str, str]:
    """Return variables with which nothing is found but the environment itself, and no cache of earlier runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SKILLMESH_"))}
    return kept | {"PIP_NO_CACHE_DIR": "1", "XDG_CACHE_HOME": str(work / "cache")}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the measured quantities, a column for each Python."""
    table = Table("what", *(f"Python {row['python']}" for row in rows), box=None)
    table.add_row("venv, s", *(f"{row['venv_seconds']:.1f}" for row in rows))
    table.add_row("pip install, s", *(f"{row['install_seconds']:.1f}" for row in rows))
    table.add_row("environment, MB (du -sm)", *(str(row["environment_mb"]) for row in rows))
    table.add_row("packages", *(str(row["packages"]) for row in rows))
    for steps in zip(*(row["steps"] for row in rows), strict=True):
        right = [f", {step['right']} of {step['images']} right" if step["images"] else "" for step in steps]
        cells = [f"{step['seconds']:.1f} s{found}" for step, found in zip(steps, right, strict=True)]
        table.add_row(steps[0]["what"], *cells)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
