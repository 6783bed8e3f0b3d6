"""Commands that talk to a running node through its socket, which only the home's owner can use."""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from meshes import eventually

from skillmesh.errors import AgentError, UnknownTaskError
from skillmesh.mesh import calling, control
from skillmesh.mesh.calling import FILE, BusyError, NotRunningError, call
from skillmesh.mesh.control import Control

pytestmark = pytest.mark.long

Start = Callable[..., Control]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a node's socket that answers these verbs."""
    with ExitStack() as over:

        def begin(home: Path = tmp_path, **verbs: Callable[..., Any]) -> Control:
            control = Control(home, verbs)
            over.callback(control.close)
            return control

        yield begin


def socket_that(home: Path, act: Callable[[socket.socket], object]) -> None:
    """Start a fake node that does this to its first caller."""
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
        with suppress(OSError):  # without the descriptor of the listing itself
            found.add(descriptor.readlink())
    return found


def test_a_verb_is_called_with_the_arguments_of_the_request(tmp_path: Path, start: Start):
    start(add=lambda a, b: {"sum": a + b}, nothing=lambda: None)
    assert call(tmp_path, "add", a=[1], b=["é"]) == {"sum": [1, "é"]}
    assert call(tmp_path, "nothing") is None


def test_an_error_for_the_user_is_passed_on_unchanged(tmp_path: Path, start: Start):
    def fail() -> None:
        raise UnknownTaskError("there is no task 'x' here")

    start(fail=fail)
    with pytest.raises(AgentError, match=r"^there is no task 'x' here$") as caught:
        call(tmp_path, "fail")
    assert not isinstance(caught.value, NotRunningError)


def test_any_other_error_is_passed_on_too_and_the_node_continues(tmp_path: Path, start: Start):
    start(divide=lambda a, b: a / b)
    with pytest.raises(AgentError, match="the node failed: ZeroDivisionError: division by zero"):
        call(tmp_path, "divide", a=1, b=0)
    with pytest.raises(AgentError, match="the node failed: TypeError"):
        call(tmp_path, "divide", a=1)
    assert call(tmp_path, "divide", a=1, b=2) == 0.5


def test_a_verb_of_another_version_is_named(tmp_path: Path, start: Start):
    start(status=dict, peers=list)
    with pytest.raises(
        AgentError, match="unknown request 'dance', expected status, peers; is the node of another version"
    ):
        call(tmp_path, "dance")


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b"{}\n", b"\xff\n", b""])
def test_an_invalid_request_is_answered_with_an_error(tmp_path: Path, start: Start, line: bytes):
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

    def test_a_socket_left_by_a_killed_node_is_no_node(self, tmp_path: Path):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / FILE))
        assert (tmp_path / FILE).exists()
        with pytest.raises(NotRunningError):
            call(tmp_path, "status")

    def test_a_new_node_replaces_a_killed_one(self, tmp_path: Path, start: Start):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / FILE))
        start(status=lambda: "fine")
        assert call(tmp_path, "status") == "fine"

    def test_a_stopped_node_leaves_no_socket(self, tmp_path: Path, start: Start):
        control = start(status=dict)
        control.close()
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(NotRunningError):
            call(tmp_path, "status")

    @pytest.mark.parametrize("said", [b"", b'{"result": [1, 2', b"\xff"])
    def test_a_node_that_ends_during_an_answer_is_reported_as_stopped(self, tmp_path: Path, said: bytes):
        socket_that(tmp_path, lambda line: (line.recv(100), line.sendall(said)))
        with pytest.raises(NotRunningError, match="stopped before it replied"):
            call(tmp_path, "status")

    def test_a_node_that_hangs_is_waited_for_until_the_timeout(self, tmp_path: Path):
        over = threading.Event()
        socket_that(tmp_path, lambda _: over.wait(30))
        began = time.monotonic()
        with pytest.raises(AgentError, match="did not reply within 0 s") as caught:
            call(tmp_path, "status", timeout=0.1)
        over.set()
        assert time.monotonic() - began < 10
        assert not isinstance(caught.value, NotRunningError)


