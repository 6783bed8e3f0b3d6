"""Pages for tests: a real node with its HTTP server in this process, and what programs send to it."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from meshes import eventually, free_port

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.mesh.node import Node
from skillmesh.page.server import Address, Page, serving

BASE = "/api/v1"
PROBLEM = "application/problem+json"
NEVER_ENDS = ("draft", "waiting", "learning")


@dataclass
class Visited:
    """A served agent, and the clients of its owner and of a guest."""

    core: Core
    node: Node
    page: Page
    owner: httpx.Client
    guest: httpx.Client
    stranger: httpx.Client
    """A client without a token."""


@contextmanager
def visited(core: Core, port: int | None = None, address: Address | None = None, **mesh: Any) -> Iterator[Visited]:
    """Serve an agent's page; nodes with the same discovery port find each other."""
    usual = {"network": "machine", "discovery_port": port or free_port(), "trust": "open", "sync_seconds": 2.0}
    node = Node(core, MeshSettings.of(usual | mesh))
    with node.running(), serving(core, node, address or Address(port=0)) as page:
        tokens = (page.tokens.owner, page.tokens.guest, None)
        with client(page, tokens[0]) as owner, client(page, tokens[1]) as guest, client(page) as stranger:
            yield Visited(core, node, page, owner, guest, stranger)


def client(page: Page, token: str | None = None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(base_url=page.url + BASE, headers=headers, timeout=60, trust_env=False)


def refused(response: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    """Assert that a response is a problem of this status whose detail has these words; return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    problem = response.json()
    assert problem.keys() == {"type", "title", "status", "detail"}
    assert problem["status"] == status
    for word in words:
        assert word in problem["detail"]
    return dict(problem)


def done(response: httpx.Response, status: int = 200) -> Any:
    """Return the JSON of a response that must have this status."""
    assert response.status_code == status, response.text
    return response.json()


def form(paths: Sequence[Path]) -> list[tuple[str, tuple[str, bytes]]]:
    """Return the parts of a form with these images."""
    return [("images", (path.name, path.read_bytes())) for path in paths]


def images_of(task: Path, *splits: str) -> dict[str, list[Path]]:
    """Return a task's images by class."""
    found: dict[str, list[Path]] = {}
    for split in splits or ("train", "val"):
        for folder in sorted((task / split).iterdir()):
            found.setdefault(folder.name, []).extend(sorted(folder.iterdir()))
    return found


def zipped(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def drafted(owner: httpx.Client, task: str, images: Mapping[str, Sequence[Path]], **options: Any) -> str:
    """Begin a lesson and send its images; return its id."""
    response = owner.post("/lessons", json={"task": task} | options)
    assert response.status_code in (200, 201), response.text
    lesson = str(response.json()["id"])
    for name, paths in images.items():
        sent = done(owner.post(f"/lessons/{lesson}/images", params={"class": name}, files=form(paths)))
        assert len(sent["added"]) == len(paths), sent["refused"]
    return lesson


def started(owner: httpx.Client, lesson: str, **options: Any) -> Any:
    return done(owner.post(f"/lessons/{lesson}/start", json={"sharing": "later"} | options), 202)


def ended(owner: httpx.Client, lesson: str) -> Any:
    """Wait until a lesson is not being learned any more, and return it."""

    def now() -> Any:
        found = done(owner.get(f"/lessons/{lesson}"))
        return None if found["state"] in NEVER_ENDS else found

    return eventually(now, why="the lesson ends")


def taught(owner: httpx.Client, task: str, images: Mapping[str, Sequence[Path]], **options: Any) -> Any:
    """Teach a task by a lesson; return the lesson at its end."""
    lesson = drafted(owner, task, images)
    started(owner, lesson, **options)
    found = ended(owner, lesson)
    assert found["state"] == "done", found
    return found


def task_named(owner: httpx.Client, name: str) -> Any:
    """Return the task of this name, or None."""
    return next((task for task in done(owner.get("/tasks"))["tasks"] if task["task"] == name), None)


@dataclass
class Follower:
    """One reader of the event stream, in a thread of its own."""

    kind: str = ""
    """The stream's content type."""
    events: list[tuple[str, Any]] = field(default_factory=list)

    def topics(self) -> set[str]:
        """Return the topics that were said to have changed."""
        return {topic for name, data in list(self.events) if name == "changed" for topic in data["topics"]}

    def lessons(self) -> list[Any]:
        return [data for name, data in list(self.events) if name == "lesson"]


@contextmanager
def following(caller: httpx.Client) -> Iterator[Follower]:
    """Follow the events; the context begins once the stream has said hello."""
    follower = Follower()
    line = http.client.HTTPConnection(caller.base_url.host, caller.base_url.port, timeout=60)
    line.request("GET", f"{BASE}/events", headers={"Authorization": caller.headers["authorization"]})
    assert line.sock is not None
    connection = line.sock
    response = line.getresponse()
    follower.kind = response.headers["content-type"]

    def read() -> None:
        name = ""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            while text := response.readline().decode():
                kind, _, rest = text.strip().partition(": ")
                if kind == "event":
                    name = rest
                elif kind == "data":
                    follower.events.append((name, json.loads(rest)))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        eventually(lambda: follower.events, why="the stream says hello")
        yield follower
    finally:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        line.close()
