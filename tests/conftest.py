"""Shared fixtures: tasks drawn by code, agents in new homes, and a backbone that is loaded once."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from running import LEARNED, Ran

if TYPE_CHECKING:
    from meshes import Mesh

    from skillmesh.core import Core

# Before NumPy is loaded: test processes share the cores, and BLAS threads that wait for each other spin.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Speed is measured in benchmarks/; a busy machine must not make a test fail.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

REQUIRE_ALL = os.environ.get("SKILLMESH_REQUIRE_ALL") == "1"
TASKS = os.environ.get("SKILLMESH_TASKS")
"""Folder of real tasks; `.ci/run` sets it if they are available."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Turn the skip of a whole file into a failure if SKILLMESH_REQUIRE_ALL=1."""
    report = yield
    if REQUIRE_ALL and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, which SKILLMESH_REQUIRE_ALL=1 forbids: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Turn a skip into a failure if SKILLMESH_REQUIRE_ALL=1."""
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which SKILLMESH_REQUIRE_ALL=1 forbids: {call.excinfo and call.excinfo.value}"
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose mark names a package that is not installed."""
    for module in ("torch", "sklearn"):
        if item.get_closest_marker(module) and find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests away from the user's descriptor cache and agent."""
    folder = tmp_path_factory.getbasetemp().parent / "skillmesh-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKILLMESH_CACHE", str(folder))
        patch.setenv("SKILLMESH_HOME", str(folder / "no-agent-here"))
        yield


@pytest.fixture(scope="session")
def real_tasks() -> Path:
    """Return the folder of real tasks, or skip with a hint how to set it."""
    if not TASKS or not Path(TASKS).is_dir():
        pytest.skip("SKILLMESH_TASKS does not name a folder of real tasks")
    return Path(TASKS)


@pytest.fixture(scope="session")
def demo_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of small drawn tasks: shapes, dice, latin and greek to learn, snowflakes to be unknown."""
    from skillmesh.data.demo import write_demo_tasks

    folder = tmp_path_factory.mktemp("demo-tasks")
    write_demo_tasks(folder, train=8, val=3, test=4, names=["shapes", "dice", "latin", "greek", "snowflakes"])
    return folder


@pytest.fixture(scope="session")
def tiny_tasks(demo_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tasks that are learned quickly: two classes of three training images and one validation image."""
    folder = tmp_path_factory.mktemp("tiny-tasks")
    for task in sorted(demo_tasks.iterdir()):
        for split, count in {"train": 3, "val": 1, "test": 2}.items():
            for cls in sorted((task / split).iterdir())[:2]:
                target = folder / task.name / split / cls.name
                target.mkdir(parents=True)
                for image in sorted(cls.iterdir())[:count]:
                    shutil.copy(image, target)
    return folder


@pytest.fixture(scope="session")
def one_network() -> Iterator[None]:
    """Let all agents of a test run share one loaded network; calibrations are read as usual."""
    from skillmesh.backbone.backbone import Backbone, load_calibration

    load, loaded = Backbone.from_settings, {}

    def share(name, weights=None, calibration=None, device=None, cache_folder=None):
        key = (name, weights, device, cache_folder)
        if key not in loaded:
            loaded[key] = load(name, weights, calibration, device, cache_folder)
        return Backbone(loaded[key].network, load_calibration(name, calibration, weights), loaded[key].cache)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Backbone, "from_settings", share)
        yield


@pytest.fixture(scope="session")
def new_agent(one_network: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Core]:
    """Return a function that makes agents in new homes; settings as in `create_home`."""
    from skillmesh.core import Core
    from skillmesh.store.home import create_home

    def make(name: str = "alice", **settings: object) -> Core:
        home = tmp_path_factory.mktemp("home")
        create_home(home, name=name, **settings)
        return Core(home)

    return make


@pytest.fixture(scope="session")
def taught(new_agent: Callable[..., Core], demo_tasks: Path) -> Core:
    """Return an agent that learned shapes, dice, latin and greek. Many tests share it: none may change it."""
    agent = new_agent("alice")
    for name in LEARNED:
        agent.learn(demo_tasks / name)
    return agent


@pytest.fixture(scope="session")
def tiny_taught(new_agent: Callable[..., Core], tiny_tasks: Path) -> Core:
    """Return the same with tiny tasks."""
    agent = new_agent("tina")
    for name in LEARNED:
        agent.learn(tiny_tasks / name)
    return agent


@pytest.fixture(scope="session")
def skill_files(tiny_taught: Core, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the tiny tasks' modules as files, by name."""
    folder = tmp_path_factory.mktemp("skills")
    for name in LEARNED:
        tiny_taught.export(name, folder / f"{name}.skill")
    return {name: folder / f"{name}.skill" for name in LEARNED}


@pytest.fixture(scope="session")
def mixed(demo_tasks: Path) -> list[Path]:
    """Return test images of the four learned tasks, shuffled; a path contains the image's task and class."""
    paths = [path for name in LEARNED for path in sorted((demo_tasks / name / "test").glob("*/*"))]
    random.Random(0).shuffle(paths)
    return paths


@pytest.fixture(scope="session")
def strange(demo_tasks: Path) -> list[Path]:
    """Return images of a task that was not learned."""
    return sorted((demo_tasks / "snowflakes" / "test").glob("*/*"))


@pytest.fixture(scope="session")
def other_calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a calibration of the same network that differs in one number."""
    from skillmesh.backbone.backbone import load_calibration
    from skillmesh.backbone.calibration import Calibration

    shipped = load_calibration("lite0")
    mean = shipped.mean.copy()
    mean[0] += 1e-3
    path = tmp_path_factory.mktemp("calibration") / "other.safetensors"
    Calibration._of(shipped.tensors | {"mean": mean}, shipped.network, "a test").save(path)
    return path


@pytest.fixture
def command(
    one_network: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Return a function that runs `skillmesh` as the shell would, but in this process."""
    from skillmesh.cli import main

    def run(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["skillmesh", *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def teachers(new_agent: Callable[..., Core], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return homes of eight agents with two really learned tasks each, sixteen in all. Tests copy them."""
    from skillmesh.data.demo import HIDDEN, write_demo_tasks
    from skillmesh.data.demo import LEARNED as DRAWN

    names = (*DRAWN, *HIDDEN)[:16]
    folder = tmp_path_factory.mktemp("teachers-tasks")
    write_demo_tasks(folder, train=3, val=2, test=1, names=list(names))
    homes = []
    for index in range(8):
        agent = new_agent(f"teacher{index}")
        for name in names[2 * index : 2 * index + 2]:
            for split in ("train", "val", "test"):
                for extra in sorted((folder / name / split).iterdir())[3:]:
                    shutil.rmtree(extra)
            agent.learn(folder / name)
        homes.append(agent.home)
    return homes


@pytest.fixture
def mesh(teachers: list[Path], tmp_path: Path) -> Iterator[Mesh]:
    """Yield a mesh of real processes, stopped at the end of the test."""
    from meshes import Mesh

    nodes = Mesh(tmp_path, teachers)
    yield nodes
    nodes.stop()
