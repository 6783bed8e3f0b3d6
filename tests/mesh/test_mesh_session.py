"""Settings of the mesh, and sessions that connect: on one machine, at fixed addresses, through a gateway."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zenoh

from skillmesh.common.config import MESH_FILE, MeshSettings, TlsFiles, endpoint
from skillmesh.errors import AgentError, MeshError
from skillmesh.mesh import session as session_module
from skillmesh.mesh.session import (
    GatewayAwayError,
    addresses,
    close_session,
    introduce,
    locators,
    open_router,
    open_session,
)

pytestmark = pytest.mark.long


@contextmanager
def joined(settings: MeshSettings) -> Iterator[zenoh.Session]:
    session = open_session(settings, Path())
    try:
        yield session
    finally:
        close_session(session)


def until(condition: Callable[[], Any], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def ask(session: zenoh.Session, key: str) -> list[bytes]:
    return [reply.ok.payload.to_bytes() for reply in session.get(key, timeout=1.0) if reply.ok]


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings(**given: Any) -> MeshSettings:
    return MeshSettings.of(given)


def fixed(*connect: str) -> MeshSettings:
    return settings(network="fixed", listen=["127.0.0.1:0"], connect=connect)


# settings


def test_default_limits_are_those_of_the_docs() -> None:
    limits = {name: value for name, value in settings() if name.startswith(("quota", "max", "modules"))}
    assert limits == {
        "quota_bytes": 10**9,
        "max_module_bytes": 8 * 10**6,
        "modules_per_teacher": 1000,
        "modules_per_hour": 1200,
    }


def test_settings_are_the_defaults_until_they_are_saved(tmp_path: Path) -> None:
    assert MeshSettings.load(tmp_path) == settings()
    chosen = settings(network="fixed", connect=["a.example:7447"], interests=["birds*", "tag:field"])
    chosen.save(tmp_path)
    assert MeshSettings.load(tmp_path) == chosen
    assert [p.name for p in tmp_path.iterdir()] == [MESH_FILE]


@pytest.mark.parametrize("content", ["{", '{"network": "moon"}', '{"colour": "red"}', '{"listen": ["x"]}'])
def test_damaged_settings_are_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / MESH_FILE).write_text(content)
    with pytest.raises(AgentError, match=r"mesh\.json is damaged"):
        MeshSettings.load(tmp_path)


def test_settings_that_are_no_text_are_reported(tmp_path: Path) -> None:
    (tmp_path / MESH_FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(AgentError, match="cannot be read"):
        MeshSettings.load(tmp_path)


def test_settings_that_cannot_be_written_are_reported(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="cannot write"):
        settings().save(tmp_path / "absent")


@pytest.mark.parametrize(
    ("given", "secure", "expected"),
    [
        ("host.example:7447", False, "tcp/host.example:7447"),
        ("tcp/192.0.2.7:1", False, "tcp/192.0.2.7:1"),
        ("[2001:db8::1]:7447", False, "tcp/[2001:db8::1]:7447"),
        ("host:7447", True, "tls/host:7447"),
        ("tcp/host:7447", True, "tls/host:7447"),
        ("tls/host:7447", True, "tls/host:7447"),
    ],
)
def test_endpoints_are_normalised(given: str, secure: bool, expected: str) -> None:
    assert endpoint(given, secure=secure) == expected


@pytest.mark.parametrize(
    "bad",
    ["", "host", "host:", ":7447", "udp/host:1", "host:70000", "host:0", "tcp/a:1#iface=x", "a b:1", "tls/a:1", 7],
)
def test_invalid_endpoints_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"expected|TLS"):
        endpoint(bad)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"network": "client"}, "needs a gateway"),
        ({"network": "client", "connect": ["a:1"], "listen": ["b:2"]}, "does not listen"),
        ({"connect": ["192.0.2.7:7447"]}, "stays on this machine"),
        ({"interface": "eth0"}, "uses no interface"),
        ({"network": "moon"}, "the setting network is 'moon'"),
        ({"sync_seconds": 0}, "the setting sync_seconds is 0"),
        ({"colour": "red"}, "the setting colour"),
    ],
)
def test_contradictory_settings_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentError, match=message):
        MeshSettings.of(given)


def test_settings_can_be_changed_for_one_run_and_tls_changes_the_endpoints() -> None:
    plain = settings(network="fixed", connect=["host:7447"])
    files = TlsFiles(ca=Path("ca.pem"), certificate=Path("a.pem"), key=Path("a.key"))
    assert plain.with_(tls=files).connect == ("tls/host:7447",)
    assert plain.connect == ("tcp/host:7447",)
    with pytest.raises(AgentError, match="the setting network"):
        plain.with_(network="moon")


def test_tls_files_are_relative_to_the_home(tmp_path: Path) -> None:
    files = TlsFiles(ca=Path("tls/ca.pem"), certificate=Path("/etc/a.pem"), key=Path("a.key")).beside(tmp_path)
    assert (files.ca, files.certificate) == (tmp_path.resolve() / "tls/ca.pem", Path("/etc/a.pem"))


# sessions


def test_agents_on_one_machine_find_and_query_each_other() -> None:
    here = settings(discovery_port=free_port(socket.SOCK_DGRAM))
    with joined(here) as one, joined(here) as other:
        queryable = one.declare_queryable("t/q", lambda query: query.reply("t/q", b"yes"))
        assert until(lambda: ask(other, "t/q") == [b"yes"])
        assert all(place.startswith("tcp/127.0.0.1:") for place in locators(one))
        queryable.undeclare()


def test_agents_with_different_discovery_ports_do_not_find_each_other() -> None:
    ports = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_DGRAM)
    with joined(settings(discovery_port=ports[0])) as one, joined(settings(discovery_port=ports[1])) as other:
        assert not until(lambda: one.info.peers_zid() or other.info.peers_zid(), 1.5)


def test_an_endpoint_that_answers_later_is_still_tried() -> None:
    place = f"127.0.0.1:{free_port()}"
    with joined(fixed(place)) as early:
        time.sleep(0.3)
        with joined(settings(network="fixed", listen=[place])):
            assert until(early.info.peers_zid)


def test_peers_without_a_common_seed_are_introduced_without_reopening_the_session() -> None:
    with joined(fixed()) as one, joined(fixed()) as other:
        assert not one.info.peers_zid()
        assert introduce(one, fixed(), Path(), locators(other)) == 1
        assert until(lambda: [str(zid) for zid in one.info.peers_zid()] == [str(other.zid())])


def test_invalid_remembered_endpoints_are_skipped() -> None:
    with joined(fixed()) as one, joined(fixed()) as other:
        assert introduce(other, fixed(), Path(), ["nonsense", "tls/127.0.0.1:1"]) == 0
        assert introduce(other, fixed(), Path(), ["nonsense", *locators(one)]) == 1
        assert until(other.info.peers_zid)


def test_zenohs_admin_space_does_not_answer_other_agents() -> None:
    """The admin space answers under a lock: queries while agents come and go stop all links (zenoh's PR 2619)."""
    place = f"127.0.0.1:{free_port()}"
    gateway = open_router([place], discovery_port=None)
    with joined(fixed(place)) as one, joined(fixed(place, *locators(one))) as other:
        assert until(other.info.peers_zid)
        assert until(other.info.routers_zid)
        told = [str(reply.ok.key_expr) for reply in other.get("@/**", timeout=5.0) if reply.ok is not None]
        assert all(key.startswith(f"@/{other.zid()}/") for key in told), "it may tell itself"
    close_session(gateway)


def test_another_port_is_chosen_if_the_first_is_taken_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free, first = session_module._exactly, f"tcp/127.0.0.1:{taken.getsockname()[1]}"
        chosen = [first, first]
        monkeypatch.setattr(session_module, "_exactly", lambda place: chosen.pop() if chosen else free(place))
        with joined(fixed()) as one:
            assert not chosen
            assert len(locators(one)) == 1
            assert first not in locators(one)
        with pytest.raises(MeshError, match="Address already in use"), joined(settings(listen=[first])):
            pass


@pytest.mark.parametrize(
    ("listens", "reached"),
    [
        ("127.0.0.1", {"tcp/127.0.0.1"}),
        ("localhost", {"tcp/127.0.0.1"}),
        ("0.0.0.0", {f"tcp/{address}" for address in addresses() or ("127.0.0.1",)}),
    ],
)
def test_locators_are_addresses_at_which_a_session_is_reachable(listens: str, reached: set[str]) -> None:
    with joined(settings(network="fixed", listen=[f"{listens}:0"])) as one:
        assert {place.rpartition(":")[0] for place in locators(one)} == reached
        for place in locators(one):
            with joined(fixed(place)) as other:
                assert until(other.info.peers_zid), place
    assert locators(one) == ()


def test_a_host_name_is_resolved_once_so_that_the_locator_is_the_listening_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a name has several addresses, a second lookup could return one on which the session does not listen."""
    real, asked = socket.getaddrinfo, []

    def addresses_of(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "two.example":
            return real(host, *args, **kwargs)
        asked.append(host)
        return [
            *real("::1", *args, **kwargs),
            *real("127.0.0.1", *args, **kwargs),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", addresses_of)
    with joined(settings(network="fixed", listen=["two.example:0"])) as one:
        (place,) = locators(one)
        assert place.startswith("tcp/[::1]:")
        with joined(fixed(place)) as other:
            assert until(other.info.peers_zid)
    assert len(asked) == 1


def test_an_agent_restricted_to_its_machine_uses_no_remembered_endpoint_elsewhere() -> None:
    from skillmesh.mesh.session import usable

    places = ["192.0.2.7:7447", "127.0.0.1:7447"]
    assert usable(places, settings()) == ["tcp/127.0.0.1:7447"]
    assert usable(places, settings(network="lan")) == ["tcp/192.0.2.7:7447", "tcp/127.0.0.1:7447"]


def test_introducing_to_no_peer_ends_in_time() -> None:
    with joined(fixed()) as one:
        started = time.monotonic()
        assert introduce(one, fixed(), Path(), [f"127.0.0.1:{free_port()}"], seconds=0.3) == 0
        assert introduce(one, fixed(), Path(), locators(one)) == 0
        assert time.monotonic() - started < 1.5


def test_a_message_above_the_size_limit_does_not_arrive() -> None:
    with joined(fixed()) as one, joined(fixed(*locators(one))) as other:
        sizes: list[int] = []
        subscriber = one.declare_subscriber("t/s", lambda sample: sizes.append(len(sample.payload)))
        publisher = other.declare_publisher("t/s", congestion_control=zenoh.CongestionControl.BLOCK)
        assert until(lambda: publisher.matching_status)
        publisher.put(b"x" * 9 * 1024 * 1024)

        def a_smaller_one_arrives() -> bool:
            publisher.put(b"x" * 7 * 1024 * 1024)  # again: the link may have been closed because of the first
            return until(lambda: bool(sizes), 3)

        assert until(a_smaller_one_arrives)
        assert set(sizes) == {7 * 1024 * 1024}
        subscriber.undeclare()


def test_a_client_reaches_others_through_its_gateway_and_reconnects() -> None:
    place = f"127.0.0.1:{free_port()}"
    behind = settings(network="client", connect=[place])
    gateway = open_router([place], discovery_port=None)
    with joined(behind) as one, joined(behind) as other:
        queryable = one.declare_queryable("t/q", lambda query: query.reply("t/q", b"yes"))
        assert until(lambda: ask(other, "t/q") == [b"yes"])
        assert locators(one) == ()
        close_session(gateway)
        assert until(lambda: not other.info.routers_zid())
        gateway = open_router([place], discovery_port=None)
        assert until(lambda: ask(other, "t/q") == [b"yes"], 8)
        queryable.undeclare()
        close_session(gateway)


def test_a_client_without_its_gateway_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillmesh.mesh.session.GATEWAY_MS", 200)
    with pytest.raises(GatewayAwayError, match="no gateway answers at tcp/"):
        open_session(settings(network="client", connect=[f"127.0.0.1:{free_port()}"]), Path())


def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(MeshError, match=f"cannot listen on tcp/{place}.*in use.*listen"):
            open_session(settings(network="fixed", listen=[place]), Path())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EADDRINUSE, "whatever"), os.strerror(errno.EADDRINUSE)),
        (socket.gaierror(-2, "no such name"), "[Errno -2] no such name"),
        (OSError("the network is odd"), "the network is odd"),
    ],
)
def test_the_reason_why_listening_fails_is_reported(
    monkeypatch: pytest.MonkeyPatch, error: OSError, reason: str
) -> None:
    def fail(*_: object, **__: object) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_server", fail)
    said = session_module._why_not(["tcp/127.0.0.1:7447"])
    assert said is not None
    assert said.startswith(f"cannot listen on tcp/127.0.0.1:7447: {reason}; ")


def test_an_address_of_another_machine_is_reported() -> None:
    with pytest.raises(MeshError, match=r"cannot listen on tcp/192\.0\.2\.77:7447"):
        open_session(settings(network="fixed", listen=["192.0.2.77:7447"]), Path())


def test_a_missing_interface_is_reported() -> None:
    with pytest.raises(MeshError, match=r"no network interface 'moon0'.*expected one of"):
        open_session(settings(network="lan", interface="moon0"), Path())


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells of interfaces in another way")
def test_interfaces_have_the_addresses_that_the_system_gave_them() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        listed = session_module._addresses_4(probe)
    assert ("lo", "127.0.0.1") in listed
    assert {name for name, _ in listed} <= {name for _, name in socket.if_nameindex()}
    assert set(addresses()) == {address for _, address in listed} - {"127.0.0.1"}
    assert addresses("lo") == tuple(sorted({address for name, address in listed if name == "lo"} - {"127.0.0.1"}))


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells of interfaces in another way")
def test_an_interface_removed_during_the_listing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    ask = fcntl.ioctl

    def gone(probe: socket.socket, request: int, data: bytes) -> bytes:
        if request == 0x8913 and data.startswith(b"lo\0"):
            raise OSError(errno.ENODEV, "No such device")
        return ask(probe, request, data)

    before = addresses()
    monkeypatch.setattr(fcntl, "ioctl", gone)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        assert "lo" not in dict(session_module._addresses_4(probe))
    assert addresses() == before


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells of interfaces in another way")
def test_an_interface_that_is_down_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    ask = fcntl.ioctl

    def down(probe: socket.socket, request: int, data: bytes) -> bytes:
        return bytes(256) if request == 0x8913 else ask(probe, request, data)

    monkeypatch.setattr(fcntl, "ioctl", down)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        assert session_module._addresses_4(probe) == []


def test_without_a_list_of_interfaces_the_source_address_of_packets_is_used() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        assert session_module._address_towards("127.0.0.1", probe) == "127.0.0.1"


def test_without_any_network_the_loopback_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "addresses", lambda _: ())
    assert session_module._hosts(settings(network="lan")) == ("127.0.0.1",)
    monkeypatch.setattr(session_module, "addresses", lambda _: ("10.0.0.2",))
    assert session_module._hosts(settings(network="lan")) == ("10.0.0.2",)
    assert session_module._hosts(settings(network="machine")) == ("127.0.0.1",)


def test_addresses_are_not_loopback_and_can_be_listened_on() -> None:
    assert "127.0.0.1" not in addresses()
    for address in addresses():
        socket.create_server((address, 0)).close()


@pytest.mark.parametrize("heard_by", [0, -1], ids=["the main thread", "a thread of zenoh"])
def test_a_gateway_runs_until_it_is_told_to_stop(heard_by: int) -> None:
    """The system may deliver a signal to any thread; Python handles it in the main one, which has to wake up."""
    port = free_port()
    code = (
        "import json; from skillmesh.mesh.session import run_gateway\n"
        "def ready(at): print(json.dumps(at), flush=True)\n"
        f"run_gateway(['127.0.0.1:{port}'], ready=ready, discovery_port=None)\n"
        "print('ended')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == [f"tcp/127.0.0.1:{port}"]
    with joined(settings(network="client", connect=[f"127.0.0.1:{port}"])) as client:
        assert client.info.routers_zid()
    threads = sorted(int(path.name) for path in Path(f"/proc/{process.pid}/task").glob("*")) or [process.pid]
    os.kill(threads[heard_by], signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "ended\n"
    assert process.returncode == 0


def test_a_gateway_with_an_invalid_address_is_refused() -> None:
    with pytest.raises(MeshError, match="expected host:port"):
        open_router(["nowhere"])
