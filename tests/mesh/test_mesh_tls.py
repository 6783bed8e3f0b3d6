"""Mutual TLS between real nodes: an agent without a certificate of the mesh's authority gets no link.

Single handshakes are tested in test_certs.py. Here the files come from `skillmesh certs`, and the tests check
whether modules are transferred.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from meshes import SKILLMESH, Mesh, Node, environment, eventually, skillmesh
from networks import converge

pytestmark = pytest.mark.long

WATCHED = 6.0
"""Seconds for which a refused node is watched: it tries every 0.5 to 4 s."""


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the authorities of two meshes, ours and a foreign one."""
    folder = tmp_path_factory.mktemp("authorities")
    for name in ("ours", "foreign"):
        done = skillmesh("certs", "init", folder / name)
        assert done.returncode == 0, done.stderr
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def certify(node: Node, authority: Path) -> None:
    """Issue a certificate into the home and turn TLS on, as a user would."""
    done = node.run("certs", "issue", authority)
    assert done.returncode == 0, done.stderr


def secure(mesh: Mesh, teacher: int | None, authority: Path, name: str, **settings: Any) -> Node:
    node = mesh.node(teacher, name=name, **settings)
    certify(node, authority)
    return node


def fixed(port: int, *connect: int) -> dict[str, Any]:
    places = [f"127.0.0.1:{other}" for other in connect]
    return {"network": "fixed", "listen": [f"127.0.0.1:{port}"], "connect": places}


def left_out(intruders: list[Node], members: list[Node]) -> None:
    """Assert for a while that nothing is transferred between the two."""
    before = [(node.root(), node.live()) for node in (*intruders, *members)]
    until = time.monotonic() + WATCHED
    while time.monotonic() < until:
        for node in intruders:
            status = node.status()
            assert (status["peers"], status["bytes_fetched"]) == (0, 0), node.name
        time.sleep(0.5)
    assert [(node.root(), node.live()) for node in (*intruders, *members)] == before
    strangers = {node.status()["key"] for node in intruders}
    for node in members:
        assert not strangers & {peer["agent"] for peer in peers(node)}


def peers(node: Node) -> list[dict[str, Any]]:
    from skillmesh.mesh.calling import call

    found: list[dict[str, Any]] = call(node.home, "peers")
    return found


def test_only_nodes_with_a_certificate_of_the_mesh_share_modules(mesh: Mesh, authorities: Path) -> None:
    """Three refused nodes become members in the end: only their certificates had kept them out."""
    ours, port = authorities / "ours", free_port()
    members = [
        secure(mesh, 0, ours, "seed", **fixed(port)),
        secure(mesh, 1, ours, "friend", **fixed(free_port(), port)),
    ]
    plain = mesh.node(2, name="plain", **fixed(free_port(), port))
    foreign = secure(mesh, 3, authorities / "foreign", "foreign", **fixed(free_port(), port))
    # It trusts both authorities, as an attacker would, and so accepts the seed: only the seed can refuse.
    bundle = foreign.home / "tls" / "ca.pem"
    bundle.write_bytes(bundle.read_bytes() + (ours / "ca.pem").read_bytes())
    for node in (*members, plain, foreign):
        node.start(wait=False)
    converge(mesh, members, 4, "two agents with certificates start with two tasks each")
    for node in (plain, foreign):
        eventually(node.runs)
    no_certificate_is_refused(ours, port)
    left_out([plain, foreign], members)

    for node in (plain, foreign):
        node.stop()
        shutil.rmtree(node.home / "tls", ignore_errors=True)
        certify(node, ours)
        node.start(wait=False)
    converge(mesh, [*members, plain, foreign], 8, "two that were refused come back with certificates")


def no_certificate_is_refused(authority: Path, port: int) -> None:
    """Assert that a node refuses a TLS client that trusts its authority and has no certificate."""
    bare = ssl.create_default_context(cafile=str(authority / "ca.pem"))
    bare.check_hostname = False
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as line,
        pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"),
        bare.wrap_socket(line) as secured,
    ):
        secured.recv(1)


@pytest.mark.parametrize("lost", ["agent.pem", "agent.key", "ca.pem"])
def test_a_node_without_its_certificate_does_not_continue_unencrypted(
    mesh: Mesh, authorities: Path, lost: str
) -> None:
    node = secure(mesh, None, authorities / "ours", "careless")
    (node.home / "tls" / lost).unlink()
    done = node.run("serve")
    assert done.returncode == 1
    assert lost in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_nodes_discovered_by_multicast_share_with_their_own_mesh_only(mesh: Mesh, authorities: Path) -> None:
    members = [secure(mesh, teacher, authorities / "ours", f"ours{teacher}") for teacher in (0, 1)]
    foreign = [secure(mesh, teacher, authorities / "foreign", f"foreign{teacher}") for teacher in (2, 3)]
    plain = [mesh.node(teacher, name=f"plain{teacher}") for teacher in (4, 5)]
    for node in mesh.nodes:
        node.start(wait=False)
    for group in (members, foreign, plain):
        eventually(lambda group=group: mesh.converged(group, 4), why=group[0].name)
    time.sleep(WATCHED)
    for group in (members, foreign, plain):
        assert mesh.converged(group, 4)
        assert all(node.status()["peers"] == 1 for node in group)


@contextmanager
def gateway(mesh: Mesh, files: Path, port: int) -> Iterator[None]:
    command = [*SKILLMESH, "gateway", "--listen", f"127.0.0.1:{port}", "--tls", str(files)]
    with (mesh.folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.slow
def test_a_gateway_with_a_certificate_serves_only_clients_of_its_mesh(mesh: Mesh, authorities: Path) -> None:
    ours, port = authorities / "ours", free_port()
    client = {"network": "client", "connect": [f"127.0.0.1:{port}"]}
    members = [secure(mesh, teacher, ours, f"client{teacher}", **client) for teacher in (0, 1)]
    intruders = [
        secure(mesh, 2, authorities / "foreign", "foreign", **client),
        mesh.node(3, name="plain", **client),
    ]
    done = members[0].run("certs", "issue", ours, "--out", mesh.folder / "gateway-tls")
    assert done.returncode == 0, done.stderr
    with gateway(mesh, mesh.folder / "gateway-tls", port):
        for node in mesh.nodes:
            node.start(wait=False)
        converge(mesh, members, 4, "two clients of a gateway with certificates start with two tasks each")
        for node in intruders:
            eventually(node.runs)
        left_out(intruders, members)
