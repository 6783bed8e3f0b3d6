"""Settings of the mesh, and sessions that meet: on one machine, at fixed places, through a gateway."""

from __future__ import annotations

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

from skillmesh.errors import AgentError, MeshError
from skillmesh.mesh.session import (
    GatewayAwayError,
    addresses,
    close_session,
    introduce,
    locators,
    open_router,
    open_session,
)
from skillmesh.mesh.settings import FILE, MeshSettings, TlsFiles, endpoint


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


def test_settings_are_the_defaults_until_they_are_saved(tmp_path: Path) -> None:
    assert MeshSettings.load(tmp_path) == settings()
    chosen = settings(network="fixed", connect=["a.example:7447"], interests=["birds*", "tag:field"])
    chosen.save(tmp_path)
    assert MeshSettings.load(tmp_path) == chosen
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("content", ["{", '{"network": "moon"}', '{"colour": "red"}', '{"listen": ["x"]}'])
def test_damaged_settings_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(AgentError, match=r"mesh\.json is damaged"):
        MeshSettings.load(tmp_path)


def test_settings_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\xff\xfe")
    with pytest.raises(AgentError, match="cannot be read"):
        MeshSettings.load(tmp_path)


def test_settings_that_cannot_be_written_are_named(tmp_path: Path) -> None:
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
def test_endpoints_have_one_form(given: str, secure: bool, expected: str) -> None:
    assert endpoint(given, secure=secure) == expected


@pytest.mark.parametrize(
    "bad",
    ["", "host", "host:", ":7447", "udp/host:1", "host:70000", "host:0", "tcp/a:1#iface=x", "a b:1", "tls/a:1", 7],
)
def test_what_is_no_endpoint_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match=r"expected|TLS"):
        endpoint(bad)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"network": "client"}, "needs a gateway"),
        ({"network": "client", "connect": ["a:1"], "listen": ["b:2"]}, "listens to nothing"),
        ({"connect": ["192.0.2.7:7447"]}, "stays on this machine"),
        ({"interface": "eth0"}, "looks on no interface"),
        ({"network": "moon"}, "the setting network is 'moon'"),
        ({"sync_seconds": 0}, "the setting sync_seconds is 0"),
        ({"colour": "red"}, "the setting colour"),
    ],
)
def test_settings_that_contradict_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentError, match=message):
        MeshSettings.of(given)


def test_one_run_may_differ_and_tls_lifts_the_endpoints() -> None:
    plain = settings(network="fixed", connect=["host:7447"])
    files = TlsFiles(ca=Path("ca.pem"), certificate=Path("a.pem"), key=Path("a.key"))
    assert plain.with_(tls=files).connect == ("tls/host:7447",)
    assert plain.connect == ("tcp/host:7447",)
    with pytest.raises(AgentError, match="the setting network"):
        plain.with_(network="moon")


def test_tls_files_lie_in_the_home_unless_they_are_absolute(tmp_path: Path) -> None:
    files = TlsFiles(ca=Path("tls/ca.pem"), certificate=Path("/etc/a.pem"), key=Path("a.key")).beside(tmp_path)
    assert (files.ca, files.certificate) == (tmp_path.resolve() / "tls/ca.pem", Path("/etc/a.pem"))


# sessions


def test_agents_on_one_machine_meet_and_ask_each_other() -> None:
    here = settings(discovery_port=free_port(socket.SOCK_DGRAM))
    with joined(here) as one, joined(here) as other:
        queryable = one.declare_queryable("t/q", lambda query: query.reply("t/q", b"yes"))
        assert until(lambda: ask(other, "t/q") == [b"yes"])
        assert all(place.startswith("tcp/127.0.0.1:") for place in locators(one))
        queryable.undeclare()


def test_agents_with_other_discovery_ports_do_not_meet() -> None:
    ports = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_DGRAM)
    with joined(settings(discovery_port=ports[0])) as one, joined(settings(discovery_port=ports[1])) as other:
        assert not until(lambda: one.info.peers_zid() or other.info.peers_zid(), 1.5)


