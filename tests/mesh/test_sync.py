"""How an agent handles announcements."""

from __future__ import annotations

from pathlib import Path

import pytest
from notices import ALICE, BOB, EVE, announced

from skillmesh.mesh import sync as sync_module
from skillmesh.mesh.membership import Peers
from skillmesh.mesh.sync import HEARD_AT_ONCE, HEARD_PER_SECOND, RUSH, Sync
from skillmesh.mesh.wire import Hello, read_digest, short
from skillmesh.module import notice as notice_module
from skillmesh.module.notice import link, withdraw
from skillmesh.store.ledger import Ledger, LedgerView


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", "ab" * 32, open_trust=True)


def there(*agents: str) -> Peers:
    """Return peers that have said hello."""
    peers = Peers()
    for agent in agents:
        peers.appeared(agent)
        peers.greeted(agent, Hello(name="someone", root="ab" * 32, live=0, same=False))
    return peers


def listening(ledger: Ledger, peers: Peers) -> Sync:
    return Sync(
        lambda: pytest.fail("no peer is asked"), ledger, peers, lambda _: pytest.fail("no hello"), lambda: None
    )


@pytest.fixture
def sync(ledger: Ledger) -> Sync:
    return listening(ledger, there(ALICE.public_key, BOB.public_key))


def test_announcements_of_an_absent_teacher_count_only_if_the_user_listed_it(ledger: Ledger) -> None:
    peers = there(ALICE.public_key)
    peers.appeared(BOB.public_key)  # present, but without anything signed
    sync = listening(ledger, peers)
    for teacher, heard in ((ALICE, 1), (BOB, 0), (EVE, 0)):
        sync.hear(teacher.public_key, announced(teacher).encode())
        assert len(sync.take_heard()) == heard
    ledger.trust(EVE.public_key)
    sync.take_heard()
    sync.hear(EVE.public_key, announced(EVE).encode())
    assert len(sync.take_heard()) == 1


def test_an_announcement_of_a_teacher_is_added_to_the_ledger(sync: Sync, ledger: Ledger) -> None:
    notices = [announced(ALICE, "dice"), announced(ALICE, "latin"), announced(BOB, "dice")]
    for notice in notices:
        sync.hear(notice.teacher_key, notice.encode())
    assert sync.take_heard() == notices
    assert set(ledger.view().known.values()) == set(notices)


def test_a_replayed_notice_is_not_new_and_counts_against_no_teacher(sync: Sync, ledger: Ledger) -> None:
    first, second = announced(ALICE, version=1), announced(ALICE, version=2)
    ledger.merge([second], "alice")
    for notice in (first, second, first, second):
        sync.hear(ALICE.public_key, notice.encode())
    assert sync.take_heard() == []


def test_a_notice_announced_twice_at_once_counts_once(sync: Sync) -> None:
    notice = announced(ALICE)
    for _ in range(5):
        sync.hear(ALICE.public_key, notice.encode())
    assert sync.take_heard() == [notice]


def test_an_agent_cannot_announce_for_another_teacher(sync: Sync, ledger: Ledger) -> None:
    sync.hear(BOB.public_key, announced(ALICE).encode())
    sync.hear(ALICE.public_key, withdraw("dice", 9, BOB).encode())
    sync.hear(ALICE.public_key, b"junk")
    assert sync.take_heard() == []
    assert ledger.view().known == {}


def test_announcements_of_banned_agents_are_ignored(sync: Sync, ledger: Ledger) -> None:
    ledger.ban(ALICE.public_key, "it lied")
    sync.hear(ALICE.public_key, announced(ALICE).encode())
    assert sync.take_heard() == []


def test_if_the_ledger_is_full_only_trusted_teachers_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "listed.sqlite", "ab" * 32)
    ledger.trust(ALICE.public_key)
    sync = listening(ledger, there(ALICE.public_key, BOB.public_key))
    for room, heard in ((1, {ALICE.public_key, BOB.public_key}), (0, {ALICE.public_key})):
        monkeypatch.setattr(sync_module, "MAX_SEEN", room)
        for teacher in (ALICE, BOB):
            sync.hear(teacher.public_key, announced(teacher, f"task {room}").encode())
        assert {notice.teacher_key for notice in sync.take_heard()} == heard


def test_most_messages_of_a_flood_are_dropped(sync: Sync) -> None:
    for _ in range(HEARD_AT_ONCE):
        sync.hear(BOB.public_key, b"junk")
    sync.hear(ALICE.public_key, announced(ALICE).encode())
    assert sync.take_heard() == []
    sync.hear(ALICE.public_key, announced(ALICE).encode())
    assert len(sync.take_heard()) == 1


# Links, beside agents of releases that do not know them.


PAIR = ["a" * 64, "b" * 64]


def hello(view: LedgerView) -> Hello:
    return Hello(name="ann", root=view.root, live=0, same=False)


def listing(ledger: Ledger) -> Sync:
    return Sync(lambda: pytest.fail("no peer is asked"), ledger, Peers(), hello, lambda: None)


def test_an_older_release_gets_no_links_because_it_would_refuse_them(ledger: Ledger) -> None:
    module, made = announced(ALICE), link("dice", 1, PAIR, BOB)
    ledger.merge([module, made], "someone")
    view = ledger.view()
    asks_once, asks_both = bytes(32), bytes(64)
    sync = listing(ledger)
    assert read_digest(sync.answer_digest(asks_once)).inventory == {short(module)}
    assert read_digest(sync.answer_digest(asks_both)).inventory == {short(module), short(made)}
    old, new = bytes.fromhex(view.root), bytes.fromhex(view.root + view.links_root)
    assert read_digest(sync.answer_digest(old)).hello.same
    assert read_digest(sync.answer_digest(new)).hello.same
    assert not read_digest(sync.answer_digest(old + bytes(32))).hello.same
    assert sync.answer_notices(short(made)) == made.encode()


def test_a_link_is_accepted_and_an_older_release_ignores_it(
    sync: Sync, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = link("dice", 1, PAIR, ALICE)
    with monkeypatch.context() as older:
        older.delitem(notice_module._KINDS, "link")
        sync.hear(ALICE.public_key, made.encode())
        assert sync.take_heard() == []
    sync.hear(ALICE.public_key, made.encode())
    assert sync.take_heard() == [made]
    assert list(ledger.view().links.values()) == [made]
    assert ledger.view().bans == {}


def test_a_flood_under_many_keys_is_rate_limited_and_listed_teachers_are_still_accepted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(sync_module.time, "monotonic", lambda: now[0])
    ledger.trust(ALICE.public_key)
    crowd = [f"{number:064x}" for number in range(1000)]
    sync = listening(ledger, there(*crowd))
    sync.take_heard()
    taken = 0
    for second in range(8):
        for agent in crowd:
            sync.hear(agent, b"no notice")
        sync.hear(ALICE.public_key, announced(ALICE, f"task {second}").encode())
        taken += len(sync._announcements)
        news = sync.take_heard()
        assert news or second < 3  # at the very first all places are taken
        now[0] += 1.0
    assert taken <= RUSH + 8 * (HEARD_PER_SECOND + 1)
