"""The other agents as one sees them: whom to ask next, whom to leave alone for a while, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmesh.mesh import peers as peers_module
from skillmesh.mesh.peers import AT_ONCE, FIRST_PIECE, LACKS_FOR, LONGEST_REST, PATIENCE, REST, Peer, Peers
from skillmesh.mesh.protocol import MAX_PIECE, MIN_PIECE, Hello

HELLO = Hello(name="alice", root="ab" * 32, live=3, same=True)


class Clock:
    """Time that passes when it is told to."""

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
    with peers.holder(module, "teacher", shunned) as peer:
        return peer.agent if peer else None


def the(peers: Peers, agent: str) -> Peer:
    found = peers.get(agent)
    assert found is not None
    return found


class TestWhoIsThere:
    def test_to_appear_is_news_once(self, peers: Peers):
        assert peers.appeared("new")
        assert not peers.appeared("new")
        peers.gone("new")
        assert "new" not in {peer.agent for peer in peers.alive()}
        assert "new" in {peer.agent for peer in peers.all()}
        assert peers.appeared("new")

    def test_to_come_back_is_a_fresh_start(self, peers: Peers):
        teacher = the(peers, "teacher")
        peers.failed(teacher)
        peers.lacked(teacher, "module")
        assert asked(peers) != "teacher"
        peers.gone("teacher")
        peers.appeared("teacher")
        assert asked(peers) == "teacher"

    def test_hellos_of_nobody_are_no_matter(self, peers: Peers):
        peers.greeted("nobody", HELLO)
        peers.gone("nobody")
        assert peers.get("nobody") is None


class TestWhomToAsk:
    def test_the_teacher_comes_first(self, peers: Peers):
        assert {asked(peers) for _ in range(20)} == {"teacher"}

    def test_then_anyone_and_those_who_never_replied_last(self, peers: Peers):
        peers.gone("teacher")
        peers.appeared("silent")
        assert {asked(peers) for _ in range(60)} == {"one", "two", "three"}

    def test_not_who_is_gone_or_shunned(self, peers: Peers):
        peers.gone("teacher")
        assert asked(peers, shunned=("one", "two")) == "three"
        assert asked(peers, shunned=("one", "two", "three")) is None

    def test_work_is_spread_over_all_before_anyone_gets_more(self, peers: Peers):
        with ExitStack() as under_way:
            asked_ = [under_way.enter_context(peers.holder("module", "teacher", ())) for _ in range(8)]
            names = [peer.agent for peer in asked_ if peer]
            assert names[0] == names[4] == "teacher"
            assert sorted(names[:4]) == sorted(names[4:]) == ["one", "teacher", "three", "two"]
            assert AT_ONCE == 2

    def test_nobody_is_asked_for_more_than_so_much_at_once(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(peers_module, "PATIENCE", 0.01)
        peers = Peers()
        peers.appeared("teacher")
        with ExitStack() as under_way:
            for _ in range(AT_ONCE):
                assert under_way.enter_context(peers.holder("module", "teacher", ()))
            assert asked(peers) is None
        assert asked(peers) == "teacher"
        assert the(peers, "teacher").busy == 0

    def test_who_is_busy_is_waited_for_a_moment(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(peers_module, "PATIENCE", 30.0)
        peers = Peers()
        peers.appeared("teacher")
        under_way = ExitStack()
        for _ in range(AT_ONCE):
            under_way.enter_context(peers.holder("module", "teacher", ()))
        threading.Timer(0.05, under_way.close).start()
        assert asked(peers) == "teacher"
        assert 0 < PATIENCE < 1

    def test_where_there_is_nobody_there_is_no_waiting(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(peers_module, "PATIENCE", 3600.0)
        assert asked(Peers()) is None

    def test_an_error_while_fetching_frees_the_peer(self, peers: Peers):
        with pytest.raises(OSError, match="broken"), peers.holder("module", "teacher", ()):
            raise OSError("broken")
        assert the(peers, "teacher").busy == 0


class TestWhomToLeaveAlone:
    def test_who_failed_rests_longer_each_time(self, peers: Peers, clock: Clock):
        teacher = the(peers, "teacher")
        for rest in (REST, 2 * REST, 4 * REST):
            peers.failed(teacher)
            clock.now += rest - 0.01
            assert asked(peers, shunned=("one", "two", "three")) is None
            clock.now += 0.02
            assert asked(peers, shunned=("one", "two", "three")) == "teacher"

    def test_but_never_too_long(self, peers: Peers, clock: Clock):
        teacher = the(peers, "teacher")
        for _ in range(3000):  # days of silence
            peers.failed(teacher)
        assert teacher.rests_until == clock.now + LONGEST_REST

    def test_who_failed_comes_after_the_others_until_it_delivers(self, peers: Peers, clock: Clock):
        teacher = the(peers, "teacher")
        peers.failed(teacher)
        clock.now += LONGEST_REST
        assert asked(peers) != "teacher"
        peers.delivered(teacher, 1, 0.5)
        assert asked(peers) == "teacher"
        peers.failed(teacher)
        assert teacher.rests_until == clock.now + REST

    def test_who_lacks_a_module_is_asked_for_others_and_later_for_it(self, peers: Peers, clock: Clock):
        peers.lacked(the(peers, "teacher"), "module")
        assert asked(peers) != "teacher"
        assert asked(peers, "another") == "teacher"
        clock.now += LACKS_FOR + 0.01
        assert asked(peers) == "teacher"


class TestPieceSize:
    def test_grows_on_a_quick_line_and_shrinks_on_a_slow_one(self, peers: Peers):
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

    def test_those_who_never_signed_anything_make_room(self, full: Peers):
        for number in range(100):
            assert full.appeared(f"flood {number}")
        assert len(self.names(full)) == 6
        assert {"one", "two", "three", "teacher"} < self.names(full)

    def test_those_who_are_gone_make_room(self, full: Peers):
        full.greeted("fake 1", HELLO)
        full.greeted("fake 2", HELLO)
        assert not full.appeared("new")
        full.gone("two")
        assert full.appeared("new")
        assert self.names(full) == {"one", "three", "teacher", "fake 1", "fake 2", "new"}

    def test_no_one_is_dropped_in_the_middle_of_a_fetch(self, full: Peers):
        full.greeted("fake 2", HELLO)
        with full.holder("module", "fake 1", ("one", "two", "three", "teacher", "fake 2")) as peer:
            assert peer is not None
            assert not full.appeared("new")
        assert full.appeared("new")
