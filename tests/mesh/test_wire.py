"""An agent's wire: what it asks of zenoh, which is faked here, and which replies it accepts."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import zenoh
from notices import ALICE, BOB

from skillmesh.mesh import wire as wire_module
from skillmesh.mesh.wire import NONCE, WAITING_NOTICES, WAITING_QUESTIONS, LieError, NoReplyError, Pending, Wire


class Data:
    """Bytes in the form in which zenoh passes them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def to_bytes(self) -> bytes:
        return self._data

    def __len__(self) -> int:
        return len(self._data)


class Session:
    """Records its calls."""

    def __init__(self) -> None:
        self.questions: list[dict[str, Any]] = []
        self.served: dict[str, Any] = {}
        self.announced: list[tuple[str, bytes]] = []

    def get(self, key: str, _handler: object, **options: Any) -> None:
        self.questions.append({"key": key} | options)

    def put(self, key: str, data: bytes, **_options: Any) -> None:
        self.announced.append((key, data))

    def declare_queryable(self, key: str, inbox: Any) -> None:
        self.served[key] = inbox

    def declare_subscriber(self, key: str, inbox: Any, **_options: Any) -> None:
        self.served[key] = inbox


class Query:
    """A question in zenoh's form."""

    def __init__(self, question: bytes | None) -> None:
        self.payload = None if question is None else Data(question)
        self.replies: list[tuple[str, bytes, bytes]] = []

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def reply(self, key: str, body: bytes, attachment: bytes) -> None:
        self.replies.append((key, body, attachment))


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def wire(session: Session) -> Wire:
    return Wire(session, ALICE)  # type: ignore[arg-type]


def reply(body: bytes, signature: bytes) -> Any:
    return SimpleNamespace(ok=SimpleNamespace(attachment=Data(signature), payload=Data(body)))


def answered(wire: Wire, question: bytes | None, answer: Callable[[bytes], bytes | None]) -> Query:
    query = Query(question)
    wire._serve("digest", answer, query)  # type: ignore[arg-type]
    return query


def test_pieces_have_lower_priority_than_other_questions(wire: Wire, session: Session) -> None:
    wire.ask(BOB.public_key, "piece", b"which", 3.0, 100, bulk=True)
    wire.ask(BOB.public_key, "digest", b"root", 2.0, 100)
    assert [asked["priority"] for asked in session.questions] == [
        zenoh.Priority.DATA_LOW,
        zenoh.Priority.DATA_HIGH,
    ]
    assert [asked["timeout"] for asked in session.questions] == [3.0, 2.0]
    assert [asked["key"] for asked in session.questions] == [
        f"sk/v1/node/{BOB.public_key}/{verb}" for verb in ("piece", "digest")
    ]
    assert [asked["payload"][NONCE:] for asked in session.questions] == [b"which", b"root"]
    assert session.questions[0]["payload"][:NONCE] != session.questions[1]["payload"][:NONCE]


def test_announcements_are_published_under_the_agents_key(wire: Wire, session: Session) -> None:
    wire.announce(b"a notice")
    assert session.announced == [(f"sk/v1/ann/{ALICE.public_key}", b"a notice")]


def test_a_question_is_answered_under_the_agents_signature(wire: Wire) -> None:
    question = b"12345678what?"
    [(key, body, signature)] = answered(wire, question, lambda asked: asked + b" that!").replies
    assert (key, body) == (f"sk/v1/node/{ALICE.public_key}/digest", b"what? that!")
    pending = Pending(ALICE.public_key, "digest", question, 100)
    pending.heard(reply(body, signature))
    assert pending.wait() == b"what? that!"


@pytest.mark.parametrize("question", [None, b"", b"1234567"])
def test_a_question_without_a_nonce_is_not_answered(wire: Wire, question: bytes | None) -> None:
    assert answered(wire, question, lambda _: pytest.fail("it was passed on")).replies == []


