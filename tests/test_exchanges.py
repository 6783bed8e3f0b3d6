"""Exchanges, step by step: who is asked for what and when, and that nobody who keeps silent delays another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from notices import EVE, announced

from skillmesh.ledger import Ledger
from skillmesh.mesh import sync as sync_module
from skillmesh.mesh.exchanges import Exchanges
from skillmesh.mesh.peers import Peers
from skillmesh.mesh.protocol import DIGEST, NOTICES, Hello, write_digest
from skillmesh.mesh.sync import PATIENCE, Exchange, Sync
from skillmesh.mesh.wire import LieError, NoReplyError, Pending

NEWS = announced(EVE)
LIST = write_digest(Hello(name="someone", root="ab" * 32, live=0, same=False), [NEWS])


class Line:
    """A wire whose questions stay where they are, to be answered by the test."""

    def ask(self, agent: str, verb: str, body: bytes, timeout: float, limit: int) -> Pending:
        return Pending(agent, verb, body, limit)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the time is: tests move it."""
    now = [1000.0]
    monkeypatch.setattr(sync_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", "ab" * 32, open_trust=True)


@pytest.fixture
def peers() -> Peers:
    seen = Peers()
    for agent in ("alice", "bob"):
        seen.appeared(agent)
    return seen


@pytest.fixture
def sync(ledger: Ledger, peers: Peers) -> Sync:
    return Sync(Line, ledger, peers, lambda _: pytest.fail("nobody asks"), lambda: None)  # type: ignore[arg-type]


def verb(pending: Pending) -> str:
    return pending._verb


def greeted(sync: Sync, agent: str, reply: bytes = LIST) -> tuple[Exchange, Pending | float | None]:
    """An exchange whose peer has sent its list, and its next question, or its end."""
    exchange = sync.exchange(agent)
    assert verb(next(exchange)) == DIGEST
    return exchange, answer(exchange, reply)


def answer(exchange: Exchange, reply: bytes) -> Pending | float | None:
    try:
        return exchange.send(reply)
    except StopIteration as end:
        return end.value


def test_news_are_asked_for_and_taken(sync: Sync, ledger: Ledger, peers: Peers, clock: list[float]) -> None:
    exchange, question = greeted(sync, "alice")
    assert isinstance(question, Pending)
    assert verb(question) == NOTICES
    assert answer(exchange, NEWS.encode()) is None
    assert list(ledger.view().known.values()) == [NEWS]
    assert peers.get("alice").level  # type: ignore[union-attr]


def test_what_one_is_being_asked_for_is_asked_of_another_a_little_later(
    sync: Sync, ledger: Ledger, peers: Peers, clock: list[float]
) -> None:
    with_alice, _ = greeted(sync, "alice")
    _, again = greeted(sync, "bob")
    assert again == clock[0] + PATIENCE
    assert not peers.get("bob").level  # type: ignore[union-attr]
    clock[0] = again
    exchange, question = greeted(sync, "bob")
    assert isinstance(question, Pending)
    answer(exchange, NEWS.encode())
    assert list(ledger.view().known.values()) == [NEWS]
    assert answer(with_alice, NEWS.encode()) is None  # late, and no harm


def test_a_crowd_who_show_nothing_cost_no_more_than_twice_the_patience(sync: Sync, clock: list[float]) -> None:
    """The honest one comes last, each time; it is kept waiting, but not in proportion to the crowd."""
    began, under_way = clock[0], []
    for number in range(2_000):
        exchange, again = greeted(sync, f"withholder-{number}")
        under_way.append(exchange)
        if isinstance(again, float):
            clock[0] = again
            exchange, _ = greeted(sync, f"withholder-{number}")
            under_way.append(exchange)
    assert clock[0] <= began + 2 * PATIENCE
    assert isinstance(greeted(sync, "honest")[1], Pending)


def test_who_does_not_show_what_it_listed_rests_and_keeps_nothing_reserved(
    sync: Sync, peers: Peers, clock: list[float]
) -> None:
    exchange, _ = greeted(sync, "alice")
    with pytest.raises(NoReplyError):
        exchange.throw(NoReplyError("no reply"))
    assert [peer.agent for peer in peers.rested()] == ["bob"]
    assert isinstance(greeted(sync, "bob")[1], Pending)


def test_who_does_not_reply_to_a_greeting_is_asked_again_without_a_rest(sync: Sync, peers: Peers) -> None:
    exchange = sync.exchange("alice")
    next(exchange)
    with pytest.raises(NoReplyError):
        exchange.throw(NoReplyError("no reply"))
    assert len(peers.rested()) == 2


def test_of_two_who_are_asked_the_one_who_gives_up_leaves_the_other_its_time(
    sync: Sync, clock: list[float]
) -> None:
    first, _ = greeted(sync, "alice")
    clock[0] += PATIENCE
    second, _ = greeted(sync, "bob")
    first.close()
    assert greeted(sync, "carol")[1] == clock[0] + PATIENCE / 2
    second.close()
    assert isinstance(greeted(sync, "carol")[1], Pending)


# Many at once.


@pytest.fixture
def when_over() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


class Ended:
    """What came of exchanges, and waiting for it."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception | None] = {}
        self._news = threading.Condition()

    def __call__(self, agent: str, error: Exception | None) -> None:
        with self._news:
            self.errors[agent] = error
            self._news.notify_all()

    def of(self, agent: str) -> Exception | None:
        with self._news:
            assert self._news.wait_for(lambda: agent in self.errors, 10), f"the exchange with {agent} goes on"
            return self.errors[agent]


def asking(questions: dict[str, Pending], again: float | None = None):
    def exchange(agent: str) -> Exchange:
        questions[agent] = Pending(agent, DIGEST, b"", 10)
        assert (yield questions[agent]) == b"fine"
        return again

    return exchange


def reply(pending: Pending, body: bytes | None) -> None:
    pending._reply = body
    pending.over()


def test_the_silent_however_many_keep_nobody_waiting(when_over: contextlib.ExitStack) -> None:
    questions: dict[str, Pending] = {}
    ended = Ended()
    exchanges = Exchanges(asking(questions), ended)
    exchanges.start(when_over)
    for number in range(500):
        exchanges.begin(f"silent-{number}")
    exchanges.begin("honest")
    reply(questions["honest"], b"fine")
    assert ended.of("honest") is None
    reply(questions["silent-7"], None)
    assert isinstance(ended.of("silent-7"), NoReplyError)


def test_what_goes_wrong_ends_one_exchange_and_another_can_begin(when_over: contextlib.ExitStack) -> None:
    questions: dict[str, Pending] = {}
    ended = Ended()
    exchanges = Exchanges(asking(questions), ended)
    exchanges.start(when_over)
    for body, expected in ((b"more than may be", LieError), (b"wrong", AssertionError), (b"fine", type(None))):
        exchanges.begin("alice")
        reply(questions["alice"], body)
        assert isinstance(ended.of("alice"), expected)
        ended.errors.clear()


def test_one_peer_is_not_asked_twice_at_once(when_over: contextlib.ExitStack) -> None:
    questions: dict[str, Pending] = {}
    exchanges = Exchanges(asking(questions), Ended())
    exchanges.start(when_over)
    exchanges.begin("alice")
    first = questions.pop("alice")
    exchanges.begin("alice")
    assert questions == {}
    assert not first.replied


def test_who_was_put_off_is_due_when_its_turn_comes(when_over: contextlib.ExitStack, clock: list[float]) -> None:
    questions: dict[str, Pending] = {}
    ended = Ended()
    exchanges = Exchanges(asking(questions, again=clock[0] + 1), ended)
    exchanges.start(when_over)
    exchanges.begin("alice")
    reply(questions["alice"], b"fine")
    ended.of("alice")
    assert exchanges.due() == []
    clock[0] += 1
    assert exchanges.due() == ["alice"]
    assert exchanges.due() == []
