"""Membership: which agents' addresses are kept, and how lost agents are called again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from notices import ALICE, BOB, EVE

from skillmesh.common.config import MeshSettings
from skillmesh.mesh import membership as membership_module
from skillmesh.mesh.membership import Membership, Peers
from skillmesh.mesh.wire import Hello
from skillmesh.store.ledger import Ledger

Joined = Callable[..., Membership]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", ALICE.public_key)


@pytest.fixture
def peers() -> Peers:
    return Peers()


@pytest.fixture
def member(ledger: Ledger, peers: Peers, tmp_path: Path) -> Joined:
    def make(network: str = "fixed", **given: Any) -> Membership:
        settings = MeshSettings.of({"network": network, **given})
        made = Membership(settings, tmp_path, ALICE, ledger, peers, lambda _: None)
        made._wire = SimpleNamespace(session=None)  # type: ignore[assignment]
        return made

    return make


def greeted(peers: Peers, agent: str, *locators: str) -> str:
    peers.appeared(agent)
    peers.greeted(agent, Hello(name="someone", root="ab" * 32, live=0, locators=locators, same=False))
    return agent


class TestAddresses:
    def test_of_an_agent_that_reported_them_are_kept(self, member: Joined, ledger: Ledger, peers: Peers):
        here = member()
        here.remember(greeted(peers, "bob", "tcp/10.0.0.2:1", "no place"))
        assert ledger.addresses() == {"bob": ["tcp/10.0.0.2:1"]}
        here.remember(greeted(peers, "bob", "tcp/10.0.0.3:1"))
        assert ledger.addresses() == {"bob": ["tcp/10.0.0.3:1"]}

    def test_of_an_agent_that_is_gone_or_reported_none_are_not_kept(
        self, member: Joined, ledger: Ledger, peers: Peers
    ):
        peers.appeared("ghost")
        member().remember("ghost")
        member().remember("nobody")
        assert ledger.addresses() == {}

    def test_are_kept_only_on_a_fixed_network(self, member: Joined, ledger: Ledger, peers: Peers):
        member("lan").remember(greeted(peers, "bob", "tcp/10.0.0.2:1"))
        assert ledger.addresses() == {}

    def test_are_those_of_a_limited_number_of_agents(
        self, member: Joined, ledger: Ledger, peers: Peers, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(membership_module, "MAX_ADDRESSES", 2)
        here = member()
        for number in range(4):
            here.remember(greeted(peers, f"agent {number}", "tcp/10.0.0.2:1"))
        assert list(ledger.addresses()) == ["agent 0", "agent 1"]
        here.remember(greeted(peers, "agent 1", "tcp/10.0.0.3:1"))  # a known agent may move
        assert ledger.addresses()["agent 1"] == ["tcp/10.0.0.3:1"]


class TestTheLost:
    @pytest.fixture
    def called(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return all endpoints that were called."""
        found: list[str] = []
        monkeypatch.setattr(membership_module, "introduce", lambda *given: found.extend(given[3]))
        return found

    def test_are_called_at_each_of_their_addresses_in_turn(
        self, member: Joined, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, called: list[str]
    ):
        monkeypatch.setattr(membership_module, "CALL", 0.0)  # no need to wait
        ledger.note_addresses("bob", ["tcp/10.0.0.2:1", "tcp/10.0.0.2:2"])
        here = member()
        for _ in range(4):
            here._call_lost_peers()
        assert len(called) == 4
        assert called[0] != called[1]
        assert called[2:] == called[:2]

    def test_are_called_less_often_each_time(
        self, member: Joined, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, called: list[str]
    ):
        clock = SimpleNamespace(now=1000.0)
        monkeypatch.setattr(membership_module.time, "monotonic", lambda: clock.now)
        monkeypatch.setattr(membership_module.random, "uniform", lambda low, high: high)
        ledger.note_addresses("bob", ["tcp/10.0.0.2:1"])
        here, times = member(), []
        for clock.now in range(1000, 1200):
            before = len(called)
            here._call_lost_peers()
            times += [clock.now - 1000] * (len(called) - before)
        assert times == [2, 6, 14, 30, 62, 122, 182]

    def test_include_neither_present_nor_banned_agents(
        self, member: Joined, ledger: Ledger, peers: Peers, monkeypatch: pytest.MonkeyPatch, called: list[str]
    ):
        monkeypatch.setattr(membership_module, "CALL", 0.0)
        for number, agent in enumerate((ALICE, BOB, EVE)):
            ledger.note_addresses(agent.public_key, [f"tcp/10.0.0.{number}:1"])
        peers.appeared(ALICE.public_key)
        ledger.ban(BOB.public_key, "it lied")
        member()._call_lost_peers()
        assert called == ["tcp/10.0.0.2:1"]
