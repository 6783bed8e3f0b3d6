"""Exchanges, step by step: which peer is asked for what and when, and silent peers delay no other."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from notices import EVE, announced

from skillmesh.mesh import sync as sync_module
from skillmesh.mesh.membership import BETWEEN_TURNS, Peers
from skillmesh.mesh.sync import AT_MOST, MAX_ASKED, PATIENCE, Exchange, Exchanges, Sync
from skillmesh.mesh.wire import DIGEST, NOTICES, Hello, LieError, NoReplyError, Pending, write_digest
from skillmesh.store.ledger import Ledger

HELLO = Hello(name="someone", root="ab" * 32, live=0, same=False)
NEWS = announced(EVE)
LIST = write_digest(HELLO, [NEWS])


class Line:
    """A wire that only records questions, to be answered by the test."""

    def ask(self, agent: str, verb: str, body: bytes, timeout: float, limit: int) -> Pending:
        return Pending(agent, verb, body, limit)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, which tests set."""
    now = [1000.0]
    monkeypatch.setattr(sync_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", "ab" * 32, open_trust=True)


@pytest.fixture
def peers(clock: list[float]) -> Peers:
    seen = Peers()
    for agent in ("alice", "bob"):
        seen.appeared(agent)
    return seen


@pytest.fixture
def sync(ledger: Ledger, peers: Peers) -> Sync:
    return Sync(Line, ledger, peers, lambda _: pytest.fail("no digest is requested"), lambda: None)  # type: ignore[arg-type]


def answer(exchange: Exchange, reply: bytes) -> Pending | None:
    """Return the exchange's next question, or None at its end."""
    try:
        return exchange.send(reply)
    except StopIteration:
        return None


def greeted(sync: Sync, agent: str, reply: bytes = LIST) -> tuple[Exchange, Pending | None]:
    """Return an exchange whose peer has sent its list, and the next question."""
    exchange = sync.exchange(agent)
    assert next(exchange)._verb == DIGEST
    return exchange, answer(exchange, reply)


def level(peers: Peers, agent: str) -> bool:
    peer = peers.get(agent)
    assert peer is not None
    return peer.level


def turns(peers: Peers) -> list[str]:
    return sorted(peer.agent for peer in peers.whose_turn())


def test_unknown_notices_are_requested_and_stored(sync: Sync, ledger: Ledger, peers: Peers) -> None:
    exchange, question = greeted(sync, "alice")
    assert question is not None
    assert question._verb == NOTICES
    assert answer(exchange, NEWS.encode()) is None
    assert list(ledger.view().known.values()) == [NEWS]
    assert level(peers, "alice")


def test_a_notice_requested_from_one_peer_is_requested_from_another_a_little_later(
    sync: Sync, ledger: Ledger, peers: Peers, clock: list[float]
) -> None:
    with_alice, _ = greeted(sync, "alice")
    assert greeted(sync, "bob")[1] is None
    assert not level(peers, "bob")
    assert turns(peers) == []
    clock[0] += PATIENCE
    assert turns(peers) == ["bob"]
    assert turns(peers) == []
    exchange, question = greeted(sync, "bob")
    assert question is not None
    answer(exchange, NEWS.encode())
    assert list(ledger.view().known.values()) == [NEWS]
    assert answer(with_alice, NEWS.encode()) is None  # late, and harmless


@pytest.mark.parametrize("shows", ["nothing, ever", "that it has nothing"])
def test_many_peers_that_list_but_never_send_cause_no_more_delay_than_one(
    sync: Sync, clock: list[float], shows: str
) -> None:
    """They are asked first, one after the other, and each delays as long as it can."""
    under_way = []
    for number in range(50):
        exchange, question = greeted(sync, f"withholder-{number}")
        clock[0] += 0.9 * PATIENCE
        if shows == "nothing, ever":
            under_way.append(exchange)
        elif question is not None:
            answer(exchange, b"")
        asked = greeted(sync, "honest")[1] is not None
        assert asked == (number > 0)


def test_peers_that_keep_listing_the_same_ids_are_asked_only_now_and_then(
    sync: Sync, peers: Peers, clock: list[float]
) -> None:
    turned = 0
    for number in range(100):
        fresh = write_digest(HELLO, [announced(EVE, f"task {number}")])
        for agent in ("alice", "bob"):
            greeted(sync, agent, fresh)
        clock[0] += PATIENCE
        turned += len(turns(peers))
    assert turned == pytest.approx(100 * PATIENCE / BETWEEN_TURNS, abs=2)


@pytest.mark.long
def test_requests_for_invented_ids_are_remembered_up_to_a_limit_and_forgotten(
    sync: Sync, clock: list[float]
) -> None:
    made_up = HELLO.model_dump_json().encode() + b"\n"
    for number in range(MAX_ASKED // AT_MOST + 2):
        ids = b"".join((number * AT_MOST + i).to_bytes(16, "big") for i in range(AT_MOST))
        greeted(sync, f"liar-{number}", made_up + ids)
    assert len(sync._asked) == MAX_ASKED
    assert greeted(sync, "alice")[1] is not None
    assert greeted(sync, "bob")[1] is not None  # at once, since no one has to be asked any more
    clock[0] += 2 * sync_module.ASKED_FOR
    greeted(sync, "alice")
    assert len(sync._asked) == 1


def test_a_peer_that_does_not_send_what_it_listed_is_not_asked_for_a_while(sync: Sync, peers: Peers) -> None:
    exchange, _ = greeted(sync, "alice")
    with pytest.raises(NoReplyError):
        exchange.throw(NoReplyError("no reply"))
    assert [peer.agent for peer in peers.rested()] == ["bob"]


def test_a_peer_that_does_not_reply_to_the_first_question_is_asked_again_without_a_wait(
    sync: Sync, peers: Peers
) -> None:
    exchange = sync.exchange("alice")
    next(exchange)
    with pytest.raises(NoReplyError):
        exchange.throw(NoReplyError("no reply"))
    assert len(peers.rested()) == 2


def test_a_peer_that_sends_only_a_few_notices_at_a_time_is_left_at_the_deadline(
    sync: Sync, ledger: Ledger, clock: list[float]
) -> None:
    news = [announced(EVE, f"task {number}") for number in range(3)]
    exchange, _ = greeted(sync, "alice", write_digest(HELLO, news))
    assert answer(exchange, news[0].encode()) is not None
    clock[0] += 2 * sync_module.TIMEOUT + 1
    assert answer(exchange, news[1].encode()) is None
    assert len(ledger.view().known) == 2


def test_a_peer_that_is_banned_meanwhile_is_not_asked_again(sync: Sync, ledger: Ledger) -> None:
    exchange = sync.exchange("alice")
    next(exchange)
    ledger.ban("alice", "it lied")
    assert answer(exchange, LIST) is None


# Many at once.


@pytest.fixture
def when_over() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


class Ended:
    """Outcomes of exchanges, and a way to wait for them."""

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
            return self.errors.pop(agent)


def asking(questions: dict[str, Pending]) -> Callable[[str], Exchange]:
    def exchange(agent: str) -> Exchange:
        questions[agent] = Pending(agent, DIGEST, b"", 10)
        assert (yield questions[agent]) == b"fine"

    return exchange


def reply(pending: Pending, body: bytes | None) -> None:
    pending._reply = body
    pending.over()


def test_silent_peers_however_many_delay_no_other_exchange(when_over: contextlib.ExitStack) -> None:
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


def test_an_error_ends_one_exchange_and_another_can_begin(when_over: contextlib.ExitStack) -> None:
    questions: dict[str, Pending] = {}
    ended = Ended()
    exchanges = Exchanges(asking(questions), ended)
    exchanges.start(when_over)
    for body, expected in ((b"more than may be", LieError), (b"wrong", AssertionError), (b"fine", type(None))):
        exchanges.begin("alice")
        reply(questions["alice"], body)
        assert isinstance(ended.of("alice"), expected)


def test_one_peer_is_not_asked_twice_at_once(when_over: contextlib.ExitStack) -> None:
    questions: dict[str, Pending] = {}
    exchanges = Exchanges(asking(questions), Ended())
    exchanges.start(when_over)
    exchanges.begin("alice")
    assert questions.pop("alice")
    exchanges.begin("alice")
    assert questions == {}


def test_a_reply_is_freed_once_it_has_been_read(when_over: contextlib.ExitStack) -> None:
    """It may have two megabytes, and would stay in memory until a rare garbage collection."""
    questions: dict[str, Pending] = {}
    ended = Ended()
    exchanges = Exchanges(asking(questions), ended)
    exchanges.start(when_over)
    gc.disable()
    try:
        exchanges.begin("alice")
        alice = weakref.ref(questions["alice"])
        reply(questions.pop("alice"), b"fine")
        ended.of("alice")
        exchanges.begin("bob")  # the last reference is released
        reply(questions["bob"], b"fine")
        ended.of("bob")
        assert alice() is None
    finally:
        gc.enable()