def test_a_question_without_an_answer_gets_no_reply(wire: Wire) -> None:
    assert answered(wire, b"12345678what?", lambda _: None).replies == []


class TestAReply:
    QUESTION = b"12345678what?"

    @pytest.fixture
    def signature(self, wire: Wire) -> bytes:
        return answered(wire, self.QUESTION, lambda _: b"that").replies[0][2]

    @pytest.fixture
    def pending(self) -> Pending:
        return Pending(ALICE.public_key, "digest", self.QUESTION, 4)

    def test_that_is_invalid_or_not_signed_by_the_agent_asked_is_ignored(self, pending: Pending, signature: bytes):
        pending.heard(SimpleNamespace(ok=None))  # type: ignore[arg-type]
        pending.heard(SimpleNamespace(ok=SimpleNamespace(attachment=None)))  # type: ignore[arg-type]
        pending.heard(reply(b"this", signature))
        pending.heard(reply(b"that", bytes(64)))
        assert not pending._done.is_set()
        pending.heard(reply(b"that", signature))
        assert pending.wait() == b"that"

    def test_is_delivered_once_to_the_waiting_caller(self, pending: Pending, signature: bytes):
        told: list[str] = []
        pending.then(lambda: told.append("soon"))
        pending.heard(reply(b"that", signature))
        pending.heard(reply(b"that", signature))
        pending.over()
        pending.then(lambda: told.append("at once"))
        assert told == ["soon", "at once"]

    def test_that_never_comes_is_an_error(self, pending: Pending):
        pending.over()
        with pytest.raises(NoReplyError, match=f"no reply from {ALICE.public_key[:12]}… to digest"):
            pending.wait()

    def test_that_is_longer_than_allowed_is_refused(self, signature: bytes):
        pending = Pending(ALICE.public_key, "digest", self.QUESTION, 3)
        pending.heard(reply(b"that", signature))
        with pytest.raises(LieError, match="replied to digest with 4 bytes, expected ≤ 3"):
            pending.wait()


class TestWhatComes:
    """It waits in the wire's own queue, not in zenoh."""

    def test_waits_in_bounded_queues(self, wire: Wire, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(wire_module, "close_session", lambda _: None)
        wire.serve({"digest": lambda _: None})
        wire.hear(lambda *_: None)
        assert [inbox.maxsize for inbox in wire._inboxes] == [WAITING_QUESTIONS, WAITING_NOTICES]
        assert min(WAITING_QUESTIONS, WAITING_NOTICES) > 0
        wire.close()

    def test_is_processed_until_the_wire_is_closed(self, wire: Wire, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(wire_module, "close_session", lambda _: None)
        before, heard = set(threading.enumerate()), list[tuple[str, bytes]]()
        wire.hear(lambda *notice: heard.append(notice))
        [taking] = set(threading.enumerate()) - before
        for sender in (BOB.public_key, "no agent"):
            wire._inboxes[0].put(SimpleNamespace(key_expr=f"sk/v1/ann/{sender}", payload=Data(b"news")))
        deadline = time.monotonic() + 60
        while not wire._inboxes[0].empty() and time.monotonic() < deadline:
            time.sleep(0.01)
        wire.close()
        taking.join(60)
        assert not taking.is_alive()
        assert heard == [(BOB.public_key, b"news")]


LEAVES_A_THREAD = """
import sys, threading, time
from skillmesh.mesh import wire
wire.thread("late", lambda: (time.sleep(float(sys.argv[1])), print("ended", flush=True)))
"""


@pytest.mark.parametrize(("seconds", "printed"), [("0.5", "ended\n"), ("60", "")])
def test_a_program_waits_briefly_for_threads_of_the_mesh_when_it_exits(seconds: str, printed: str):
    """Some versions of Python abort when they meet a thread inside zenoh while they exit."""
    command = [sys.executable, "-c", LEAVES_A_THREAD, seconds]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, printed, "")
