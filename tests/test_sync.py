"""What an agent makes of announcements that it hears."""

from __future__ import annotations

from pathlib import Path

import pytest
from notices import ALICE, BOB, announced

from skillmesh.ledger import Ledger, View
from skillmesh.mesh.peers import Peers
from skillmesh.mesh.protocol import Hello, read_digest, short
from skillmesh.mesh.sync import HEARD_AT_ONCE, Sync
from skillmesh.module import notice as notice_module
from skillmesh.module.notice import link, withdraw


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", "ab" * 32, open_trust=True)


@pytest.fixture
def sync(ledger: Ledger) -> Sync:
    return Sync(
        lambda: pytest.fail("nobody is asked"), ledger, Peers(), lambda _: pytest.fail("no hello"), lambda: None
    )


def test_what_a_teacher_announces_is_taken_in(sync: Sync, ledger: Ledger) -> None:
    notices = [announced(ALICE, "dice"), announced(ALICE, "latin"), announced(BOB, "dice")]
    for notice in notices:
        sync.hear(notice.teacher_key, notice.encode())
    assert sync.take_heard() == notices
    assert set(ledger.view().known.values()) == set(notices)


def test_what_is_played_again_is_no_news_and_counts_against_nobody(sync: Sync, ledger: Ledger) -> None:
    first, second = announced(ALICE, version=1), announced(ALICE, version=2)
    ledger.merge([second], "alice")
    for notice in (first, second, first, second):
        sync.hear(ALICE.public_key, notice.encode())
    assert sync.take_heard() == []


def test_what_is_said_twice_at_once_counts_once(sync: Sync) -> None:
    notice = announced(ALICE)
    for _ in range(5):
        sync.hear(ALICE.public_key, notice.encode())
    assert sync.take_heard() == [notice]


def test_another_cannot_announce_in_a_teachers_place(sync: Sync, ledger: Ledger) -> None:
    sync.hear(BOB.public_key, announced(ALICE).encode())
    sync.hear(ALICE.public_key, withdraw("dice", 9, BOB).encode())
    sync.hear(ALICE.public_key, b"junk")
    assert sync.take_heard() == []
    assert ledger.view().known == {}


def test_the_banned_are_not_heard(sync: Sync, ledger: Ledger) -> None:
    ledger.ban(ALICE.public_key, "it lied")
    sync.hear(ALICE.public_key, announced(ALICE).encode())
    assert sync.take_heard() == []


def test_in_a_flood_most_is_dropped(sync: Sync) -> None:
    for _ in range(HEARD_AT_ONCE):
        sync.hear(BOB.public_key, b"junk")
    sync.hear(ALICE.public_key, announced(ALICE).encode())
    assert sync.take_heard() == []
    sync.hear(ALICE.public_key, announced(ALICE).encode())
    assert len(sync.take_heard()) == 1


# Links, beside agents of releases that have never heard of them.


PAIR = ["a" * 64, "b" * 64]


def hello(view: View) -> Hello:
    return Hello(name="ann", root=view.root, live=0, same=False)


def listing(ledger: Ledger) -> Sync:
    return Sync(lambda: pytest.fail("nobody is asked"), ledger, Peers(), hello, lambda: None)


def test_an_older_release_is_told_of_modules_only_since_it_would_take_a_link_for_a_lie(ledger: Ledger) -> None:
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


def test_a_link_is_heard_and_an_older_release_lets_it_pass(
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
