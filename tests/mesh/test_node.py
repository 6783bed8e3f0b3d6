"""Single steps of a node's loop, without a mesh."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from notices import BOB, EVE, announced

from skillmesh.common.config import MeshSettings
from skillmesh.core import Core, slot_of
from skillmesh.mesh.node import Node
from skillmesh.mesh.status import _links, node_status
from skillmesh.module import Module
from skillmesh.module.notice import Announcement, Withdrawal, announce, link, withdraw


@pytest.fixture
def node(new_agent: Callable[..., Core], tiny_taught: Core) -> Node:
    """Return the node of a student that trusts Tina and holds her dice as announced."""
    agent = new_agent("student")
    agent.ledger.trust(tiny_taught.identity.public_key, "tina")
    module = tiny_taught.bank.find("dice")
    data = tiny_taught.bank.file_of(module)
    agent.import_bytes(data)
    agent.ledger.merge([announce(module.card, module.id, data, tiny_taught.identity)], "tina")
    return Node(agent, MeshSettings.of({"modules_per_hour": 3}))


@pytest.fixture
def newcomer(new_agent: Callable[..., Core]) -> Node:
    """Return a node that holds nothing."""
    return Node(new_agent("newcomer"), MeshSettings.of({"modules_per_hour": 3}))


def learned(agent: Core, like: Module, **card: Any) -> Module:
    """Put an own module into an agent's bank, like a command that is killed before it announces the module."""
    fields = {"teacher": agent.name, "teacher_key": agent.identity.public_key} | card
    module, data = Module.create(like.card.model_copy(update=fields), like.tensors, agent.identity)
    agent.bank.add(data)
    return module


def tasks(node: Node) -> set[str]:
    return {module.card.task for module in node.agent.bank}


class TestItsOwnModules:
    def test_are_announced_in_every_version(self, node: Node):
        like = node.agent.bank.find("dice")
        for version in (1, 2, 5):
            module = learned(node.agent, like, task="mine", version=version)
            node._step()
            standing = node.agent.ledger.view().at(slot_of(module))
            assert isinstance(standing, Announcement)
            assert (standing.id, standing.version) == (module.id, version)

    def test_are_not_announced_again_once_they_are_withdrawn(self, node: Node):
        like, agent = node.agent.bank.find("dice"), node.agent
        agent.ledger.merge([withdraw("mine", 3, agent.identity)], "student")
        module = learned(agent, like, task="mine", version=3)
        node._step()
        assert isinstance(agent.ledger.view().at(slot_of(module)), Withdrawal)
        assert tasks(node) == {"dice"}

    def test_of_others_are_not_announced(self, node: Node):
        root = node.agent.ledger.view().root
        node._step()
        assert node.agent.ledger.view().root == root


class TestWithdrawals:
    def test_remove_the_module_that_they_name(self, node: Node, tiny_taught: Core):
        node._step()
        assert tasks(node) == {"dice"}  # its announcement is no withdrawal
        node.agent.ledger.merge([withdraw("dice", 1, tiny_taught.identity)], "tina")
        node._step()
        assert tasks(node) == set()

    def test_do_not_affect_newer_versions(self, node: Node, tiny_taught: Core):
        dice = node.agent.bank.find("dice")
        newer, data = Module.create(
            dice.card.model_copy(update={"version": 3}), dice.tensors, tiny_taught.identity
        )
        node.agent.bank.add(data)
        node.agent.ledger.merge([withdraw("dice", 2, tiny_taught.identity)], "tina")
        node._step()
        assert node.agent.bank.find("dice") == newer


class TestItsStatus:
    def test_has_readable_numbers(self, newcomer: Node, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("skillmesh.mesh.status.time.monotonic", lambda: newcomer.began + 12.345)
        newcomer.importing.importer.slowest = 1.23456
        found = node_status(newcomer)
        assert (found["seconds"], found["slowest_import_seconds"]) == (12.3, 1.235)

    def test_gives_the_reason_for_links_without_effect(self, newcomer: Node):
        acts, other = (link(name, 1, ["a" * 64, "b" * 64], newcomer.agent.identity) for name in ("acts", "other"))
        agent = SimpleNamespace(
            merged=lambda: [SimpleNamespace(link=acts)],
            teachers=newcomer.agent.teachers,
            merger=SimpleNamespace(why_not=lambda _: "its parts do not fit"),
        )
        found = [(fact["task"], fact["acts"], fact.get("reason")) for fact in _links(agent, [acts, other])]  # type: ignore[arg-type]
        assert found == [("acts", True, None), ("other", False, "its parts do not fit")]


class TestAFlood:
    """These tests allow three modules an hour."""

    def heard(self, newcomer: Node, monkeypatch: pytest.MonkeyPatch, *notices: Announcement) -> set[str]:
        """Return the agents banned for these announcements."""
        monkeypatch.setattr(newcomer._sync, "take_heard", lambda: list(notices))
        newcomer._merge_announcements()
        return set(newcomer.agent.ledger.view().bans)

    def test_ends_with_a_ban_of_the_teacher(self, newcomer: Node, monkeypatch: pytest.MonkeyPatch):
        some = [announced(BOB, f"task {number}") for number in range(4)]
        assert self.heard(newcomer, monkeypatch, *some[:3]) == set()
        assert self.heard(newcomer, monkeypatch, *some[:3], announced(EVE)) == set()  # the same ones count once
        assert self.heard(newcomer, monkeypatch, some[3]) == {BOB.public_key}

    def test_of_own_modules_is_allowed(self, newcomer: Node, monkeypatch: pytest.MonkeyPatch):
        own = [announced(newcomer.agent.identity, f"task {number}") for number in range(9)]
        assert self.heard(newcomer, monkeypatch, *own) == set()

    def test_counts_only_the_last_hour(self, newcomer: Node, monkeypatch: pytest.MonkeyPatch):
        clock = [10_000.0]
        monkeypatch.setattr("skillmesh.mesh.node.time.monotonic", lambda: clock[0])
        for number in range(8):
            clock[0] += 1210.0  # three within the last hour, including this one
            assert self.heard(newcomer, monkeypatch, announced(BOB, f"task {number}")) == set()
