"""Commands that talk to a running node: through a file that only its owner can use, wherever the home lies."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from skillmesh.errors import AgentError, UnknownTaskError
from skillmesh.mesh.control import FILE, Control, NotRunningError, call

Start = Callable[..., Control]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Have a node answer these verbs."""
    with ExitStack() as over:

        def begin(home: Path = tmp_path, **verbs: Callable[..., Any]) -> Control:
            control = Control(home, verbs)
            over.callback(control.close)
            return control

        yield begin


def socket_that(home: Path, act: Callable[[socket.socket], object]) -> None:
    """A node of another kind: does something to the first who calls."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(home / FILE))
    server.listen()

    def serve() -> None:
        line, _ = server.accept()
        with server, line:
            act(line)

    threading.Thread(target=serve, daemon=True).start()


def opened_by_this_process() -> set[Path]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them is gone
            found.add(descriptor.readlink())
    return found


def test_a_verb_is_called_with_what_was_said(tmp_path: Path, start: Start):
    start(add=lambda a, b: {"sum": a + b}, nothing=lambda: None)
    assert call(tmp_path, "add", a=[1], b=["é"]) == {"sum": [1, "é"]}
    assert call(tmp_path, "nothing") is None


def test_an_error_that_the_user_can_mend_is_passed_on_as_it_is(tmp_path: Path, start: Start):
    def fail() -> None:
        raise UnknownTaskError("there is no task 'x' here")

    start(fail=fail)
    with pytest.raises(AgentError, match=r"^there is no task 'x' here$") as caught:
        call(tmp_path, "fail")
    assert not isinstance(caught.value, NotRunningError)


def test_any_other_error_is_passed_on_too_and_the_node_goes_on(tmp_path: Path, start: Start):
    start(divide=lambda a, b: a / b)
    with pytest.raises(AgentError, match="the node failed: ZeroDivisionError: division by zero"):
        call(tmp_path, "divide", a=1, b=0)
    with pytest.raises(AgentError, match="the node failed: TypeError"):
        call(tmp_path, "divide", a=1)
    assert call(tmp_path, "divide", a=1, b=2) == 0.5


def test_a_verb_of_another_version_is_named(tmp_path: Path, start: Start):
    start(status=dict, peers=list)
    with pytest.raises(
        AgentError, match="the node knows no 'dance', only status, peers; is it of another version"
    ):
        call(tmp_path, "dance")


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b"{}\n", b"\xff\n", b""])
def test_nonsense_is_answered_with_an_error(tmp_path: Path, start: Start, line: bytes):
    start(status=lambda: "fine")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / FILE))
        client.sendall(line)
        client.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: client.recv(1000), b""))
    assert json.loads(reply)["error"].startswith("the node failed")
    assert call(tmp_path, "status") == "fine"


class TestWithoutANode:
    def test_it_says_so_and_what_to_do(self, tmp_path: Path):
        for home in (tmp_path, tmp_path / "no-home"):
            with pytest.raises(
                NotRunningError, match=rf"no node runs on {home}; start one with `skillmesh serve`"
            ):
                call(home, "status")

    def test_a_file_that_a_killed_node_left_is_no_node(self, tmp_path: Path):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / FILE))
        assert (tmp_path / FILE).exists()
        with pytest.raises(NotRunningError):
            call(tmp_path, "status")

    def test_a_new_node_takes_the_place_of_a_killed_one(self, tmp_path: Path, start: Start):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / FILE))
        start(status=lambda: "fine")
        assert call(tmp_path, "status") == "fine"

    def test_one_that_was_stopped_leaves_nothing(self, tmp_path: Path, start: Start):
        control = start(status=dict)
        control.close()
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(NotRunningError):
            call(tmp_path, "status")

    @pytest.mark.parametrize("said", [b"", b'{"result": [1, 2', b"\xff"])
    def test_one_that_ends_in_the_middle_of_an_answer_has_stopped(self, tmp_path: Path, said: bytes):
        socket_that(tmp_path, lambda line: (line.recv(100), line.sendall(said)))
        with pytest.raises(NotRunningError, match="stopped before it replied"):
            call(tmp_path, "status")

    def test_one_that_hangs_is_not_waited_for_longer_than_was_said(self, tmp_path: Path):
        over = threading.Event()
        socket_that(tmp_path, lambda _: over.wait(30))
        began = time.monotonic()
        with pytest.raises(AgentError, match="did not reply within 0 s") as caught:
            call(tmp_path, "status", timeout=0.1)
        over.set()
        assert time.monotonic() - began < 10
        assert not isinstance(caught.value, NotRunningError)


class TestTheFile:
    def test_is_for_its_owner_only(self, tmp_path: Path, start: Start):
        before = os.umask(0)
        try:
            start(status=dict)
        finally:
            os.umask(before)
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("letter", ["x", "é"])
    def test_may_lie_deeper_than_a_sockets_path_can_be_long(self, tmp_path: Path, start: Start, letter: str):
        home = tmp_path / (letter * 100) / (letter * 100)
        home.mkdir(parents=True)
        start(home, status=lambda: "fine")
        assert call(home, "status") == "fine"
        assert home not in opened_by_this_process()  # the way there is not left open
        assert (home / FILE).stat().st_mode & 0o777 == 0o600

    def test_of_each_home_leads_to_its_own_node(self, tmp_path: Path, start: Start):
        homes = [tmp_path / name for name in ("one", "two")]
        for home in homes:
            home.mkdir()
            start(home, who=lambda home=home: home.name)
        assert [call(home, "who") for home in homes] == ["one", "two"]


class TestManyAtOnce:
    def test_a_slow_answer_delays_no_other(self, tmp_path: Path, start: Start):
        release = threading.Event()
        start(slow=lambda: release.wait(30), quick=lambda: "now")
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(call, tmp_path, "slow")
            assert call(tmp_path, "quick", timeout=10) == "now"
            assert not slow.done()
            release.set()
            assert slow.result() is True

    def test_all_are_answered_each_with_its_own(self, tmp_path: Path, start: Start):
        start(echo=lambda value: value)
        with ThreadPoolExecutor(32) as pool:
            assert list(pool.map(lambda i: call(tmp_path, "echo", value=i), range(200))) == list(range(200))

    def test_a_crowd_at_the_door_is_let_in(self, tmp_path: Path, start: Start):
        """Callers who wait to be accepted are not told that nobody is there."""
        start(echo=lambda value: value)
        with ExitStack() as over:
            for _ in range(50):
                line = over.enter_context(socket.socket(socket.AF_UNIX))
                line.setblocking(False)
                line.connect(str(tmp_path / FILE))
            assert call(tmp_path, "echo", value=1) == 1

    def test_long_answers_arrive_whole(self, tmp_path: Path, start: Start):
        start(long=lambda: "x" * 5_000_000)
        assert len(call(tmp_path, "long")) == 5_000_000


def test_whoever_leaves_before_the_answer_does_no_harm(tmp_path: Path, start: Start, caplog):
    begun, release = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        release.wait(10)
        return "x" * 1_000_000

    start(slow=slow, status=lambda: "fine")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / FILE))
        client.sendall(b'{"verb": "slow"}\n')
        assert begun.wait(10)
    release.set()
    assert call(tmp_path, "status") == "fine"
    assert caplog.records == []
