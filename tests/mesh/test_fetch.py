"""Fetching a file among peers of every kind: it arrives, and few questions are wasted on other peers."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from notices import ALICE, announced

from skillmesh.mesh import fetch as fetch_module
from skillmesh.mesh import membership
from skillmesh.mesh.fetch import Fetcher, NobodyError
from skillmesh.mesh.membership import Peers
from skillmesh.mesh.shelf import Partial
from skillmesh.mesh.wire import Hello, Pending, asked_piece, write_piece
from skillmesh.module.notice import Announcement

HELLO = Hello(name="someone", root="ab" * 32, live=3, same=False)
Answer = Callable[[bytes, int, int], bytes | None]
"""Returns the reply for a piece of a file; None means that no reply comes."""


def honest(data: bytes, offset: int, length: int) -> bytes | None:
    return write_piece(data[offset : offset + length])


def silent(_data: bytes, _offset: int, _length: int) -> bytes | None:
    return None


def at_the_last_moment(data: bytes, offset: int, length: int) -> bytes | None:
    time.sleep(0.9 * fetch_module.FIRST_TIMEOUT)
    return honest(data, offset, length)


def lacking(_data: bytes, _offset: int, _length: int) -> bytes | None:
    return write_piece(None)


def lying(data: bytes, offset: int, length: int) -> bytes | None:
    return write_piece(bytes(len(data[offset : offset + length])))


def too_short(data: bytes, offset: int, length: int) -> bytes | None:
    return write_piece(data[offset : offset + length][:9])


class Town:
    """Peers with their ways of answering, the files to fetch, and a fake wire between them."""

    def __init__(self, folder: Path) -> None:
        self.peers, self.files = Peers(), dict[str, bytes]()
        self.answers: dict[str, Answer] = {}
        self.asked: Counter[str] = Counter()
        self.banned: set[str] = set()
        self.fetcher = Fetcher(lambda: self, self.peers, folder, self.blame, lambda: self.banned)  # type: ignore[arg-type,return-value]

    def add(self, agent: str, answer: Answer, greeted: bool = True) -> None:
        self.answers[agent] = answer
        self.peers.appeared(agent)
        if greeted:
            self.peers.greeted(agent, HELLO)

    def blame(self, agent: str, _reason: str) -> None:
        self.banned.add(agent)

    def announce(self, size: int) -> Announcement:
        data = os.urandom(size)
        announcement = announced(ALICE, task=f"task {len(self.files)}", data=data)
        self.files[announcement.digest] = data
        return announcement

    def ask(self, agent: str, verb: str, body: bytes, timeout: float, limit: int, bulk: bool = False) -> Pending:
        """Send a question, as a wire does; a separate thread answers it."""
        pending = Pending(agent, verb, body, limit)
        self.asked[agent] += 1
        threading.Thread(target=self._answer, args=(pending, agent, body, timeout), daemon=True).start()
        return pending

    def _answer(self, pending: Pending, agent: str, body: bytes, timeout: float) -> None:
        digest, offset, length = asked_piece(body) or pytest.fail("a strange question")
        reply = self.answers[agent](self.files[digest], offset, length)
        if reply is None:
            time.sleep(timeout)
        pending._reply = reply
        pending.over()

    def fetch(self, *announcements: Announcement, seconds: float = 20.0) -> list[bytes | Exception]:
        """Fetch these files at once and return the outcomes."""
        outcomes: queue.SimpleQueue[tuple[int, Partial | Exception]] = queue.SimpleQueue()
        for index, announcement in enumerate(announcements):
            self.fetcher.fetch(announcement, lambda outcome, index=index: outcomes.put((index, outcome)))
        deadline = time.monotonic() + seconds
        found = dict(outcomes.get(timeout=max(deadline - time.monotonic(), 0.01)) for _ in announcements)
        return [one.read() if isinstance(one, Partial) else one for _, one in sorted(found.items())]


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with contextlib.ExitStack() as over:
        made = Town(tmp_path)
        made.fetcher.start(over)
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all waits ten times shorter, to speed up the tests."""
    for name in ("TIMEOUT", "FIRST_TIMEOUT", "HEDGE", "LOOK"):
        monkeypatch.setattr(fetch_module, name, getattr(fetch_module, name) / 10)


def test_a_file_is_fetched_from_a_peer_that_has_it(town: Town) -> None:
    town.add("alice", honest)
    wanted = town.announce(700_000)
    assert town.fetch(wanted) == [town.files[wanted.digest]]
    assert town.peers.get("alice").busy == 0  # type: ignore[union-attr]
    assert town.fetcher.bytes_fetched == 700_000


def test_peers_that_never_signed_a_hello_are_not_asked(town: Town) -> None:
    for number in range(200):
        town.add(f"ghost {number}", silent, greeted=False)
    town.add("alice", honest)
    wanted = [town.announce(96_000) for _ in range(12)]
    assert town.fetch(*wanted) == [town.files[one.digest] for one in wanted]
    assert set(town.asked) == {"alice"}