def test_a_place_that_answers_later_is_still_tried() -> None:
    place = f"127.0.0.1:{free_port()}"
    with joined(fixed(place)) as early:
        time.sleep(0.3)
        with joined(settings(network="fixed", listen=[place])):
            assert until(early.info.peers_zid)


def test_peers_that_share_no_seed_are_introduced_without_opening_again() -> None:
    with joined(fixed()) as one, joined(fixed()) as other:
        assert not one.info.peers_zid()
        assert introduce(one, fixed(), Path(), locators(other)) == 1
        assert until(lambda: [str(zid) for zid in one.info.peers_zid()] == [str(other.zid())])


def test_remembered_places_that_make_no_sense_are_left_out() -> None:
    with joined(fixed()) as one, joined(fixed()) as other:
        assert introduce(other, fixed(), Path(), ["nonsense", "tls/127.0.0.1:1"]) == 0
        assert introduce(other, fixed(), Path(), ["nonsense", *locators(one)]) == 1
        assert until(other.info.peers_zid)


def test_an_agent_that_stays_on_its_machine_calls_no_remembered_place_elsewhere() -> None:
    from skillmesh.mesh.session import usable

    places = ["192.0.2.7:7447", "127.0.0.1:7447"]
    assert usable(places, settings()) == ["tcp/127.0.0.1:7447"]
    assert usable(places, settings(network="lan")) == ["tcp/192.0.2.7:7447", "tcp/127.0.0.1:7447"]


def test_introducing_to_nobody_ends_in_time() -> None:
    with joined(fixed()) as one:
        started = time.monotonic()
        assert introduce(one, fixed(), Path(), [f"127.0.0.1:{free_port()}"], seconds=0.3) == 0
        assert introduce(one, fixed(), Path(), locators(one)) == 0
        assert time.monotonic() - started < 1.5


def test_a_message_larger_than_the_bound_does_not_arrive() -> None:
    with joined(fixed()) as one, joined(fixed(*locators(one))) as other:
        sizes: list[int] = []
        subscriber = one.declare_subscriber("t/s", lambda sample: sizes.append(len(sample.payload)))
        publisher = other.declare_publisher("t/s", congestion_control=zenoh.CongestionControl.BLOCK)
        assert until(lambda: publisher.matching_status)
        publisher.put(b"x" * 9 * 1024 * 1024)

        def a_smaller_one_arrives() -> bool:
            publisher.put(b"x" * 7 * 1024 * 1024)  # again: the link may have been closed over the first
            return until(lambda: bool(sizes), 3)

        assert until(a_smaller_one_arrives)
        assert set(sizes) == {7 * 1024 * 1024}
        subscriber.undeclare()


def test_a_client_reaches_others_through_its_gateway_and_finds_it_again() -> None:
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


def test_a_client_without_its_gateway_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillmesh.mesh.session.GATEWAY_MS", 200)
    with pytest.raises(GatewayAwayError, match="no gateway answers at tcp/"):
        open_session(settings(network="client", connect=[f"127.0.0.1:{free_port()}"]), Path())


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(MeshError, match=f"cannot listen on tcp/{place}.*in use.*listen"):
            open_session(settings(network="fixed", listen=[place]), Path())


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(MeshError, match=r"cannot listen on tcp/192\.0\.2\.77:7447"):
        open_session(settings(network="fixed", listen=["192.0.2.77:7447"]), Path())


def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(MeshError, match=r"no network interface 'moon0'.*expected one of"):
        open_session(settings(network="lan", interface="moon0"), Path())


def test_addresses_are_those_that_others_can_reach() -> None:
    assert "127.0.0.1" not in addresses()
    for address in addresses():
        socket.create_server((address, 0)).close()


@pytest.mark.parametrize("heard_by", [0, -1], ids=["the main thread", "a thread of zenoh"])
def test_a_gateway_runs_until_it_is_told_to_stop(heard_by: int) -> None:
    """The system may hand a signal to any thread; Python acts on it in the main one, which then has to wake up."""
    port = free_port()
    code = (
        "import json; from skillmesh.mesh.gateway import run_gateway\n"
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


def test_a_gateway_with_a_bad_address_says_so() -> None:
    with pytest.raises(MeshError, match="expected host:port"):
        open_router(["nowhere"])
