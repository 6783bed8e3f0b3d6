"""How long `catch_up` runs: with peers until everything is exchanged, alone briefly, never forever."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from meshes import free_port

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.errors import AgentError, DataError
from skillmesh.mesh import node, service
from skillmesh.mesh.node import Node
from skillmesh.mesh.service import Lessons, catch_up


@pytest.fixture
def settings() -> MeshSettings:
    return MeshSettings(discovery_port=free_port())


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list of the seconds that each call of `catch_up` waited."""
    seconds: list[float] = []
    real = Node.sync

    def timed(self: Node, limit: float, stop: threading.Event) -> None:
        began = time.monotonic()
        real(self, limit, stop)
        seconds.append(time.monotonic() - began)

    monkeypatch.setattr(Node, "sync", timed)
    return seconds


@pytest.mark.parametrize(
    ("limit", "least", "most"), [(1.0, 1.0, 2.9), pytest.param(16.0, 4.0, 12.0, marks=pytest.mark.long)]
)
def test_alone_it_waits_a_quarter_of_its_time_and_never_more_than_all(
    new_agent: Callable[..., Core],
    settings: MeshSettings,
    waited: list[float],
    limit: float,
    least: float,
    most: float,
):
    catch_up(new_agent(), settings, limit)
    assert least <= waited[0] < most


@pytest.mark.long
def test_alone_it_waits_for_a_few_seconds_at_least(
    new_agent: Callable[..., Core], settings: MeshSettings, waited: list[float]
):
    catch_up(new_agent(), settings, 11.0)
    assert 11.0 / 4 < node.MEETING <= waited[0] < 9.0


def test_with_a_peer_it_fetches_everything_and_ends_when_all_is_quiet(
    new_agent: Callable[..., Core], tiny_tasks: Path, settings: MeshSettings, waited: list[float]
):
    teacher, student = new_agent("teacher"), new_agent("student")
    module, _ = teacher.learn(tiny_tasks / "dice")
    with Node(teacher, settings.with_(trust="open")).running():
        told = catch_up(student, settings.with_(trust="open"), 60.0)
        assert [module.card.task for module in student.bank] == ["dice"]
        assert node.QUIET <= waited[0] < 30
        # The reported status.
        assert told["bytes_fetched"] == module.size
        assert told["in_use"] == told["peers"] == 1
        assert waited[0] - 0.1 <= told["seconds"] < waited[0] + 10  # rounded to a tenth of a second
        assert 0 < told["slowest_import_seconds"] < 30
        assert told["declined"] == told["fetching"] == []
        assert (told["wanted"], told["settled"], told["trouble"]) == (0, True, None)


class Waiting:
    """A node with one peer that is never settled, and a clock that moves with each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked = 1000.0, 0
        self.peers = SimpleNamespace(alive=lambda: ["peer"])
        self.library, self.settled = SimpleNamespace(bytes_sent=0), False
        monkeypatch.setattr(node.time, "monotonic", lambda: self.now)

    def sync_now(self) -> None:
        """Do nothing: only later questions are counted."""

    def ask_everyone(self) -> None:
        self.asked += 1

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


def test_while_it_waits_it_asks_all_peers_once_a_second(monkeypatch: pytest.MonkeyPatch):
    waiting = Waiting(monkeypatch)
    Node.sync(waiting, 11.0, waiting)  # type: ignore[arg-type]
    assert 9 <= waiting.asked <= 10


def test_the_sync_verb_asks_all_peers_and_waits(monkeypatch: pytest.MonkeyPatch):
    done: list[Any] = []
    waiting, stop = Waiting(monkeypatch), threading.Event()
    waiting.sync_now = lambda: done.append("asked")  # type: ignore[method-assign]
    waiting.sync = lambda *given: done.append(given) or Node.sync(waiting, 0.0, stop)  # type: ignore
    monkeypatch.setattr(service, "node_status", lambda _: "how it stands")
    sync = service._verbs(waiting, stop, Lessons(()))["sync"]  # type: ignore[arg-type]
    assert sync(seconds=7.5) == "how it stands"
    assert done == [(7.5, stop), "asked"]
    with pytest.raises(AgentError, match="not a number"):
        sync(seconds="soon")


def test_too_many_images_in_one_request_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "IMAGES_AT_ONCE", 2)
    ask = service._verbs(SimpleNamespace(), threading.Event(), Lessons(()))["ask"]  # type: ignore[arg-type]
    with pytest.raises(AgentError, match="3 images at once, the limit is 2; ask about fewer"):
        ask(images=["a.jpg", "b.jpg", "c.jpg"])


def test_lessons_are_learned_once_in_order_and_a_bad_one_does_not_stop_the_rest(
    new_agent: Callable[..., Core], tiny_tasks: Path, tmp_path: Path
):
    agent = new_agent()
    (tmp_path / "empty").mkdir()
    lessons = Lessons([tiny_tasks / "dice", tmp_path / "empty", tiny_tasks / "latin"])
    lessons.learn_all(agent)
    assert lessons.to_learn == []
    assert [each["file"] for each in lessons.failed] == [str(tmp_path / "empty")]
    assert {module.card.task: module.card.version for module in agent.bank} == {"dice": 1, "latin": 1}


SERVES = """
import os, signal, sys, threading, time
from pathlib import Path
from skillmesh.core import Core
from skillmesh.numerics.process import keep_freed_memory, process_is_ours
from skillmesh.mesh import service
from skillmesh.common.config import MeshSettings

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

def work(node):
    process_is_ours()
    keep_freed_memory()  # as a network does
    before = megabytes()
    blocks = [bytearray(100_000) for _ in range(2_000)]
    del blocks[::2]
    small = [bytearray(600) for _ in range(2_000)]
    blocks.clear()
    kept = megabytes() - before
    service.HAND_BACK = 1.0
    deadline = time.monotonic() + 20
    while megabytes() - before > kept / 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    print(f"{kept:.0f} {megabytes() - before:.0f} {len(small)}", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

settings = MeshSettings(discovery_port=int(sys.argv[2]))
service.serve(Core(sys.argv[1]), settings, (), lambda node: threading.Thread(target=work, args=[node]).start())
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory a process has")
def test_a_node_returns_freed_memory_to_the_system_despite_fragmentation(
    new_agent: Callable[..., Core], settings: MeshSettings
):
    command = [sys.executable, "-c", SERVES, str(new_agent().home), str(settings.discovery_port)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    kept, stayed, _ = map(int, ran.stdout.split())
    assert kept > 100, "without the node's help the allocator keeps it"
    assert stayed < kept / 2


def test_an_unexpected_error_in_one_task_does_not_stop_the_others():
    class Agent:
        def learn(self, folder: str) -> Any:
            if folder == "odd":
                raise RuntimeError("a bug")
            if folder == "empty":
                raise DataError("it is empty")
            return SimpleNamespace(card=SimpleNamespace(task=folder)), None

    lessons = Lessons([Path("odd"), Path("empty"), Path("fine")])
    lessons.learn_all(cast(Core, Agent()))
    assert lessons.to_learn == []
    assert lessons.failed == [
        {"file": "odd", "reason": "unexpected RuntimeError: a bug"},
        {"file": "empty", "reason": "it is empty"},
    ]
