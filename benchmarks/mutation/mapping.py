"""Which tests run which lines, measured once with coverage.py: a mutant needs only tests that can detect it.

As a pytest plugin (`-p mutation.mapping`) it labels lines with the test that runs them, or with the fixture being
set up: a session fixture is set up in the first test that uses it, but all tests that use it depend on it.
Processes that a test starts are measured too, under the test's label.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import coverage
import pytest

DRAWN = ("demo_tasks", "tiny_tasks")
"""Fixtures whose folders are kept, so that mutants need not draw them again."""
FOLDER, LABEL, SOURCE = "MUTANTS_MAP_FOLDER", "MUTANTS_MAP_LABEL", "MUTANTS_MAP_SOURCE"
RC = """[run]
source = {source}
data_file = {folder}/data
parallel = true
concurrency = thread
context = ${{{label}-}}
disable_warnings = module-not-imported, no-data-collected, couldnt-parse
"""


class Mapper:
    """The plugin: records the time of each test and fixture, and labels their lines."""

    def __init__(self, folder: Path, source: Path) -> None:
        self._folder = folder
        self._label = ""
        self._setting_up = 0.0
        self._tests: dict[str, dict[str, Any]] = {}
        self._fixtures: dict[str, float] = {}
        config = folder / "coverage.ini"
        config.write_text(RC.format(source=source, folder=folder, label=LABEL))
        os.environ["COVERAGE_PROCESS_START"] = str(config)  # for the processes that tests start
        os.environ[LABEL] = ""
        self._coverage = coverage.Coverage(config_file=str(config), context="")
        self._coverage.start()

    def _switch(self, label: str) -> str:
        before, self._label = self._label, label
        os.environ[LABEL] = label
        self._coverage.switch_context(label)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._switch(item.nodeid)
        self._setting_up = 0.0
        began = time.monotonic()
        fixtures = list(getattr(item, "fixturenames", ()))
        self._tests[item.nodeid] = {"fixtures": fixtures, "outcome": "passed", "seconds": 0.0}
        try:
            return (yield)
        finally:
            self._tests[item.nodeid]["seconds"] = time.monotonic() - began - self._setting_up
            self._switch("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[object]:
        if fixturedef.scope == "function":
            return (yield)
        before = self._switch(f"fixture {fixturedef.argname}")
        began, nested = time.monotonic(), self._setting_up
        try:
            value = yield
            if fixturedef.argname in DRAWN:
                shutil.copytree(value, self._folder / "shared" / fixturedef.argname, dirs_exist_ok=True)
            return value
        finally:
            took = time.monotonic() - began
            own = took - (self._setting_up - nested)
            self._setting_up = nested + took
            self._fixtures[fixturedef.argname] = max(own, self._fixtures.get(fixturedef.argname, 0.0))
            self._switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._tests[report.nodeid]["outcome"] = report.outcome

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        (self._folder / "tests.json").write_text(json.dumps({"tests": self._tests, "fixtures": self._fixtures}))


def pytest_configure(config: pytest.Config) -> None:
    if FOLDER in os.environ:
        config.pluginmanager.register(Mapper(Path(os.environ[FOLDER]), Path(os.environ[SOURCE])))


class Map:
    """Times and lines of the tests, file by file; a changed test file is measured again."""

    def __init__(self, root: Path, source: Path, folder: Path) -> None:
        self._root, self._source, self._folder = root, source, folder
        (folder / "sources").mkdir(parents=True, exist_ok=True)
        self._record = folder / "map.json"
        self._kept: dict[str, Any] = json.loads(self._record.read_text()) if self._record.exists() else {}
        self._moved: dict[tuple[str, str], dict[int, int]] = {}

    def measure(self, tests: Sequence[str], say: Callable[[str], None], options: Sequence[str] = ()) -> None:
        """Run the new or changed test files once, on the unchanged code."""
        missing = [test for test in tests if self._kept.get(test, {}).get("sha") != digest(self._root / test)]
        self._kept = {test: self._kept[test] for test in tests if test not in missing}
        if not missing:
            return
        for old in self._folder.glob("data*"):
            old.unlink()
        say(f"measuring which lines the tests of {len(missing)} files run")
        paths = [
            str(self._source.parent),
            str(Path(__file__).resolve().parents[1]),
            os.environ.get("PYTHONPATH", ""),
        ]
        environment = os.environ | {
            FOLDER: str(self._folder), SOURCE: str(self._source), "PYTHONPATH": os.pathsep.join(paths)
        }  # fmt: skip
        words = [sys.executable, "-m", "pytest", "-q", "-p", "mutation.mapping", "-p", "no:cacheprovider"]
        words += [*options, f"--basetemp={self._folder / 'tmp'}", *missing]
        with (self._folder / "log.txt").open("wb") as log:
            subprocess.run(
                words, cwd=self._root, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
            )
        self._take_in(missing)

    def _take_in(self, files: Sequence[str]) -> None:
        report = json.loads((self._folder / "tests.json").read_text())
        lines = _lines_of_tests(self._folder, self._source, report["tests"])
        shas = {}
        for name in {name for by in lines.values() for name in by}:
            shas[name] = digest(self._source.parent / name)
            shutil.copy(self._source.parent / name, self._folder / "sources" / shas[name])
        for file in files:
            tests = {test: facts for test, facts in report["tests"].items() if test.partition("::")[0] == file}
            for test, facts in tests.items():
                facts["lines"] = {name: sorted(numbers) for name, numbers in lines.get(test, {}).items()}
                facts["fixtures"] = {name: report["fixtures"].get(name, 0.0) for name in facts["fixtures"]}
            self._kept[file] = {"sha": digest(self._root / file), "sources": shas, "tests": tests}
        self._record.write_text(json.dumps(self._kept))

    @property
    def failed(self) -> list[str]:
        """Tests that fail on the unchanged code, and therefore say nothing about mutants."""
        return [
            t for kept in self._kept.values() for t, facts in kept["tests"].items() if facts["outcome"] == "failed"
        ]

    def facts(self, test: str) -> dict[str, Any] | None:
        """Return the measurements of one test."""
        kept = self._kept.get(test.partition("::")[0], {"tests": {}})
        found: dict[str, Any] | None = kept["tests"].get(test)
        return found

    def tests(self, name: str, lines: tuple[int, int] | None) -> dict[str, dict[str, Any]]:
        """Return the tests that pass and run a line of a file, from the first to the last of `lines`, or any."""
        found = {}
        for kept in self._kept.values():
            sha = kept["sources"].get(name)
            if sha is None:
                continue
            here = self._moves(name, sha)
            for test, facts in kept["tests"].items():
                if facts["outcome"] != "passed" or name not in facts["lines"]:
                    continue
                if lines is None or any(lines[0] <= here.get(n, 0) <= lines[1] for n in facts["lines"][name]):
                    found[test] = facts
        return found

    def tests_in(self, file: str) -> dict[str, dict[str, Any]]:
        """Return the tests of a test file that pass."""
        tests = self._kept.get(file, {}).get("tests", {})
        return {test: facts for test, facts in tests.items() if facts["outcome"] == "passed"}

    def _moves(self, name: str, sha: str) -> dict[int, int]:
        """Return the current line number of each line of a file as it was measured."""
        if (name, sha) not in self._moved:
            old, new = (
                (p.read_text().splitlines()) for p in (self._folder / "sources" / sha, self._source.parent / name)
            )
            blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
            self._moved[name, sha] = {b.a + i + 1: b.b + i + 1 for b in blocks for i in range(b.size)}
        return self._moved[name, sha]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _lines_of_tests(folder: Path, source: Path, tests: dict[str, Any]) -> dict[str, dict[str, set[int]]]:
    """Return the lines that each test runs, by test and source file, including those of its fixtures."""
    wanting: dict[str, list[str]] = defaultdict(list)
    for test, facts in tests.items():
        wanting[test].append(test)
        for fixture in facts["fixtures"]:
            wanting[f"fixture {fixture}"].append(test)
    lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for part in sorted(folder.glob("data*")):
        data = coverage.CoverageData(str(part))
        data.read()
        for file in data.measured_files():
            name = Path(file).relative_to(source.parent).as_posix()
            for line, labels in data.contexts_by_lineno(file).items():
                for test in {test for label in labels for test in wanting.get(label, ())}:
                    lines[test][name].add(line)
    return lines
