"""List the source files that `learn`, `ask`, the arrival of a module and a challenge run pass through (walks).

    python benchmarks/walks.py [--before OTHER/src] [--json docs/results/walks.json]

`--before` first walks through another version of the packages, such as one unpacked from `git archive COMMIT src`.
Each walk is a command in its own process, with its inputs prepared beforehand. A file is on the walk if one of its
functions is called, in the order of first calls; code that runs only while modules are imported does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Recorder:
    """Records the files of called functions, in all threads."""

    def __init__(self, source: Path) -> None:
        self._source, self._known = str(source) + os.sep, dict[CodeType, None]()
        self.files: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in self._known:
            return
        if self._importing(frame):
            return
        self._known[code] = None
        if code.co_filename.startswith(self._source):
            self.files[code.co_filename.removeprefix(self._source)] = None

    def _importing(self, frame: FrameType) -> bool:
        """Return whether a frame runs only because a module of the packages is being imported."""
        above: FrameType | None = frame
        while above is not None:
            code = above.f_code
            if code.co_name == "<module>" and code.co_filename.startswith(self._source):
                return True
            above = above.f_back
        return False


def record(source: Path, words: list[str], out: Path) -> None:
    """Run one command in this process and record its files."""
    sys.path.insert(0, str(source))
    recorder = Recorder(source)
    from skillmesh.cli import main

    sys.argv = ["skillmesh", *words]
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        out.write_text(json.dumps(list(recorder.files)))
    os._exit(0)


class Stage:
    """Two agents and some images, made with the version of the code under examination."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._source, self._folder = source, folder
        self._environment = os.environ | {"PYTHONPATH": str(source), "SKILLMESH_CACHE": str(folder / "cache")}

    def _command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "skillmesh", *map(str, words)]

    def run(self, *words: object) -> str:
        done = subprocess.run(
            self._command(*words), env=self._environment, cwd=self._folder, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"`skillmesh {' '.join(map(str, words))}` failed: {done.stderr}")
        return done.stdout

    def walk(self, *words: object) -> list[str]:
        """Record the files of one command."""
        out = self._folder / "walk.json"
        call = [sys.executable, __file__, "--record", out, "--source", self._source, "--", *words]
        done = subprocess.run(
            [*map(str, call)], env=self._environment, cwd=self._folder, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"`skillmesh {' '.join(map(str, words))}` failed: {done.stderr}")
        files: list[str] = json.loads(out.read_text())
        return files

    def walks(self) -> dict[str, list[str]]:
        tasks, anna, ben = self._folder / "tasks", self._folder / "anna", self._folder / "ben"
        self.run("samples", tasks)
        for home in (anna, ben):
            self.run("init", "--home", home)
        found = {"learn": self.walk("learn", tasks / "dice", "--home", anna)}
        self.run("learn", tasks / "shapes", "--home", ben)
        image = next(iter(sorted((tasks / "dice" / "test").glob("*/*"))))
        found["ask"] = self.walk("ask", image, "--home", anna)
        found["arrival"] = self._arrival(anna, ben)
        found["challenge run"] = self.walk(
            "challenge",
            "run",
            tasks / "dice",
            tasks / "shapes",
            "--agents",
            2,
            "--workers",
            1,
            "--out",
            self._folder / "run",
        )
        return found

    def _arrival(self, teacher: Path, student: Path) -> list[str]:
        """Let a node serve the teacher, and the student catch up with it."""
        options = ("--network", "fixed", "--trust", "open")
        node = subprocess.Popen(
            self._command("serve", "--home", teacher, *options, "--listen", "127.0.0.1:17551"),
            env=self._environment, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert node.stdout is not None
            node.stdout.readline()  # the node listens
            files = self.walk("sync", "--home", student, *options, "--connect", "127.0.0.1:17551")
            known = json.loads(self.run("tasks", "--home", student, "--json"))
            if len(known["tasks"] if isinstance(known, dict) else known) != 2:
                sys.exit(f"the module did not arrive: {known}")
            return files
        finally:
            node.terminate()
            node.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, default=ROOT / "src", help=argparse.SUPPRESS)
    parser.add_argument("--before", type=Path, help="source folder of another version to compare with")
    parser.add_argument("--before-commit", default="", help="commit of that version, recorded in the file")
    parser.add_argument("--json", type=Path, help="also write the walks to this file")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        record(options.source, options.words, options.record)
    before = walks_of(options.before) if options.before else {}
    now = walks_of(options.source)
    for name, files in now.items():
        print(f"{name}: {len(files)} files" + (f", before {len(before[name])}" if before else ""))
        for number, file in enumerate(files, 1):
            print(f"  {number:3} {file}")
    if options.json:
        from skillmesh.evaluation.provenance import provenance

        origin = provenance("python benchmarks/walks.py --before OTHER/src", [], 0)
        facts = {"before": before, "before_commit": options.before_commit, "now": now, "provenance": origin}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


def walks_of(source: Path) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory(prefix="skillmesh-walks-") as folder:
        return Stage(source.resolve(), Path(folder)).walks()


if __name__ == "__main__":
    main()
