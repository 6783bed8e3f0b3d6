"""What the tests share: tasks drawn by code, agents in fresh homes, and a backbone that is loaded once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REQUIRE_ALL = os.environ.get("SKILLMESH_REQUIRE_ALL") == "1"
TASKS = os.environ.get("SKILLMESH_TASKS")
"""Where real tasks lie; `.ci/run` sets it where they are there."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A skip is not a pass: with SKILLMESH_REQUIRE_ALL=1 it is a failure."""
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which SKILLMESH_REQUIRE_ALL=1 forbids: {call.excinfo and call.excinfo.value}"
    return report


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor fill the user's descriptor cache, nor find the user's agent."""
    folder = tmp_path_factory.getbasetemp().parent / "skillmesh-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKILLMESH_CACHE", str(folder))
        patch.setenv("SKILLMESH_HOME", str(folder / "no-agent-here"))
        yield


@pytest.fixture(scope="session")
def real_tasks() -> Path:
    """The folder of real tasks, or a skip that says how to give it."""
    if not TASKS or not Path(TASKS).is_dir():
        pytest.skip("SKILLMESH_TASKS does not name a folder of real tasks")
    return Path(TASKS)


@pytest.fixture(scope="session")
def demo_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small drawn tasks: shapes, dice, latin and greek to learn, snowflakes to be unknown."""
    from skillmesh.data.demo import write_demo_tasks

    folder = tmp_path_factory.mktemp("demo-tasks")
    write_demo_tasks(folder, train=8, val=3, test=4, names=["shapes", "dice", "latin", "greek", "snowflakes"])
    return folder


@pytest.fixture(scope="session")
def new_agent(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., object]:
    """Make agents in fresh homes; settings as `create_home` takes them. The backbone is loaded once for all."""
    from skillmesh.agent import Agent, create_home
    from skillmesh.backbone.backbone import Backbone

    loaded: dict[tuple[object, ...], Backbone] = {}

    def make(name: str = "alice", **settings: object) -> Agent:
        home = tmp_path_factory.mktemp("home")
        create_home(home, name=name, **settings)
        agent = Agent(home)
        key = (agent.config.backbone, settings.get("weights"), settings.get("calibration"))
        if key not in loaded:
            loaded[key] = agent.backbone
        agent._backbone = loaded[key]
        return agent

    return make
