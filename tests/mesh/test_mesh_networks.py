"""Nodes on several hosts whose networks fail and recover: every live agent ends up knowing the same.

The hosts are network namespaces with cables between them; each fault is one of the network or of a process. The
time of every convergence is printed (`pytest -s`); SKILLMESH_TIMES names a file that records it.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from meshes import SKILLMESH, Mesh, Node, Switch, environment, eventually, ip, namespaces
from networks import LONG, Network, alone, converge, network, stopwatch

from skillmesh.mesh.calling import call

pytestmark = pytest.mark.long

FIXED_PORT = 7447


@pytest.fixture
def switch() -> Iterator[Switch]:
    """Five hosts on one switch."""
    with namespaces(5, "sk") as made:
        yield made


def on(
    mesh: Mesh, switch: Switch, host: int, teacher: int | None = None, network: str = "lan", **more: object
) -> Node:
    """Return a node on a host of the switch, not started yet."""
    return mesh.node(teacher, name=f"host{host}", namespace=switch.hosts[host], network=network, **more)


def learn(node: Node, task: Path) -> None:
    """Let a node's agent learn a new task, by a command beside it."""
    done = node.run("learn", task, "--name", f"{task.name} of {node.name}")
    assert done.returncode == 0, done.stderr


# one lan


def test_a_split_lan_converges_after_it_heals(mesh: Mesh, switch: Switch, tiny_tasks: Path) -> None:
    nodes = [on(mesh, switch, host, teacher).start(wait=False) for host, teacher in enumerate((0, None, 1, None))]
    left, right = nodes[:2], nodes[2:]
    converge(mesh, nodes, 4, "four agents of a lan start, two of them with two tasks each")

    switch.split(2, 3)
    learn(left[0], tiny_tasks / "snowflakes")
    learn(right[0], tiny_tasks / "greek")
    eventually(lambda: mesh.converged(left, 5) and mesh.converged(right, 5), LONG)
    alone(*nodes, peers=1)
    assert left[0].root() != right[0].root()

    switch.heal()
    converge(mesh, nodes, 6, "a lan split in two and two agents heals; each side learned a task meanwhile")


def test_withdrawals_reach_every_agent_and_forgotten_tasks_stay_forgotten(mesh: Mesh, switch: Switch) -> None:
    nodes = [on(mesh, switch, host, teacher=host).start(wait=False) for host in range(3)]
    converge(mesh, nodes, 6, "three agents of a lan start with two tasks each")
    withdrawn, forgotten = sorted(own(mesh, 0))[0], sorted(own(mesh, 1))[0]

    assert nodes[2].run("forget", forgotten).returncode == 0
    assert nodes[0].run("withdraw", withdrawn, "--reason", "mislabelled").returncode == 0
    with stopwatch("a task is withdrawn"):
        eventually(lambda: all(withdrawn not in node.live() for node in nodes), LONG)

    three_rounds(*nodes)
    assert [len(node.live()) for node in nodes] == [5, 5, 4]
    assert forgotten not in nodes[2].live()

    late = on(mesh, switch, 3).start(wait=False)
    converge(mesh, [*nodes[:2], late], 5, "a late agent joins three that hold five tasks")
    assert late.root() == nodes[2].root()
    assert late.status()["withdrawn"] == 1
    assert late.live() == set().union(*(own(mesh, t) for t in range(3))) - {withdrawn}
    three_rounds(*nodes, late)
    assert forgotten not in nodes[2].live()


def three_rounds(*nodes: Node) -> None:
    """Let every node ask every other three times, as `skillmesh sync` does beside a node."""
    for _ in range(3):
        for node in nodes:
            assert call(node.home, "sync", seconds=LONG, timeout=2 * LONG)["settled"]


def own(mesh: Mesh, teacher: int) -> set[str]:
    """Return the tasks of a teacher."""
    return Node(mesh.teachers[teacher]).live()


@pytest.mark.slow
def test_an_agent_started_without_a_network_joins_when_there_is_one(mesh: Mesh, switch: Switch) -> None:
    ip("addr", "flush", "dev", "eth0", namespace=switch.hosts[0])
    early = on(mesh, switch, 0, teacher=0).start()
    other = on(mesh, switch, 1, teacher=1).start()
    assert (early.status()["peers"], early.status()["trouble"]) == (0, None)

    ip("addr", "add", f"{switch.address(0)}/24", "brd", "+", "dev", "eth0", namespace=switch.hosts[0])
    ip("route", "replace", "224.0.0.0/4", "dev", "eth0", namespace=switch.hosts[0])
    converge(mesh, [early, other], 4, "an agent of a lan gets its first address after it was started")

    ip("addr", "flush", "dev", "eth0", namespace=switch.hosts[0])
    ip("addr", "add", "10.77.0.99/24", "brd", "+", "dev", "eth0", namespace=switch.hosts[0])
    ip("route", "replace", "224.0.0.0/4", "dev", "eth0", namespace=switch.hosts[0])
    eventually(lambda: "10.77.0.99" in str(early.status()["listening"]), LONG)
    third = on(mesh, switch, 2, teacher=2).start(wait=False)
    converge(mesh, [early, other, third], 6, "an agent of a lan gets another address")


@pytest.mark.slow
def test_a_lan_converges_after_its_cables_were_pulled_one_by_one(
    mesh: Mesh, switch: Switch, tiny_tasks: Path
) -> None:
    nodes = [on(mesh, switch, host, teacher=host).start(wait=False) for host in range(3)]
    converge(mesh, nodes, 6, "three agents of a lan start with two tasks each")
    switch.pull(0, 1, 2)
    alone(*nodes)
    for node, task in zip(nodes, ("snowflakes", "greek", "latin"), strict=True):
        learn(node, tiny_tasks / task)
    switch.plug(0, 1, 2)
    converge(mesh, nodes, 9, "all cables of a lan are plugged in again; each of three agents learned a task alone")


