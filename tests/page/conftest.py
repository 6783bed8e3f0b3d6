"""Fixtures of the browser tests: one browser and one set of drawn pictures for each file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from browsing import Served, Window
    from pictures import Pictures
    from playwright.sync_api import Browser

    from skillmesh.core import Core


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    """Return drawn pictures of two tasks."""
    from pictures import Pictures

    return Pictures(tmp_path_factory.mktemp("pictures"), "shapes", "snowflakes")


@pytest.fixture(scope="session")
def adept(new_agent: Callable[..., Core], pictures: Pictures, tmp_path_factory: pytest.TempPathFactory) -> Core:
    """Return an agent that knows two shapes, and shares that. Tests serve copies of its home."""
    from skillmesh.data.datasets import task_of

    agent = new_agent("adept")
    pairs = [
        (path, name) for name, files in pictures.to_teach("shapes", "star", "heart").items() for path in files
    ]
    with task_of([path for path, _ in pairs], [name for _, name in pairs], name="shapes") as task:
        agent.learn(task)
    return agent


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a browser: not for the whole run, since Playwright keeps an event loop in this thread."""
    from browsing import chromium

    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def mesh_number() -> int:
    """Return the discovery port of this file's mesh."""
    from meshes import free_port

    return free_port()


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """Return a function that serves the page of a new agent, or of a copy of one, until the end of the file."""
    from browsing import served
    from meshes import free_port

    with ExitStack() as stack:

        def start(name: str, copy_of: Core | None = None, mesh: int | None = None) -> Served:
            folder = tmp_path_factory.mktemp(name)
            return stack.enter_context(served(folder, name, mesh or free_port(), copy_of))

        yield start


@pytest.fixture
def open_window(browser: Browser) -> Iterator[Callable[..., Window]]:
    """Return a function that opens a window on an agent's page. At the end, nothing may have gone wrong in it."""
    from browsing import window

    with ExitStack() as stack:

        def open_one(agent: Served, url: str | None = None, **options: Any) -> Window:
            entered: AbstractContextManager[Window] = window(browser, agent, **options)
            return stack.enter_context(entered).open(url)

        yield open_one
