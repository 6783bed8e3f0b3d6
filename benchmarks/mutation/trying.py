"""Try mutants: a process that has loaded the large libraries forks a child for each, which runs the tests.

The child imports skillmesh from a copy of the source in which one file is changed; so do the processes that its
tests start. Processes that a mutant leaves running are ended with it.
"""

from __future__ import annotations

import compileall
import ctypes
import importlib
import json
import os
import py_compile
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

HEAVY = (
    "numpy",
    "torch",
    "sklearn.mixture",
    "scipy.linalg",
    "PIL.Image",
    "pydantic",
    "zenoh",
    "safetensors",
    "hypothesis",
    "cryptography.x509",
    "typer",
    "rich.console",
    "filelock",
)
"""Modules that are slow to import; none of ours, since every mutant has its own copy."""
MEMORY = 12 * 2**30
FILE_SIZE = 2 * 2**30
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Tried:
    """The outcome of the tests on a mutant."""

    outcome: str
    """"detected", "timeout" or "survived"; "error" if the tests could not be run."""
    test: str
    """The first test that failed."""
    seconds: float


class Chosen:
    """A pytest plugin that runs the chosen tests in the given order and records the first failure."""

    def __init__(self, tests: Sequence[str], shared: Path) -> None:
        self._order = {test: index for index, test in enumerate(tests)}
        self._shared = shared
        self.failed = ""
        self.ran = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self._order), key=lambda i: self._order[i.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Any:
        """Use drawn tasks from a folder that was filled once: no mutant changes how they are drawn."""
        place = self._shared / fixturedef.argname
        if fixturedef.scope != "session" or not place.is_dir():
            return None
        fixturedef.cached_result = (place, fixturedef.cache_key(request), None)
        return place

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


class Trial:
    """One copy of the source, in which one mutant at a time is tried."""

    def __init__(
        self,
        root: Path,
        source: Path,
        folder: Path,
        preload: Sequence[str] = HEAVY,
        shared: Path | None = None,
        cache: Path | None = None,
    ) -> None:
        """Copy the source.

        Parameters
        ----------
        root
            Folder in which pytest is started; names of tests are relative to it.
        source
            The package's folder.
        folder
            Folder for the copy and the tests' files.
        preload
            Modules to load once, before the first mutant.
        shared
            Folders named like fixtures, with the content that those would create; each mutant gets a copy.
        cache
            Descriptors of the drawn images, likewise.
        """
        self._root, self._source, self._folder = root, source, folder
        self._shared, self._cache = shared, cache
        self._copy = folder / "src" / source.name
        shutil.rmtree(self._copy.parent, ignore_errors=True)
        shutil.copytree(source, self._copy, ignore=shutil.ignore_patterns("__pycache__"))
        # Never compared with the sources; the changed file has no compiled version, so each process compiles it.
        compileall.compile_dir(
            self._copy, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
        ctypes.CDLL(None).prctl(
            PR_SET_CHILD_SUBREAPER, 1
        )  # orphans of a mutant become our children, and are ended
        for name in preload:
            importlib.import_module(name)
        _load_timm(source / "backbone" / "compat.py")

    def run(self, file: str, text: str, tests: Sequence[str], limit: float, warm: bool = True) -> Tried:
        """Run tests on the source with `text` in `file`; with `warm`, they get copies of `shared` and `cache`."""
        changed = self._copy.parent / file
        compiled = Path(cache_from_source(str(changed)))
        before, kept = changed.read_text(), compiled.read_bytes()
        changed.write_text(text)
        compiled.unlink()
        try:
            return self._fork(tests, limit, warm)
        finally:
            changed.write_text(before)
            compiled.write_bytes(kept)

    def _fork(self, tests: Sequence[str], limit: float, warm: bool) -> Tried:
        place = self._folder / "tests"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if warm and self._cache is not None and self._cache.is_dir():
            shutil.copytree(self._cache, place / "skillmesh-cache")
        if warm and self._shared is not None and self._shared.is_dir():
            shutil.copytree(self._shared, place / "shared")
        began = time.monotonic()
        child = os.fork()
        if not child:
            try:
                self._child(tests, place)
            except BaseException:
                (place / "error.txt").write_text(traceback.format_exc())
            os._exit(9)
        status = _wait(child, began + limit)
        _end_children()
        seconds = time.monotonic() - began
        report = place / "outcome.json"
        outcome = json.loads(report.read_text()) if report.exists() else {"failed": "", "code": None, "ran": 0}
        if status is None:
            return Tried("timeout", "", seconds)
        if (
            not report.exists()
            and os.WIFSIGNALED(status)
            and os.WTERMSIG(status) not in (signal.SIGTERM, signal.SIGINT)
        ):
            return Tried("detected", f"ended by signal {os.WTERMSIG(status)}", seconds)
        if outcome["code"] == 0:
            return Tried("survived", "", seconds)
        if outcome["code"] in (1, 2):
            return Tried("detected", outcome["failed"] or "import", seconds)
        return Tried("error", f"pytest ended with {outcome['code']}; see {place}", seconds)

    def _child(self, tests: Sequence[str], place: Path) -> None:
        os.setsid()
        for limit, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, FILE_SIZE)):
            resource.setrlimit(limit, (most, resource.getrlimit(limit)[1]))
        log = os.open(place / "log.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self._root)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(self._copy.parent))
        os.environ |= {"PYTHONPATH": str(self._copy.parent), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(place)}
        from hypothesis import settings

        settings.register_profile("mutants", database=None, derandomize=True)
        settings.load_profile("mutants")
        chosen = Chosen(tests, place / "shared")
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={place / 'tmp'}"]
        code = int(pytest.main([*options, *files], plugins=[chosen]))
        package = sys.modules.get(self._source.name)
        if package is not None and not str(package.__file__).startswith(str(self._copy)):
            raise RuntimeError(f"the tests ran {package.__file__}, expected the copy at {self._copy}")
        outcome = {"code": code, "failed": chosen.failed, "ran": chosen.ran}
        (place / "outcome.json").write_text(json.dumps(outcome))
        os._exit(0)


def _load_timm(compat: Path) -> None:
    """Load timm as the package does, but nothing of the package."""
    spec = spec_from_file_location("mutation_compat", compat)
    if compat.is_file() and spec is not None and spec.loader is not None:
        module = sys.modules["mutation_compat"] = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.import_timm()


def _wait(child: int, deadline: float) -> int | None:
    """Wait for a process; kill its group at the deadline."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)


def _end_children() -> None:
    """End the processes left by a mutant's tests, whose parent this process has become."""
    while True:
        children = [int(c) for c in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
        if not children:
            return
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
