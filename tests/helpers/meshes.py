"""Real nodes for tests: `skillmesh serve` processes with homes of their own, in network namespaces where asked.

Faults are signals, links that go down and files that are changed; nothing of skillmesh is patched.
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
"""Seconds for what should take some: test machines are small and busy."""


def free_port() -> int:
    """A port for discovery that no other mesh of this test run uses."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:] or 0)
    return 20_000 + 4_000 * worker + next(_ports) % 4_000


_ports = itertools.count(random.randrange(4_000))


def eventually(what: Callable[[], Any], seconds: float = PATIENCE, why: str = "", every: float = 0.1) -> Any:
    """Wait until `what` is true and return it; fail with what it was last."""
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
    """A command that runs the node, as `env` does or a wrong clock."""
    process: subprocess.Popen[bytes] | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.home / "serve.log"

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
                env=environment(),
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
        """End the process: in order, or with SIGKILL at once."""
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
        """What `skillmesh status --json` says."""
        return status_of(Core(self.home))

    def live(self) -> set[str]:
        """The tasks that lie in the bank."""
        return {module.card.task for module in Core(self.home).bank}

    def root(self) -> str:
        return str(self.status()["root"])

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run another command on this home."""
        return skillmesh(*words, "--home", self.home, namespace=self.namespace)


def environment() -> dict[str, str]:
    """One thread per process: many nodes share few cores."""
    return os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def skillmesh(*words: object, namespace: str | None = None) -> subprocess.CompletedProcess[str]:
    prefix = ["ip", "netns", "exec", namespace] if namespace else []
    return subprocess.run(
        [*prefix, *SKILLMESH, *map(str, words)], capture_output=True, text=True, env=environment(), check=False
    )


class Mesh:
    """The nodes of one test, all stopped at its end; meshes of different tests never meet."""

    def __init__(self, folder: Path, teachers: Sequence[Path]) -> None:
        self.folder = folder
        self.teachers = teachers
        self.port = free_port()
        self.nodes: list[Node] = []

    def home(self, teacher: int | None = None, name: str | None = None, **settings: Any) -> Path:
        """A fresh copy of a teacher's home (two tasks each), or with None that of an agent which knows nothing.

        Settings are those of `mesh.json`; trust is open unless they say otherwise.
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
        """A node that is not started yet."""
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
        """Whether these nodes know the same and hold all of it."""
        found = [node.status() for node in nodes or self.nodes]
        same = len({status["root"] for status in found}) == 1
        return same and all(s["missing"] == 0 and (tasks is None or s["live"] == tasks) for s in found)


@contextmanager
def namespaces(count: int, prefix: str) -> Iterator[Switch]:
    """Hosts on one switch: namespaces with an address each, 10.77.0.1 and so on."""
    require_namespaces()
    switch = Switch(own_name(prefix), count)
    try:
        switch.build()
        yield switch
    finally:
        switch.remove()


def own_name(prefix: str) -> str:
    """How this process calls its namespaces, so that those of killed test runs can be told from it."""
    return f"skm-{os.getpid()}-{prefix}"


def require_namespaces() -> None:
    """Skip where there can be none; remove those that killed test runs have left."""
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
    """A bridge in a namespace of its own, with a cable to each host; cables can be pulled and made slow."""

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
        """Part these hosts from the rest; among themselves they stay linked, and no cable looks pulled."""
        for index in hosts:
            ip("link", "set", f"p{index}", "master", "apart", namespace=self.name)

    def heal(self) -> None:
        for index in range(self.ports):
            ip("link", "set", f"p{index}", "master", "whole", namespace=self.name)

    def slow(self, host: int, kilobits: int) -> None:
        """Let a host send no faster than this."""
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
    """The files of a bank that is whole: all that lies there is listed and valid."""
    folder = Core(home).bank.folder
    on_disk = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}
    bank = Core(home).bank  # opened after the look: a running node may have added some since
    assert bank.damaged == []
    assert on_disk.keys() <= {f"{module.id}.skill" for module in bank}
    return on_disk


def answers(node: Node, images: Sequence[Path], named: bool = False) -> list[dict[str, Any]]:
    """What a running node says of images, bit by bit; who taught it, too, where that is asked for."""
    found = call(node.home, "ask", timeout=None, images=[str(path) for path in images])["answers"]
    return json.loads(json.dumps(found if named else [Answer.from_dict(answer).shared() for answer in found]))