REFUSED = """
import os, resource, sys
from pathlib import Path
from skillmesh.mesh.calling import call
os.chdir(sys.argv[1])
if sys.argv[2] == "another user":
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
try:
    call(Path(), "status")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ("another user", "Permission denied; run this as the user who started it"),
        ("one without descriptors", "Too many open files; fix that and try again"),
    ],
)
def test_a_failed_connection_is_reported_with_its_cause_and_not_as_no_node(
    tmp_path: Path, start: Start, who: str, reason: str
):
    if who == "another user" and os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    start(status=dict)
    tmp_path.chmod(0o755)
    command = [sys.executable, "-c", REFUSED, str(tmp_path), who]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == f"AgentError cannot connect to the node on .: {reason}\n"


class TestABusyNode:
    @pytest.mark.parametrize("timeout", [20.0, None])
    def test_is_asked_again_until_it_has_time(
        self, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, timeout: float | None
    ):
        start(status=lambda: "fine")
        with monkeypatch.context() as busy, ThreadPoolExecutor(1) as pool:
            busy.setattr(control, "MAX_HELD", -1)
            asked = pool.submit(call, tmp_path, "status", timeout)
            time.sleep(0.5)
            assert not asked.done()
            busy.undo()
            assert asked.result() == "fine"

    def test_is_abandoned_after_the_timeout(self, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(control, "MAX_HELD", -1)
        start(status=lambda: "fine")
        began = time.monotonic()
        full = "the node has no memory left for another request; try again in a moment"
        with pytest.raises(BusyError, match=full):
            call(tmp_path, "status", timeout=2.0)
        assert 1.0 < time.monotonic() - began < 20

    def test_that_does_not_reply_within_the_timeout_is_reported_as_busy(
        self, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
    ):
        start(status=lambda: "fine")
        replies = iter([calling.busy("has too many callers")])

        def exchange(*_: object) -> dict[str, Any]:
            try:
                return next(replies)
            except StopIteration:
                time.sleep(1.0)
                raise TimeoutError from None

        monkeypatch.setattr(calling, "_exchange", exchange)
        with pytest.raises(BusyError, match="has too many callers"):
            call(tmp_path, "status", timeout=1.0)


MAKES_FOLDERS = """
import os, sys
from pathlib import Path
from skillmesh.mesh.control import Control
home, count = Path(sys.argv[1]), 0
def make(event, _):
    global count
    if event.startswith("socket."):
        count += 1
        (home / f"made{count}").mkdir()