def test_a_silent_peer_rests_after_one_question_or_two_at_once(
    town: Town, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any number of modules; afterwards, a peer that has them is asked alone."""
    monkeypatch.setattr(membership, "REST", 60.0)  # also on a busy machine, no rest ends during the test
    for number in range(200):
        town.add(f"sybil {number}", silent)
    wanted = [town.announce(96_000) for _ in range(12)]
    assert all(isinstance(outcome, NobodyError) for outcome in town.fetch(*wanted))
    assert set(town.asked) == set(town.answers)
    assert max(town.asked.values()) <= membership.AT_ONCE
    in_vain = town.asked.total()
    town.add("heir", honest)
    assert town.fetch(*wanted) == [town.files[one.digest] for one in wanted]
    assert town.asked.total() - town.asked["heir"] == in_vain


@pytest.mark.parametrize("answer", [silent, at_the_last_moment, lacking, lying, too_short])
def test_few_questions_are_wasted_on_many_peers_that_do_not_deliver(
    town: Town, quick: None, answer: Answer
) -> None:
    """This holds for any number of modules and any way in which the others answer."""
    for number in range(200):
        town.add(f"sybil {number}", answer)
    town.add("heir", honest)
    wanted = [town.announce(96_000) for _ in range(12)]
    began = time.monotonic()
    assert town.fetch(*wanted) == [town.files[one.digest] for one in wanted]
    asked = [count for agent, count in town.asked.items() if agent != "heir"]
    if answer is silent:
        # A peer that another one overtakes does not rest until the third time, when two questions may be open.
        assert max(asked) <= membership.IN_VAIN + membership.AT_ONCE - 1
    else:
        assert sum(asked) <= (len(wanted) if answer is lacking else 2) * 200
    assert time.monotonic() - began < 20 * fetch_module.FIRST_TIMEOUT


def test_a_peer_that_delivered_and_then_stays_silent_costs_one_more_question(town: Town, quick: None) -> None:
    town.add("turncoat", honest)
    first, second = town.announce(90_000), town.announce(90_000)
    town.fetch(first)
    town.add("turncoat", silent)
    town.add("heir", honest)
    assert town.fetch(second) == [town.files[second.digest]]
    assert town.asked["turncoat"] <= 4


def test_few_of_many_others_are_asked_beside_a_slow_peer_that_has_delivered(town: Town, quick: None) -> None:
    """Asking hundreds would make both ends slower still."""
    town.add("holder", honest)
    first, second = town.announce(30_000), town.announce(30_000)
    town.fetch(first)

    def slow(data: bytes, offset: int, length: int) -> bytes | None:
        time.sleep(0.8 * fetch_module.TIMEOUT)
        return honest(data, offset, length)

    town.add("holder", slow)
    for number in range(100):
        town.add(f"pretends {number}", silent)
    assert town.fetch(second) == [town.files[second.digest]]
    asked = sum(count for agent, count in town.asked.items() if agent.startswith("pretends"))
    assert 0 < asked < 3 * fetch_module.BESIDE_PROVEN


def test_two_peers_on_slow_connections_do_not_cancel_each_other(town: Town, quick: None) -> None:
    """A late piece still counts: asking a second peer does not cancel the first."""

    def slow(data: bytes, offset: int, length: int) -> bytes | None:
        time.sleep(0.6 * fetch_module.TIMEOUT * length / 32_768)
        return honest(data, offset, length)

    town.add("one", slow)
    town.add("two", slow)
    wanted = town.announce(70_000)
    for _ in range(10):
        [outcome] = town.fetch(wanted, seconds=60)
        if not isinstance(outcome, Exception):
            break
        assert isinstance(outcome, NobodyError)
        time.sleep(0.3)
        for agent in ("one", "two"):
            town.peers.get(agent).rests_until = 0.0  # type: ignore[union-attr]
    assert outcome == town.files[wanted.digest]


def test_a_peer_found_to_deliver_is_asked_immediately_beside_silent_ones(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not have to wait for the timeout of the silent peers."""
    monkeypatch.setattr(fetch_module, "HEDGE", 600.0)
    monkeypatch.setattr(fetch_module, "FIRST_TIMEOUT", 600.0)
    first, second = town.announce(90_000), town.announce(90_000)
    town.add("ghost", lambda data, *_: None if data == town.files[first.digest] else write_piece(None))
    outcomes: queue.SimpleQueue[Partial | Exception] = queue.SimpleQueue()
    town.fetcher.fetch(first, outcomes.put)
    deadline = time.monotonic() + 60
    while not town.asked["ghost"] and time.monotonic() < deadline:
        time.sleep(0.02)
    town.add("heir", honest)
    assert town.fetch(second, seconds=60) == [town.files[second.digest]]
    whole = outcomes.get(timeout=60)
    assert isinstance(whole, Partial)
    assert whole.read() == town.files[first.digest]


def test_a_file_that_no_peer_has_is_reported_and_takes_no_disk_space(
    town: Town, quick: None, tmp_path: Path
) -> None:
    town.add("alice", lacking)
    town.add("bob", silent)
    [outcome] = town.fetch(town.announce(5_000_000))
    assert isinstance(outcome, NobodyError)
    assert list(tmp_path.iterdir()) == []
    assert [peer.busy for peer in town.peers.all()] == [0, 0]


def test_files_beyond_a_peers_limit_wait_for_it(town: Town) -> None:
    """A busy peer that has the file does not count as none having it."""
    town.add("alice", honest)
    wanted = [town.announce(40_000) for _ in range(60)]
    assert town.fetch(*wanted) == [town.files[one.digest] for one in wanted]


def test_a_file_too_large_for_the_disk_is_not_requested(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.add("alice", honest)
    fits, does_not = town.announce(100_000), town.announce(100_001)
    monkeypatch.setattr(fetch_module.os, "statvfs", lambda _: SimpleNamespace(f_bavail=100, f_frsize=1000))
    assert town.fetch(fits) == [town.files[fits.digest]]
    asked = town.asked["alice"]
    (outcome,) = town.fetch(does_not)
    assert isinstance(outcome, OSError)
    assert outcome.errno == errno.ENOSPC
    assert town.asked["alice"] == asked


def test_a_disk_that_fails_ends_the_fetch_with_its_error(town: Town, tmp_path: Path) -> None:
    town.add("alice", honest)
    wanted = town.announce(40_000)
    (tmp_path / wanted.digest).mkdir()
    [outcome] = town.fetch(wanted)
    assert isinstance(outcome, OSError)
