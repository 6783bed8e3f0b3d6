"""Peers of one agent: which to ask next, which to leave alone for a while, and for how long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmesh.mesh import membership as peers_module
from skillmesh.mesh.membership import (
    AT_ONCE,
    FIRST_PIECE,
    IN_VAIN,
    LACKS_FOR,
    LONGEST_REST,
    REST,
    SILENCE,
    Peer,
    Peers,
)
from skillmesh.mesh.wire import MAX_PIECE, MIN_PIECE, Hello

HELLO = Hello(name="alice", root="ab" * 32, live=3, same=True)


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(peers_module, "time", made)
    return made


@pytest.fixture
def peers(clock: Clock) -> Peers:
    """The teacher and three others, all of whom have said hello."""
    made = Peers()
    for agent in ("one", "two", "teacher", "three"):
        made.appeared(agent)
        made.greeted(agent, HELLO)
    return made


def asked(peers: Peers, module: str = "module", shunned: tuple[str, ...] = ()) -> str | None:
    peer = peers.take(module, "teacher", shunned)
    if peer is not None:
        peers.free(peer)
    return peer.agent if peer else None


def the(peers: Peers, agent: str) -> Peer:
    found = peers.get(agent)
    assert found is not None
    return found


class TestWhoIsThere:
    def test_appearing_is_reported_once(self, peers: Peers):
        assert peers.appeared("new")
        assert not peers.appeared("new")
        peers.gone("new")
        assert "new" not in {peer.agent for peer in peers.alive()}
        assert "new" in {peer.agent for peer in peers.all()}
        assert peers.appeared("new")

    def test_the_first_hello_after_appearing_is_reported_once(self, peers: Peers):
        peers.appeared("new")
        assert not peers.newly_greeted("new")
        peers.greeted("new", HELLO)
        assert peers.newly_greeted("new")
        assert not peers.newly_greeted("new")
        assert not peers.newly_greeted("nobody")

    def test_coming_back_resets_a_peer(self, peers: Peers):
        teacher = the(peers, "teacher")
        peers.failed(teacher)
        peers.lacked(teacher, "module")
        assert asked(peers) != "teacher"
        peers.gone("teacher")
        peers.appeared("teacher")
        assert asked(peers) == "teacher"

    def test_a_peer_without_a_hello_counts_as_silent_after_a_while(self, peers: Peers, clock: Clock):
        peers.appeared("mute")
        clock.now += SILENCE
        assert not the(peers, "mute").silent
        clock.now += 0.01
        assert the(peers, "mute").silent
        assert not the(peers, "teacher").silent

    def test_hellos_of_unknown_agents_are_ignored(self, peers: Peers):
        peers.greeted("nobody", HELLO)
        peers.gone("nobody")
        assert peers.get("nobody") is None


class TestWhomToAsk:
    def test_the_teacher_comes_first(self, peers: Peers):
        assert {asked(peers) for _ in range(20)} == {"teacher"}

    def test_any_peer_that_has_said_hello_is_next(self, peers: Peers):
        peers.gone("teacher")
        peers.appeared("silent")
        assert {asked(peers) for _ in range(60)} == {"one", "two", "three"}

    def test_peers_that_have_signed_nothing_are_never_asked(self):
        peers = Peers()
        for number in range(200):
            peers.appeared(f"ghost {number}")
        assert asked(peers) is None
        assert not peers.may_have("module", ())
        peers.greeted("ghost 7", HELLO)
        assert asked(peers) == "ghost 7"

    def test_a_peer_that_delivered_comes_before_one_that_only_said_hello(self, peers: Peers):
        peers.gone("teacher")
        peers.delivered(the(peers, "two"), 1, 0.01)
        assert {asked(peers) for _ in range(60)} == {"two"}

    def test_a_peer_that_delivered_slowly_does_not_come_first(self, peers: Peers):
        peers.gone("teacher")
        peers.delivered(the(peers, "two"), 1, 4.0)
        assert {asked(peers) for _ in range(60)} == {"one", "two", "three"}

    def test_a_peer_that_is_gone_or_shunned_is_not_asked(self, peers: Peers):
        peers.gone("teacher")
        assert asked(peers, shunned=("one", "two")) == "three"
        assert asked(peers, shunned=("one", "two", "three")) is None

    def test_requests_are_spread_over_all_peers_first(self, peers: Peers):
        names = [peer.agent for _ in range(8) if (peer := peers.take("module", "teacher", ()))]
        assert names[0] == names[4] == "teacher"
        assert sorted(names[:4]) == sorted(names[4:]) == ["one", "teacher", "three", "two"]
        assert AT_ONCE == 2

    def test_no_peer_is_asked_for_more_than_the_limit_at_once(self, peers: Peers):
        others = ("one", "two", "three")
        taken = [peers.take("module", "teacher", others) for _ in range(AT_ONCE)]
        assert asked(peers, shunned=others) is None
        assert peers.may_have("module", others)  # so that the caller can wait for it
        peers.free(the(peers, "teacher"))
        assert asked(peers, shunned=others) == "teacher"
        assert all(taken)

    def test_without_peers_there_is_nothing_to_wait_for(self, peers: Peers):
        assert not Peers().may_have("module", ())
        assert not peers.may_have("module", ("one", "two", "three", "teacher"))


class TestWhomToLeaveAlone:
    def test_a_peer_that_failed_is_left_alone_longer_each_time(self, peers: Peers, clock: Clock):
        teacher = the(peers, "teacher")
        for rest in (REST, 2 * REST, 4 * REST):
            peers.failed(teacher)
            clock.now += rest - 0.01
            assert asked(peers, shunned=("one", "two", "three")) is None
            clock.now += 0.02
            assert asked(peers, shunned=("one", "two", "three")) == "teacher"

    def test_the_pause_after_failures_has_a_maximum(self, peers: Peers, clock: Clock):
        teacher = the(peers, "teacher")
        for _ in range(3000):  # days of silence
            peers.failed(teacher)
        assert teacher.rests_until == clock.now + LONGEST_REST

    def test_a_peer_that_failed_comes_after_the_others_until_it_delivers(self, peers: Peers, clock: Clock):
        teacher = the(peers, "teacher")
        peers.failed(teacher)
        clock.now += LONGEST_REST
        assert asked(peers) != "teacher"
        peers.delivered(teacher, 1, 0.5)
        assert asked(peers) == "teacher"
        peers.failed(teacher)
        assert teacher.rests_until == clock.now + REST

    def test_a_peer_that_lacks_a_module_is_asked_for_others_and_later_for_it(self, peers: Peers, clock: Clock):
        peers.lacked(the(peers, "teacher"), "module")
        assert asked(peers) != "teacher"
        assert asked(peers, "another") == "teacher"
        clock.now += LACKS_FOR + 0.01
        assert asked(peers) == "teacher"

    def test_a_peer_that_was_put_off_is_asked_when_due_and_not_too_often(self, peers: Peers, clock: Clock):
        def due() -> list[str]:
            return [peer.agent for peer in peers.whose_turn()]

        assert due() == []
        peers.put_off("one", clock.now + 5)
        clock.now += 4.99
        assert due() == []
        clock.now += 0.01
        assert due() == ["one"]
        assert due() == []
        peers.put_off("one", clock.now + 1)  # again, at once: it waits until ten seconds are over
        clock.now += 9.99
        assert due() == []
        clock.now += 0.01
        assert due() == ["one"]
        peers.put_off("two", clock.now)
        peers.gone("two")
        assert due() == []


class TestPieceSize:
    def test_grows_on_a_fast_connection_and_shrinks_on_a_slow_one(self, peers: Peers):
        teacher = the(peers, "teacher")
        assert teacher.piece == FIRST_PIECE
        peers.delivered(teacher, teacher.piece, 0.01)
        assert teacher.piece == 2 * FIRST_PIECE
        peers.delivered(teacher, teacher.piece, 0.5)
        assert teacher.piece == 2 * FIRST_PIECE
        peers.delivered(teacher, teacher.piece, 5.0)
        assert teacher.piece == FIRST_PIECE

    def test_is_not_judged_by_the_short_end_of_a_file(self, peers: Peers):
        teacher = the(peers, "teacher")
        peers.delivered(teacher, 100, 0.001)
        assert teacher.piece == FIRST_PIECE

    def test_begins_small_again_after_a_failure(self, peers: Peers):
        peers.failed(the(peers, "teacher"))
        assert the(peers, "teacher").piece == MIN_PIECE

    @given(st.lists(st.none() | st.floats(0, 20)))
    def test_stays_in_bounds_whatever_happens(self, times: list[float | None]):
        peers = Peers()
        peers.appeared("one")
        one = the(peers, "one")
        for seconds in times:
            if seconds is None:
                peers.failed(one)
            else:
                peers.delivered(one, one.piece, seconds)
            assert MIN_PIECE <= one.piece <= MAX_PIECE
            assert one.piece % MIN_PIECE == 0


class TestTooMany:
    @pytest.fixture
    def full(self, peers: Peers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peers]:
        monkeypatch.setattr(peers_module, "MAX_PEERS", 6)
        peers.appeared("fake 1")
        peers.appeared("fake 2")
        return peers

    def names(self, peers: Peers) -> set[str]:
        return {peer.agent for peer in peers.all()}

    def test_peers_that_never_signed_anything_are_dropped_first(self, full: Peers):
        for number in range(100):
            assert full.appeared(f"flood {number}")
        assert len(self.names(full)) == 6
        assert {"one", "two", "three", "teacher"} < self.names(full)

    def test_peers_that_are_gone_are_dropped(self, full: Peers):
        full.greeted("fake 1", HELLO)
        full.greeted("fake 2", HELLO)
        assert not full.appeared("new")
        full.gone("two")
        assert full.appeared("new")
        assert self.names(full) == {"one", "three", "teacher", "fake 1", "fake 2", "new"}

    def test_peers_that_only_caused_timeouts_are_dropped(self, full: Peers):
        for agent in ("fake 1", "fake 2"):
            full.greeted(agent, HELLO)
            for _ in range(IN_VAIN):
                full.failed(the(full, agent))
        full.delivered(the(full, "fake 2"), 1, 0.1)
        assert full.appeared("new")
        full.greeted("new", HELLO)
        assert self.names(full) == {"one", "two", "three", "teacher", "fake 2", "new"}
        assert not full.appeared("another")

    def test_a_peer_that_failed_for_a_while_is_dropped_after_those_gone_or_silent(self, full: Peers):
        """It would not appear again, since it never left the mesh."""
        for _ in range(IN_VAIN):
            full.failed(the(full, "one"))
        full.greeted("fake 1", HELLO)
        full.gone("fake 1")
        assert full.appeared("new 1")
        assert self.names(full) == {"one", "two", "three", "teacher", "fake 2", "new 1"}
        assert full.appeared("new 2")
        assert self.names(full) == {"one", "two", "three", "teacher", "new 1", "new 2"}

    def test_no_peer_is_dropped_during_a_fetch(self, full: Peers):
        full.greeted("fake 1", HELLO)
        full.greeted("fake 2", HELLO)
        peer = full.take("module", "fake 1", ("one", "two", "three", "teacher", "fake 2"))
        assert peer is not None
        full.gone("fake 1")
        assert not full.appeared("new")
        full.free(peer)
        assert full.appeared("new")


def test_a_peer_that_is_repeatedly_slower_than_others_counts_as_failed(peers: Peers):
    slow = the(peers, "one")
    for times in range(1, IN_VAIN):
        peers.overtaken(slow)
        assert (slow.unanswered, slow.failures) == (times, 0)
    peers.overtaken(slow)
    assert (slow.unanswered, slow.failures) == (0, 1)
    assert slow not in peers.rested()