os.umask(0o022)
sys.addaudithook(make)
Control(home, {}).close()
"""


class TestTheFile:
    def test_is_for_its_owner_only(self, tmp_path: Path, start: Start):
        before = os.umask(0)
        try:
            start(status=dict)
        finally:
            os.umask(before)
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600

    def test_is_created_without_changing_the_umask_of_other_threads(self, tmp_path: Path):
        """A folder created at the same moment keeps its permissions."""
        subprocess.run([sys.executable, "-c", MAKES_FOLDERS, str(tmp_path)], check=True)
        modes = {folder.stat().st_mode & 0o777 for folder in tmp_path.glob("made*")}
        assert modes == {0o755}

    @pytest.mark.parametrize("letter", ["x", "é"])
    def test_may_have_a_longer_path_than_sockets_allow(self, tmp_path: Path, start: Start, letter: str):
        home = tmp_path / (letter * 100) / (letter * 100)
        home.mkdir(parents=True)
        start(home, status=lambda: "fine")
        assert call(home, "status") == "fine"
        assert home not in opened_by_this_process()  # the descriptor of the folder is closed
        assert (home / FILE).stat().st_mode & 0o777 == 0o600

    def test_of_each_home_leads_to_its_own_node(self, tmp_path: Path, start: Start):
        homes = [tmp_path / name for name in ("one", "two")]
        for home in homes:
            home.mkdir()
            start(home, who=lambda home=home: home.name)
        assert [call(home, "who") for home in homes] == ["one", "two"]


class TestManyAtOnce:
    def test_a_slow_answer_does_not_delay_others(self, tmp_path: Path, start: Start):
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

    def test_many_callers_that_connect_at_once_are_accepted(self, tmp_path: Path, start: Start):
        """Callers waiting to be accepted do not get the error that no node is running."""
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


def test_a_caller_that_disconnects_before_the_answer_does_no_harm(tmp_path: Path, start: Start, caplog):
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


def test_a_connection_that_asks_for_nothing_is_not_logged(tmp_path: Path, start: Start, caplog):
    start(status=lambda: "fine")
    with callers(tmp_path, 3) as [_, _, line]:
        line.shutdown(socket.SHUT_WR)
        assert "the request is empty" in json.loads(line.makefile("rb").readline())["error"]
    assert call(tmp_path, "status") == "fine"
    assert caplog.records == []


# Unexpected errors.


class PanicError(BaseException):
    """Like the errors that native libraries raise."""


@pytest.mark.parametrize("error", [None, PanicError])
def test_a_result_that_cannot_be_sent_does_not_end_a_worker(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, error: type[BaseException] | None
):
    def odd() -> object:
        if error is not None:
            raise error
        return {1, 2}

    monkeypatch.setattr(control, "WORKERS", 2)
    start(odd=odd, status=lambda: "fine")
    for _ in range(3):
        with pytest.raises(AgentError, match=r"the node failed: (TypeError|PanicError)"):
            call(tmp_path, "odd", timeout=5)
    assert call(tmp_path, "status", timeout=5) == "fine"


def test_a_request_waits_if_no_thread_can_be_started(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
):
    start(status=lambda: "fine")
    begin, refused = threading.Thread.start, [RuntimeError("can't start new thread")]
    monkeypatch.setattr(threading.Thread, "start", lambda self: (refused and _raise(refused.pop())) or begin(self))
    assert call(tmp_path, "status", timeout=5) == "fine"


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("when", ["it connects", "it is answered", "another can be accepted"])
def test_a_connection_that_cannot_be_watched_is_closed_without_affecting_others(
    tmp_path: Path, start: Start, hurry: None, monkeypatch: pytest.MonkeyPatch, when: str
):
    monkeypatch.setattr(control, "MAX_OPEN", 1)
    server = start(long=lambda: "x" * 5_000_000, status=lambda: "fine")
    assert call(tmp_path, "status") == "fine"
    base = descriptors()
    register, refused = server._lines.register, [OSError(errno.ENOSPC, "No space left on device")]

    def full_once(line: socket.socket, events: int, data: object = None) -> object:
        reads = events == selectors.EVENT_READ
        reason = "another can be accepted" if data is None else "it connects" if reads else "it is answered"
        if refused and reason == when:
            raise refused.pop()
        return register(line, events, data)

    monkeypatch.setattr(server._lines, "register", full_once)
    received = 0
    with callers(tmp_path, 1) as [line], suppress(BrokenPipeError, ConnectionResetError):
        line.sendall(b'{"verb": "long"}\n')
        if when == "it is answered":  # unread, the answer does not fit into the socket's buffer
            eventually(lambda: not refused, why="the answer waits to be written")
        received = sum(iter(lambda: len(line.recv(65_536)), 0))
    assert (received > 5_000_000) == (when == "another can be accepted")
    time.sleep(1.5)  # an unwatched connection would have timed out by now
    assert call(tmp_path, "status", timeout=5) == "fine"
    assert not refused
    assert back_to(base)


def test_a_failed_accept_is_logged_and_tried_again(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, caplog
):
    start(status=lambda: "fine")
    accept, refused = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")]
    monkeypatch.setattr(socket.socket, "accept", lambda self: (refused and _raise(refused.pop())) or accept(self))
    assert call(tmp_path, "status") == "fine"
    assert [record.getMessage() for record in caplog.records] == [
        "cannot accept a connection from a command: [Errno 24] Too many open files"
    ]


# Harmful callers.


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "IN_TIME", 1.0)
    monkeypatch.setattr(control, "NO_HURRY", 0.2)


@contextmanager
def callers(home: Path, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as over:
        lines = [over.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(count)]
        for line in lines:
            line.connect(str(home / FILE))
        yield lines


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def back_to(base: int) -> bool:
    """Return whether the number of open descriptors soon returns to what it was."""
    deadline = time.monotonic() + 10
    while descriptors() > base and time.monotonic() < deadline:
        time.sleep(0.05)
    return descriptors() <= base


@pytest.mark.parametrize("backlog", [control.BACKLOG, 8])
def test_five_hundred_at_once_are_all_answered(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, backlog: int
):
    monkeypatch.setattr(control, "BACKLOG", backlog)
    base = descriptors()
    start(echo=lambda value: time.sleep(0.01) or value)
    begin = threading.Barrier(500)
    with ThreadPoolExecutor(500) as pool:
        answers = list(pool.map(lambda i: (begin.wait(30), call(tmp_path, "echo", value=i))[1], range(500)))
    assert answers == list(range(500))
    assert (
        sum(thread.name.startswith("skillmesh-control") for thread in threading.enumerate()) <= control.WORKERS + 1
    )
    assert back_to(base + 10)


@pytest.mark.parametrize("what", ["nothing", "half a request", "a byte now and then"])
def test_callers_that_send_no_request_do_not_block_others(tmp_path: Path, start: Start, hurry: None, what: str):
    base = descriptors()
    start(echo=lambda value: value)
    over = threading.Event()
    with callers(tmp_path, control.MAX_OPEN + 50) as lines:

        def drip() -> None:
            while not over.wait(0.05):
                for line in lines:
                    with suppress(OSError):
                        line.send(b" ")

        if what == "half a request":
            for line in lines[: control.MAX_OPEN]:
                line.sendall(b'{"verb": "ec')
        elif what == "a byte now and then":
            threading.Thread(target=drip, daemon=True).start()
        assert call(tmp_path, "echo", timeout=20, value=1) == 1
        said = json.loads(lines[0].makefile("rb").readline())["error"]
        assert said.startswith(("no request came within", "the node has too many callers"))
        over.set()
    assert back_to(base + 4)


def test_the_oldest_unread_answer_is_dropped_if_memory_is_full(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(control, "MAX_HELD", 12_000_000)
    monkeypatch.setattr(control, "IN_TIME", 300.0)
    server = start(long=lambda: "x" * 5_000_000)
    with callers(tmp_path, 3) as lines:
        for line, held in zip(lines, (1, 2, 2), strict=True):
            before = {caller.since for caller in list(server._callers) if caller.answer is not None}
            line.sendall(b'{"verb": "long"}\n')
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                waiting = [caller for caller in list(server._callers) if caller.answer is not None]
                if len(waiting) == held and {caller.since for caller in waiting} != before:
                    break
                time.sleep(0.02)
            assert len(waiting) == held
            assert all(caller.held == len(caller.answer) for caller in waiting)
        taken = [len(b"".join(iter(lambda line=line: line.recv(1_000_000), b""))) for line in lines]
    assert taken[0] < 5_000_000 < taken[1] == taken[2]


def test_a_caller_that_does_not_read_its_answer_loses_it_and_delays_no_other(
    tmp_path: Path, start: Start, hurry: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(control, "MAX_HELD", 20_000_000)
    go, held, write = threading.Event(), [], Control._write

    def write_and_note(server: Control, caller: Any) -> None:
        held.append(server._held())
        write(server, caller)

    monkeypatch.setattr(Control, "_write", write_and_note)
    server = start(long=lambda: "x" * 5_000_000 * go.wait(20), quick=lambda: "now")
    base = descriptors()
    with callers(tmp_path, 40) as lines:
        for line in lines:
            line.sendall(b'{"verb": "long"}\n')
        eventually(lambda: len([c for c in server._callers.copy() if c.in_work]) == 40)
        go.set()  # many are answered at once
        assert call(tmp_path, "quick", timeout=10) == "now"
        deadline = time.monotonic() + 10
        while server._callers and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not server._callers
        monkeypatch.setattr(control, "IN_TIME", 60.0)
        assert max(held) < 25_100_000  # one answer above the limit, until another is dropped
        assert len(call(tmp_path, "long")) == 5_000_000
    assert back_to(base)


GARBAGE = [b"", b"\n", b"\0" * 5000, b"[" * 100_000, b'{"verb": 7}', b'{"verb": []}', b'{"verb": "echo"}']
GARBAGE += [b'{"verb": "echo", "value": 1, "self": 2}', b'{"verb": "%s"}' % (b"x" * 100_000), b"9" * 10_000]


def test_garbage_is_answered_briefly_and_logged_once_without_a_traceback(
    tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture
):
    start(echo=lambda value: value)
    for data in 10 * GARBAGE:
        with callers(tmp_path, 1) as [line]:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            reply = line.makefile("rb").readline()
        assert "error" in json.loads(reply)
        assert len(reply) < 1000
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None
    assert len(caplog.text) < 1000


NODE = """
import sys, threading
from pathlib import Path
from skillmesh.mesh.control import Control
from skillmesh.numerics.process import give_back_freed_memory, process_is_ours
process_is_ours()
give_back_freed_memory()  # as a node does
told = threading.Event()
verbs = {"echo": lambda value: value, "count": lambda images: len(images), "wait": lambda text: told.wait()}
Control(Path(sys.argv[1]), verbs)
print("ready", flush=True)
sys.stdin.readline()
told.set()
sys.stdin.read()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A socket in a separate process, whose memory can be measured."""
    command = [sys.executable, "-c", NODE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == "ready\n"
        yield made
        made.kill()


def peak_megabytes(process: subprocess.Popen[str]) -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize(
    "beginning", [b"", b'{"verb": "count", "images": [' + b"{}," * 600_000], ids=["no JSON", "JSON"]
)
def test_callers_that_never_stop_sending_are_cut_off_and_take_little_memory(
    tmp_path: Path, process: subprocess.Popen[str], beginning: bytes
):
    call(tmp_path, "echo", value=1)
    base = peak_megabytes(process)

    def flood(line: socket.socket) -> bytes:
        line.settimeout(30)
        block = b"x" * 1_000_000
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(beginning)
            for _ in range(30):
                line.sendall(block)
        return line.makefile("rb").readline()

    with callers(tmp_path, 40) as lines, ThreadPoolExecutor(40) as pool:
        said = list(pool.map(flood, lines))
        assert call(tmp_path, "echo", value=2) == 2
    assert all("error" in json.loads(line) for line in said)
    assert peak_megabytes(process) - base < 200


def test_requests_that_wait_for_their_answer_count_as_held(tmp_path: Path, process: subprocess.Popen[str]):
    call(tmp_path, "echo", value=1)
    base = peak_megabytes(process)
    request = json.dumps({"verb": "wait", "text": "x" * 1_900_000}).encode() + b"\n"

    def send(line: socket.socket) -> None:
        line.settimeout(30)
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(request)

    with callers(tmp_path, 100) as lines, ThreadPoolExecutor(100) as pool:
        list(pool.map(send, lines))
        replies = pool.map(lambda line: json.loads(line.makefile("rb").readline()), lines)
        time.sleep(0.5)
        grown = peak_megabytes(process) - base
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        done = [reply.get("result") or (reply["busy"] and "busy") for reply in replies]
    assert grown < 100
    assert set(done) == {True, "busy"}
    assert done.count(True) * len(request) <= control.MAX_HELD


def test_a_request_that_would_be_cut_off_is_not_sent(tmp_path: Path, start: Start):
    start(echo=lambda value: value)
    with pytest.raises(AgentError, match=r"the limit is 2,000,000; ask for less"):
        call(tmp_path, "echo", value="x" * 2_000_001)


AS_ANOTHER_USER = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
line = socket.socket(socket.AF_UNIX)
try:
    line.connect("node.socket")
    try:
        line.sendall(b'{"verb": "echo", "value": 1}\\n')
    except BrokenPipeError:
        pass  # it was refused before it asked, and can read why
    print(line.makefile().readline())
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_another_user_is_refused_even_if_the_file_permissions_allow_it(tmp_path: Path, start: Start, mode: int):
    start(echo=lambda value: value)
    tmp_path.chmod(0o755)
    (tmp_path / FILE).chmod(mode)
    command = [sys.executable, "-c", AS_ANOTHER_USER, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    assert ("PermissionError" if mode == 0o600 else "belongs to another user") in ran.stdout
    assert call(tmp_path, "echo", value=2) == 2