# fixed peers


def fixed(mesh: Mesh, switch: Switch, host: int, teacher: int | None = None) -> Node:
    """Return a node that connects to host 0 only."""
    listen = [f"{switch.address(host)}:{FIXED_PORT}"]
    connect = [f"{switch.address(0)}:{FIXED_PORT}"] if host else []
    return on(mesh, switch, host, teacher, network="fixed", listen=listen, connect=connect)


@pytest.mark.slow
def test_agents_survive_the_permanent_loss_of_their_seed(mesh: Mesh, switch: Switch, tiny_tasks: Path) -> None:
    """Three agents that know each other through the seed survive its loss, a cut between them, and a restart."""
    seed, *others = [fixed(mesh, switch, host, teacher=host).start(wait=False) for host in range(4)]
    converge(mesh, [seed, *others], 8, "a seed and three fixed peers start with two tasks each")

    seed.kill()
    switch.pull(0)
    alone(*others, peers=2)
    learn(others[0], tiny_tasks / "snowflakes")
    converge(mesh, others, 9, "a task is learned after the seed has gone for good")

    switch.pull(1)
    alone(others[0])
    alone(*others[1:], peers=1)
    learn(others[0], tiny_tasks / "greek")
    learn(others[1], tiny_tasks / "latin")
    switch.plug(1)
    converge(mesh, others, 11, "with the seed gone, one of three fixed peers is cut off, learns, and comes back")

    others[2].stop(signal.SIGKILL)
    learn(others[0], tiny_tasks / "dice")
    alone(*others[:2], peers=1)
    others[2].start(wait=False)
    converge(mesh, others, 12, "with the seed gone, a killed fixed peer is started again")


# sites


class Gateway:
    """A `skillmesh gateway` process in a namespace."""

    def __init__(self, net: Network, host: str, log: Path, *options: str) -> None:
        prefix = ["ip", "netns", "exec", net.namespace(host)]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*prefix, *SKILLMESH, "gateway", *options], stdout=out, stderr=out, env=environment()
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


@contextmanager
def sites(mesh: Mesh) -> Iterator[tuple[Network, list[Gateway]]]:
    """Two LANs that use the same addresses, connected only through their gateways."""
    hosts = {
        "hill": ("10.77.0.1", "10.79.0.1"),
        "lake": ("lake:10.77.0.1", "10.79.0.2"),
        "ann": ("10.77.0.2",),
        "bob": ("10.77.0.3",),
        "cem": ("lake:10.77.0.2",),
        "dia": ("lake:10.77.0.3",),
    }
    with network("st", hosts) as net:
        gateways = [
            Gateway(net, "hill", mesh.folder / "hill.log"),
            Gateway(net, "lake", mesh.folder / "lake.log", "--connect", "10.79.0.1:7447"),
        ]
        try:
            yield net, gateways
        finally:
            for gateway in gateways:
                gateway.kill()


@pytest.mark.slow
def test_two_sites_converge_when_their_link_is_restored(mesh: Mesh, tiny_tasks: Path) -> None:
    with sites(mesh) as (net, gateways):
        nodes = [
            mesh.node(teacher, name=host, namespace=net.namespace(host), network="lan", discovery_port=7446).start(
                wait=False
            )
            for teacher, host in enumerate(("ann", "bob", "cem", "dia"))
        ]
        ann, bob, cem, dia = nodes
        converge(mesh, nodes, 8, "two sites of two agents start, through gateways")

        net.cut("10.79.0")
        alone(*nodes, peers=1)
        learn(ann, tiny_tasks / "snowflakes")
        learn(cem, tiny_tasks / "greek")
        eventually(lambda: mesh.converged([ann, bob], 9) and mesh.converged([cem, dia], 9), LONG)
        assert ann.root() != cem.root()

        net.restore("10.79.0")
        converge(mesh, nodes, 10, "the link between two sites is back; each learned a task meanwhile")

        gateways[0].kill()
        alone(*nodes, peers=1)
        learn(dia, tiny_tasks / "latin")
        gateways[0] = Gateway(net, "hill", mesh.folder / "hill.log")
        converge(mesh, nodes, 11, "a killed gateway of a site is started again")


@pytest.mark.slow
def test_a_client_behind_a_nat_waits_for_its_gateway_and_reconnects(mesh: Mesh, tiny_tasks: Path) -> None:
    hosts = {"gate": ("10.77.0.1",), "ann": ("10.77.0.2",), "bob": ("192.168.1.20",)}
    with network("ct", hosts, answering=("gate",)) as net:
        ann = mesh.node(0, name="ann", namespace=net.namespace("ann"), network="lan", discovery_port=7446)
        connect = ["10.77.0.1:7447"]
        bob = mesh.node(1, name="bob", namespace=net.namespace("bob"), network="client", connect=connect)
        for node in (ann, bob):
            node.start()
        assert "no gateway answers" in bob.status()["trouble"]

        gateway = Gateway(net, "gate", mesh.folder / "gate.log")
        try:
            converge(mesh, [ann, bob], 4, "the gateway of a client that waits is started")
            assert bob.status()["trouble"] is None
            assert bob.status()["listening"] == []

            gateway.kill()
            alone(ann, bob)
            learn(ann, tiny_tasks / "snowflakes")
            learn(bob, tiny_tasks / "dice")
            gateway = Gateway(net, "gate", mesh.folder / "gate.log")
            converge(mesh, [ann, bob], 6, "the killed gateway of a client is started again")
        finally:
            gateway.kill()
