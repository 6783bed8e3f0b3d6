"""Real nodes for tests: `skillmesh serve` processes with their own homes, in network namespaces on request.

Faults are signals, links that go down and changed files; nothing of skillmesh is patched.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skillmesh.answering.answer import Answer
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.mesh.calling import NotRunningError, call
from skillmesh.mesh.status import status as status_of

SKILLMESH = [sys.executable, "-m", "skillmesh"]
PATIENCE = 60.0
"""Seconds to wait for something that should take a few: test machines are small and busy."""


def free_port() -> int:
    """Return a discovery port that no other mesh of this test run uses."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:] or 0)
    return 20_000 + 4_000 * worker + next(_ports) % 4_000


_ports = itertools.count(random.randrange(4_000))

_engines = itertools.cycle(("onnx", "torch"))
MIXED = os.environ.get("SKILLMESH_TEST_ENGINES") == "mixed"
"""Whether nodes run on ONNX Runtime and on PyTorch in turn, in every test of the mesh."""


def eventually(what: Callable[[], Any], seconds: float = PATIENCE, why: str = "", every: float = 0.1) -> Any:
    """Wait until `what` is true and return it; fail with its last value."""
    deadline = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {why or what}; last: {found!r}")
        time.sleep(every)


@dataclass
class Node:
    """One `skillmesh serve` process."""

    home: Path
    options: Sequence[str] = ()
    namespace: str | None = None
    under: Sequence[str] = ()
    """A command that runs the node, such as `env` or one with a wrong clock."""
    engine: str | None = None
    """`onnx` or `torch`; by default the one that fits."""
    process: subprocess.Popen[bytes] | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.home / "serve.log"
        self.engine = self.engine or (next(_engines) if MIXED else None)

    @property
    def name(self) -> str:
        return self.home.name

    def start(self, wait: bool = True) -> Node:
        prefix = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*prefix, *self.under, *SKILLMESH, "serve", "--verbose", "--home", str(self.home), *self.options],
                stdout=log,
                stderr=log,
                env=environment() | ({"SKILLMESH_ENGINE": self.engine} if self.engine else {}),
            )
        if wait:
            eventually(self.runs, why=f"{self.name} starts")
        return self

    def runs(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            pytest.fail(f"{self.name} ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
        try:
            call(self.home, "status", timeout=20)
        except NotRunningError:
            return False
        return True

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the process: cleanly, or with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def status(self) -> dict[str, Any]:
        """Return the output of `skillmesh status --json`."""
        return status_of(Core(self.home))

    def live(self) -> set[str]:
        """Return the tasks in the bank."""
        return {module.card.task for module in Core(self.home).bank}

    def root(self) -> str:
        return str(self.status()["root"])

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run another command on this home."""
        return skillmesh(*words, "--home", self.home, namespace=self.namespace)


def environment() -> dict[str, str]:
    """Return the environment, with one thread per process, since many nodes share few cores."""
    return os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def skillmesh(*words: object, namespace: str | None = None) -> subprocess.CompletedProcess[str]:
    prefix = ["ip", "netns", "exec", namespace] if namespace else []
    return subprocess.run(
        [*prefix, *SKILLMESH, *map(str, words)], capture_output=True, text=True, env=environment(), check=False
    )


class Mesh:
    """The nodes of one test, all stopped at its end; meshes of different tests never find each other."""

    def __init__(self, folder: Path, teachers: Sequence[Path]) -> None:
        self.folder = folder
        self.teachers = teachers
        self.port = free_port()
        self.nodes: list[Node] = []

    def home(self, teacher: int | None = None, name: str | None = None, **settings: Any) -> Path:
        """Return a new copy of a teacher's home (two tasks each), or with None of an agent that knows nothing.

        Settings are those of `mesh.json`; trust is open by default.
        """
        from skillmesh.store.home import create_home

        called = name or (f"teacher{teacher}" if teacher is not None else f"student{len(self.nodes)}")
        home = self.folder / called
        if teacher is not None:
            shutil.copytree(self.teachers[teacher], home)
        else:
            create_home(home, name=called)
        chosen = {"trust": "open", "discovery_port": self.port, "sync_seconds": 2.0} | settings
        MeshSettings.of(chosen).save(home)
        return home

    def node(
        self, teacher: int | None = None, *, name: str | None = None, namespace: str | None = None, **settings: Any
    ) -> Node:
        """Return a node that is not started yet."""
        node = Node(self.home(teacher, name, **settings), namespace=namespace)
        self.nodes.append(node)
        return node

    def serve(self, teacher: int | None = None, **settings: Any) -> Node:
        return self.node(teacher, **settings).start()

    def stop(self) -> None:
        for node in self.nodes:
            if node.process is not None:
                node.kill()

    def converged(self, nodes: Sequence[Node] | None = None, tasks: int | None = None) -> bool:
        """Return whether these nodes know the same notices and hold all modules."""
        found = [node.status() for node in nodes or self.nodes]
        same = len({status["root"] for status in found}) == 1
        return same and all(s["missing"] == 0 and (tasks is None or s["live"] == tasks) for s in found)


@contextmanager
def namespaces(count: int, prefix: str) -> Iterator[Switch]:
    """Yield hosts on one switch: namespaces with an address each, 10.77.0.1 and so on."""
    require_namespaces()
    switch = Switch(own_name(prefix), count)
    try:
        switch.build()
        yield switch
    finally:
        switch.remove()


def own_name(prefix: str) -> str:
    """Return a name for a namespace of this process, distinct from those of killed test runs."""
    return f"skm-{os.getpid()}-{prefix}"


def require_namespaces() -> None:
    """Skip the test if namespaces are impossible; remove those left by killed test runs."""
    try:
        tried = subprocess.run(["ip", "netns", "add", own_name("try")], capture_output=True, check=False)
        reason = tried.stderr.decode().strip() if tried.returncode else None
    except FileNotFoundError:
        reason = "there is no ip command"
    if reason is not None:
        pytest.skip(f"network namespaces cannot be made here: {reason}")
    subprocess.run(["ip", "netns", "del", own_name("try")], check=False)
    for path in Path("/run/netns").glob("skm-*-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


class Switch:
    """A bridge in its own namespace, with a cable to each host; cables can be cut and slowed down."""

    def __init__(self, name: str, count: int, subnet: str = "10.77.0") -> None:
        self.name = name
        self.hosts = [f"{name}h{i}" for i in range(count)]
        self.subnet = subnet
        self.ports = 0

    def build(self) -> None:
        ip("netns", "add", self.name)
        for bridge in ("whole", "apart"):
            ip("link", "add", "name", bridge, "type", "bridge", "forward_delay", "0", namespace=self.name)
            ip("link", "set", bridge, "up", namespace=self.name)
        for index, host in enumerate(self.hosts):
            ip("netns", "add", host)
            ip("link", "set", "lo", "up", namespace=host)
            self.cable(host, "eth0", self.address(index))
            ip("route", "add", "224.0.0.0/4", "dev", "eth0", namespace=host)

    def cable(self, host: str, interface: str, address: str) -> int:
        """Link an interface of a namespace to this switch; returns the number of the port."""
        port, self.ports = self.ports, self.ports + 1
        ip("link", "add", interface, "netns", host, "type", "veth", "peer", f"p{port}", "netns", self.name)
        ip("addr", "add", f"{address}/24", "brd", "+", "dev", interface, namespace=host)
        ip("link", "set", interface, "up", namespace=host)
        ip("link", "set", f"p{port}", "master", "whole", "up", namespace=self.name)
        return port

    def remove(self) -> None:
        for namespace in (*self.hosts, self.name):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)

    def address(self, index: int) -> str:
        return f"{self.subnet}.{index + 1}"

    def pull(self, *hosts: int) -> None:
        """Cut the cables of these hosts."""
        for index in hosts:
            ip("link", "set", f"p{index}", "down", namespace=self.name)

    def plug(self, *hosts: int) -> None:
        for index in hosts:
            ip("link", "set", f"p{index}", "up", namespace=self.name)

    def split(self, *hosts: int) -> None:
        """Separate these hosts from the rest; they stay linked to each other, and no interface goes down."""
        for index in hosts:
            ip("link", "set", f"p{index}", "master", "apart", namespace=self.name)

    def heal(self) -> None:
        for index in range(self.ports):
            ip("link", "set", f"p{index}", "master", "whole", namespace=self.name)

    def slow(self, host: int, kilobits: int) -> None:
        """Limit the sending rate of a host."""
        tc = shutil.which("tc", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"]))
        if tc is None:
            pytest.skip("lines cannot be made slow here: there is no tc command")
        queue = ["tbf", "rate", f"{kilobits}kbit", "burst", "16kb", "latency", "2s"]
        inside = ["ip", "netns", "exec", self.hosts[host]]
        subprocess.run([*inside, tc, "qdisc", "replace", "dev", "eth0", "root", *queue], check=True)

    def bytes_sent(self, host: int) -> int:
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        command = ["ip", "netns", "exec", self.hosts[host], "cat", path]
        return int(subprocess.run(command, capture_output=True, check=True).stdout)


def ip(*words: str, namespace: str | None = None) -> None:
    inside = ["-n", namespace] if namespace else []
    done = subprocess.run(["ip", *inside, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def files_of(home: Path) -> dict[str, bytes]:
    """Return the files of a bank; fail unless all of them are listed and valid."""
    folder = Core(home).bank.folder
    on_disk = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}
    bank = Core(home).bank  # opened after listing: a running node may have added files since
    assert bank.damaged == []
    assert on_disk.keys() <= {f"{module.id}.skill" for module in bank}
    return on_disk


def answers(node: Node, images: Sequence[Path], named: bool = False) -> list[dict[str, Any]]:
    """Return a running node's exact answers for images; with the teachers, if `named`."""
    found = call(node.home, "ask", timeout=None, images=[str(path) for path in images])["answers"]
    return json.loads(json.dumps(found if named else [Answer.from_dict(answer).shared() for answer in found]))


def same_answers(nodes: Sequence[Node], images: Sequence[Path]) -> bool:
    """Return whether nodes answer the same: bit-identical within an engine, but for rounding between engines."""
    found: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        given = answers(node, images)
        if json.dumps(found.setdefault(node.engine or "onnx", given)) != json.dumps(given):
            return False
    first, *others = found.values()
    return all(_nearly(one, other) for given in others for one, other in zip(first, given, strict=True))


def _nearly(one: dict[str, Any], other: dict[str, Any]) -> bool:
    (best, *_), (same, *_) = one["guesses"], other["guesses"]
    return (
        (one["unknown"], one["unsure"]) == (other["unknown"], other["unsure"])
        and (best["task"], best["label"]) == (same["task"], same["label"])
        and abs(best["confidence"] - same["confidence"]) <= 0.02
    )
