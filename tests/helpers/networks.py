"""Networks of several switches for the nodes of tests, and a stopwatch for how long the mesh takes to converge."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from meshes import Mesh, Node, Switch, eventually, ip, own_name, require_namespaces

from skillmesh.evaluation.provenance import provenance

TIMES = os.environ.get("SKILLMESH_TIMES")
"""A JSON file for the measured seconds, by event; `docs/appendix/mesh-measured.md` shows one."""
LONG = 180.0
"""Seconds to wait for lost links and reconnections: about twenty on an idle machine."""
PRIVATE = "192.168."
"""Addresses behind a NAT."""


@contextmanager
def stopwatch(event: str) -> Iterator[None]:
    """Print, and record for the docs, how long the mesh took to converge after an event."""
    began = time.monotonic()
    yield
    seconds = round(time.monotonic() - began, 1)
    print(f"\nconverged {seconds:5.1f} s after: {event}")
    if TIMES:
        with FileLock(f"{TIMES}.lock"):
            path = Path(TIMES)
            times = json.loads(path.read_text())["seconds"] if path.exists() else {}
            origin = provenance(f"SKILLMESH_TIMES={path.name} pytest tests/mesh/test_mesh_networks.py", [], 0)
            kept = {"seconds": times | {event: seconds}, "provenance": origin}
            path.write_text(json.dumps(kept, indent=1) + "\n")


def converge(mesh: Mesh, nodes: Sequence[Node], tasks: int, event: str) -> None:
    """Wait until these nodes know the same and hold all `tasks`; the time counts from here."""
    with stopwatch(event):
        eventually(lambda: mesh.converged(nodes, tasks), LONG, event)


def alone(*nodes: Node, peers: int = 0) -> None:
    """Wait until each of these nodes has noticed that only `peers` others are left."""
    for node in nodes:
        eventually(lambda node=node: node.status()["peers"] == peers, LONG, f"{node.name} is left with {peers}")


@contextmanager
def network(prefix: str, hosts: Mapping[str, Sequence[str]], answering: Sequence[str] = ()) -> Iterator[Network]:
    """Yield hosts by name with their addresses, on one switch per subnet."""
    require_namespaces()
    built = Network(own_name(prefix), hosts, answering)
    try:
        built.build()
        yield built
    finally:
        built.remove()


class Network:
    """Namespaces with any addresses; those of one /24 share a switch.

    `lake:10.77.0.1` is on another switch than `10.77.0.1`: sites may use the same addresses. Addresses 192.168.…
    are behind a router that lets no connection in. The system masquerades if it can; otherwise only the hosts in
    `answering` have a route back.
    """

    def __init__(self, name: str, hosts: Mapping[str, Sequence[str]], answering: Sequence[str]) -> None:
        self.name = name
        self.hosts = hosts
        self.answering = answering
        self.switches: dict[str, Switch] = {}

    def namespace(self, host: str) -> str:
        return f"{self.name}{host}"

    def build(self) -> None:
        for host, addresses in self.hosts.items():
            self._add_host(host, addresses)
        for subnet in [subnet for subnet in self.switches if subnet.startswith(PRIVATE)]:
            self._add_router(subnet)

    def remove(self) -> None:
        for host in (*self.hosts, "nat"):
            subprocess.run(["ip", "netns", "del", self.namespace(host)], capture_output=True, check=False)
        for switch in self.switches.values():
            switch.remove()

    def cut(self, subnet: str) -> None:
        """Cut every cable of a switch."""
        self.switches[subnet].pull(*range(self.switches[subnet].ports))

    def restore(self, subnet: str) -> None:
        self.switches[subnet].plug(*range(self.switches[subnet].ports))

    def _add_host(self, host: str, addresses: Sequence[str]) -> None:
        namespace = self.namespace(host)
        ip("netns", "add", namespace)
        ip("link", "set", "lo", "up", namespace=namespace)
        for index, address in enumerate(addresses):
            self._switch(_subnet(address)).cable(namespace, f"eth{index}", address.rpartition(":")[2])
        if addresses:
            ip("route", "add", "224.0.0.0/4", "dev", "eth0", namespace=namespace)

    def _switch(self, subnet: str) -> Switch:
        if subnet not in self.switches:
            self.switches[subnet] = Switch(f"{self.name}s{len(self.switches)}", 0, subnet)
            self.switches[subnet].build()
        return self.switches[subnet]

    def _add_router(self, inside: str) -> None:
        outside = next(subnet for subnet in self.switches if not subnet.startswith(PRIVATE))
        router = self.namespace("nat")
        self._add_host("nat", (f"{inside}.254", f"{outside}.254"))
        forward = ["ip", "netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
        subprocess.run(forward, check=True)
        for host, addresses in self.hosts.items():
            if any(_subnet(address) == inside for address in addresses):
                ip("route", "add", "default", "via", f"{inside}.254", namespace=self.namespace(host))
        if not _masquerade(router, "eth1"):
            for host in self.answering:
                way = ("route", "add", f"{inside}.0/24", "via", f"{outside}.254")
                ip(*way, namespace=self.namespace(host))


def _subnet(address: str) -> str:
    return address.rpartition(".")[0]


def _masquerade(router: str, interface: str) -> bool:
    if not shutil.which("iptables"):
        return False
    rule = ["iptables", "-t", "nat", "-A", "POSTROUTING", "-o", interface, "-j", "MASQUERADE"]
    done = subprocess.run(["ip", "netns", "exec", router, *rule], capture_output=True, check=False)
    return done.returncode == 0
