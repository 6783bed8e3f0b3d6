"""Nodes as separate processes; where any process will do, a small program replaces the node."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshes import eventually, free_port

from skillmesh.common.config import MeshSettings
from skillmesh.errors import AgentError
from skillmesh.mesh.calling import NotRunningError
from skillmesh.mesh.process import NodeProcess, stop_all
from skillmesh.store.home import create_home

READY = "ready"
OBEYS = f"import time; print({READY!r}, flush=True); time.sleep(60)"
IGNORES = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {OBEYS}"
PARENT = """
import sys, time
from pathlib import Path
from skillmesh.mesh.process import NodeProcess
node = NodeProcess(Path(sys.argv[1]))
node.start(under=[sys.executable, "-c", sys.argv[2]])
print(node.process.pid, flush=True)
time.sleep(60)
"""


class Nodes:
    """The nodes of one test, all killed at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[NodeProcess] = []

    def make(self) -> NodeProcess:
        home = self.folder / f"agent{len(self.all)}"
        home.mkdir()
        self.all.append(NodeProcess(home))
        return self.all[-1]

    def stand_in(self, program: str, until: str = READY) -> NodeProcess:
        node = self.make()
        node.start(under=[sys.executable, "-c", program])
        eventually(lambda: until in node.log.read_text(), why="the program runs", every=0.01)
        return node


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    for node in made.all:
        node.kill()


def code_of(process: subprocess.Popen[bytes] | None) -> int | None:
    assert process is not None
    return process.returncode


def test_a_process_that_ends_by_itself_is_reported_with_the_end_of_its_log(nodes: Nodes):
    node = nodes.stand_in("print('x' * 5000 + ' the disk is full'); raise SystemExit(3)", until="full")
    assert eventually(lambda: node.returncode) == 3
    with pytest.raises(AgentError, match=r"agent0 ended with exit status 3, .*: x{900,983} the disk is full$"):
        node.check()


def test_the_log_of_an_earlier_process_is_kept_but_not_reported(nodes: Nodes):
    node = nodes.stand_in(f"{OBEYS} # earlier")
    node.stop()
    node.start(under=[sys.executable, "-c", "raise SystemExit(4)"])
    assert eventually(lambda: node.returncode) == 4
    with pytest.raises(AgentError, match=r"ended with exit status 4, .*: .*serve\.log is empty$"):
        node.check()
    assert node.log.read_text().strip() == READY


def test_a_running_process_is_no_error_and_has_no_status_before_it_listens(nodes: Nodes):
    node = nodes.stand_in(OBEYS)
    node.check()
    assert node.returncode is None
    with pytest.raises(NotRunningError):
        node.status()


def test_a_process_that_was_never_started_can_be_stopped(nodes: Nodes):
    node = nodes.make()
    node.check()
    node.stop()
    node.kill()


def test_options_and_environment_variables_reach_the_process(nodes: Nodes):
    node = nodes.make()
    show = "import os, sys; print(*sys.argv[3:], os.environ['SKILLMESH_CACHE'])"
    node.start("--learn", "dice", variables={"SKILLMESH_CACHE": "here"}, under=[sys.executable, "-c", show])
    eventually(lambda: node.returncode is not None)
    assert node.last_words() == f"skillmesh --home {node.home} serve --learn dice here"


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(nodes: Nodes):
    node = nodes.stand_in(IGNORES)
    process, began = node.process, time.monotonic()
    node.stop(grace=0.5)
    assert 0.5 <= time.monotonic() - began < 5
    assert code_of(process) == -signal.SIGKILL
    assert node.process is None


def test_all_processes_are_stopped_within_one_grace_period(nodes: Nodes):
    obedient, *stubborn = nodes.stand_in(OBEYS), nodes.stand_in(IGNORES), nodes.stand_in(IGNORES)
    processes, began = [node.process for node in (obedient, *stubborn)], time.monotonic()
    stop_all([*stubborn, obedient], grace=1.0)
    assert time.monotonic() - began < 1.8
    assert [code_of(process) for process in processes] == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGKILL]


def test_kill_does_not_wait(nodes: Nodes):
    node = nodes.stand_in(OBEYS)
    process = node.process
    node.kill()
    assert code_of(process) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_process_ends_if_its_parent_is_killed(tmp_path: Path):
    command = [sys.executable, "-c", PARENT, str(tmp_path), IGNORES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = parent.stdout.readline().strip()
        eventually(lambda: READY in (tmp_path / "serve.log").read_text(), every=0.01)
        assert state(pid) in "RS"
        parent.kill()
    eventually(lambda: state(pid) in "ZX", seconds=10, why="the node ends")


def state(pid: str) -> str:
    """Return Linux's state letter of a process: X if it is gone, Z if its exit status was not read."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


@pytest.fixture
def real(tmp_path: Path) -> Iterator[NodeProcess]:
    home = tmp_path / "ada"
    create_home(home, name="ada")
    MeshSettings.of({"discovery_port": free_port()}).save(home)
    node = NodeProcess(home)
    yield node
    node.kill()


@pytest.mark.long
def test_a_node_that_cannot_start_is_reported_with_its_message(real: NodeProcess):
    (real.home / "mesh.json").write_text("broken")
    real.start()
    eventually(lambda: real.returncode is not None)
    with pytest.raises(
        AgentError, match=r"(?s)ada ended with exit status 1, .*\nskillmesh: [^\n]*mesh\.json is damaged"
    ):
        real.check()


@pytest.mark.long
def test_a_node_reports_its_status_and_stops_cleanly(real: NodeProcess):
    def status() -> dict[str, object] | None:
        real.check()
        try:
            return real.status()
        except NotRunningError:
            return None

    real.start()
    process = real.process
    assert eventually(status)["in_use"] == 0
    real.stop()
    assert code_of(process) == 0
    assert real.last_words().endswith("stopped")
