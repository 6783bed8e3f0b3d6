"""Strangers with any number of keys can make an agent store only a bounded amount."""

from __future__ import annotations

from pathlib import Path

import pytest
from notices import EVE, announced

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.mesh import node as node_module
from skillmesh.mesh import sync as sync_module
from skillmesh.mesh.node import Node
from skillmesh.mesh.wire import Hello, write_digest
from skillmesh.module import Identity
from skillmesh.store import ledger as ledger_module
from skillmesh.store.home import create_home
from skillmesh.store.ledger import BY_USER, Ledger

pytestmark = pytest.mark.long

FEW = 20


def keys(count: int) -> list[str]:
    return [f"{number:064x}" for number in range(count)]


def test_the_latest_bans_and_all_bans_of_listed_teachers_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MAX_BANS", FEW)
    seconds = iter(range(10**6))
    monkeypatch.setattr(ledger_module, "now", lambda: f"{next(seconds):08d}")
    ledger = Ledger(tmp_path / "ledger.sqlite", "ab" * 32)
    ledger.trust(EVE.public_key, "eve")
    ledger.ban(EVE.public_key, "it lied first")
    for key in keys(3 * FEW):
        ledger.ban(key, "it lied")
    assert ledger.view().bans.keys() == {EVE.public_key, *keys(3 * FEW)[-FEW:]}


def test_bans_within_one_second_stay_under_the_limit_and_the_last_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MAX_BANS", FEW)
    monkeypatch.setattr(ledger_module, "now", lambda: "the same second")
    ledger = Ledger(tmp_path / "ledger.sqlite", "ab" * 32)
    for key in keys(3 * FEW):
        ledger.ban(key, "it lied")
        assert key in ledger.view().bans
    assert len(ledger.view().bans) == FEW


def test_the_latest_refusals_and_all_modules_that_the_user_dropped_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MAX_REFUSED", FEW)
    seconds = iter(range(10**6))
    monkeypatch.setattr(ledger_module, "now", lambda: f"{next(seconds):08d}")
    ledger = Ledger(tmp_path / "ledger.sqlite", "ab" * 32)
    ledger.choose("dropped", "refused", f"{BY_USER}; it was held: it takes over dice")
    ledger.choose("held", "held", "it takes over dice")
    for digest in keys(3 * FEW):
        ledger.choose(digest, "refused", "ModuleError: not what was announced")
    assert ledger.view().choices.keys() == {"dropped", "held", *keys(3 * FEW)[-FEW:]}


def test_a_refused_module_stays_refused_while_its_notice_is_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a stranger with more modules of a newer format than the limit would have them fetched for ever."""
    monkeypatch.setattr(ledger_module, "MAX_REFUSED", FEW)
    ledger = Ledger(tmp_path / "ledger.sqlite", "ab" * 32)
    ledger.open_trust = True
    notices = [announced(EVE, f"task {number}") for number in range(3 * FEW)]
    ledger.merge(notices, "eve")
    for notice in notices:
        ledger.choose(notice.digest, "refused", "FormatVersionError: made by a newer release")
    for digest in keys(3 * FEW):
        ledger.choose(digest, "refused", "ModuleError: not what was announced")
    left = ledger.view().choices.keys()
    assert {notice.digest for notice in notices} <= left
    assert len(left) == 4 * FEW


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that trusts everyone and is not started."""
    create_home(tmp_path / "home", name="ann")
    return Node(Core(tmp_path / "home"), MeshSettings(trust="open"))


def test_announcement_counts_are_kept_for_a_limited_number_of_teachers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "MAX_HEARD", FEW)
    for number in range(3 * FEW):
        stranger = Identity("one of many", number.to_bytes(32, "big"))
        node.peers.appeared(stranger.public_key)
        node.peers.greeted(stranger.public_key, Hello(name="one of many", root="0" * 64, live=1, same=False))
        node._sync.hear(stranger.public_key, announced(stranger).encode())
        node._merge_announcements()
        assert stranger.public_key in node._recent
    assert len(node._recent) == FEW


def test_counts_of_unsent_notices_are_kept_for_a_limited_number_of_peers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_module, "MAX_PEERS", FEW)
    monkeypatch.setattr(node._sync, "_ask", lambda *_: None)
    monkeypatch.setattr(sync_module, "PATIENCE", 0.0)
    listed = write_digest(Hello(name="eve", root="0" * 64, live=1, same=False), [announced(EVE)])
    for agent in keys(3 * FEW):
        exchange = node._sync.exchange(agent)
        next(exchange)
        exchange.send(listed)
        with pytest.raises(StopIteration):
            exchange.send(b"")
    assert len(node._sync._empty) == FEW
