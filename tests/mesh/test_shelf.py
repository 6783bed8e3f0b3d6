"""Files that are not in the bank: being fetched, or held until the user or a newer notice decides."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from notices import ALICE, announced

from skillmesh.core import Core
from skillmesh.errors import AgentError, UnknownTaskError, WithdrawnError
from skillmesh.mesh.shelf import Shelf, distrust, trust
from skillmesh.module import Module
from skillmesh.module.notice import Announcement, announce, withdraw


@pytest.fixture
def agent(new_agent: Callable[..., Core]) -> Core:
    return new_agent("student")


@pytest.fixture
def shelf(agent: Core) -> Shelf:
    return Shelf(agent.home, agent.ledger)


@pytest.fixture
def files(skill_files: dict[str, Path]) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in skill_files.items()}


@pytest.fixture
def tina(tiny_taught: Core) -> str:
    return tiny_taught.identity.public_key


@pytest.fixture
def held(agent: Core, shelf: Shelf, files: dict[str, bytes]) -> Module:
    """Tina's dice, in quarantine."""
    module = agent.bank.check(files["dice"])
    shelf.hold(module.id, files["dice"], "it lies")
    return module


def announced_by(teacher: Core, task: str) -> Announcement:
    module = teacher.bank.find(task)
    return announce(module.card, module.id, teacher.bank.file_of(module), teacher.identity)


def on_disk(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestHolding:
    def test_keeps_file_and_reason_on_disk(self, agent: Core, shelf: Shelf, held: Module, files):
        for there in (shelf, Shelf(agent.home, Core(agent.home).ledger)):
            (found,) = there.held()
            assert (found.module, found.reason) == (held, "it lies")
            assert there.file_of(held.id) == files["dice"]
        assert on_disk(shelf.quarantine) == [f"{held.id}.skill"]
        assert shelf.size == len(files["dice"])
        assert agent.tasks() == []

    def test_fails_on_a_full_disk_without_a_decision(self, agent: Core, shelf: Shelf, files, monkeypatch):
        def fail(self: Path, target: Path) -> Path:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "replace", fail)
        with pytest.raises(AgentError, match=r"cannot write to the quarantine .*: No space left on device"):
            shelf.hold("ab" * 32, files["dice"], "it lies")
        assert on_disk(shelf.quarantine) == []
        assert agent.ledger.view().choices == {}

    def test_a_damaged_file_does_not_hide_others(self, agent: Core, shelf: Shelf, held: Module, files):
        other = agent.bank.check(files["latin"])
        shelf.hold(other.id, files["latin"], "odd")
        (shelf.quarantine / f"{held.id}.skill").write_bytes(files["dice"][:100])
        assert [h.module for h in shelf.held()] == [other]
        shelf.tidy(agent.ledger.view())
        assert agent.ledger.view().choices.keys() == {other.id}  # the damaged one is fetched again
        assert on_disk(shelf.quarantine) == [f"{other.id}.skill"]

    def test_there_is_no_file_for_a_module_that_is_not_held(self, shelf: Shelf):
        assert shelf.file_of("ab" * 32) is None


class TestFinding:
    @pytest.mark.parametrize("name", ["dice", "dice@tina", 8, 64])
    def test_by_task_teacher_or_id(self, agent: Core, shelf: Shelf, held: Module, name: str | int):
        assert shelf.find(held.id[:name] if isinstance(name, int) else name, agent.teachers).module == held

    @pytest.mark.parametrize("name", ["latin", "dice@eve", "", "d", 7])
    def test_an_unknown_name_lists_what_is_held(self, agent: Core, shelf: Shelf, held: Module, name: str | int):
        with pytest.raises(
            UnknownTaskError, match=rf"no module in quarantine matches .*: dice@tina~\w+ \({held.id[:12]}\)"
        ):
            shelf.find(held.id[:name] if isinstance(name, int) else name, agent.teachers)

    def test_an_ambiguous_name_must_be_replaced_by_an_id(self, agent: Core, shelf: Shelf, held: Module, new_agent):
        eve = new_agent("eve")
        card = held.card.model_copy(update={"teacher": "eve", "teacher_key": eve.identity.public_key})
        module, data = Module.create(card, held.tensors, eve.identity)
        shelf.hold(module.id, data, "also")
        with pytest.raises(UnknownTaskError, match="2 modules in quarantine match 'dice'"):
            shelf.find("dice", agent.teachers)
        assert shelf.find("dice@eve", agent.teachers).module == module
        assert [h.module.id for h in shelf.held()] == sorted([module.id, held.id])


class TestDeciding:
    def test_release_adds_the_module_to_the_bank_permanently(self, agent: Core, shelf: Shelf, held: Module):
        assert shelf.release(shelf.find("dice", agent.teachers), agent) == held
        assert agent.tasks() == [held]
        assert agent.ledger.view().choices[held.id].choice == "released"
        assert (shelf.held(), on_disk(shelf.quarantine)) == ([], [])

    def test_release_of_a_module_withdrawn_meanwhile_is_refused(self, agent, shelf, held, tiny_taught):
        agent.ledger.merge([withdraw("dice", 1, tiny_taught.identity)], "tina")
        with pytest.raises(WithdrawnError):
            shelf.release(shelf.find("dice", agent.teachers), agent)
        assert agent.tasks() == []
        assert [h.module for h in shelf.held()] == [held]

    def test_drop_deletes_the_module_permanently(self, agent: Core, shelf: Shelf, held: Module):
        shelf.drop(shelf.find("dice", agent.teachers))
        assert (shelf.held(), on_disk(shelf.quarantine), agent.tasks()) == ([], [], [])
        chosen = agent.ledger.view().choices[held.id]
        assert chosen[:2] == ("refused", "dropped by the user; it was held: it lies")

    def test_try_again_makes_the_module_an_arrival(
        self, agent: Core, shelf: Shelf, held: Module, files, tiny_taught
    ):
        announcement = announced_by(tiny_taught, "dice")
        shelf.try_again(shelf.find("dice", agent.teachers), announcement)
        assert (shelf.partial / announcement.digest).read_bytes() == files["dice"]
        assert agent.ledger.view().choices == {}
        assert (shelf.held(), on_disk(shelf.quarantine)) == ([], [])
        assert shelf.partial_sizes() == {announcement.digest: len(files["dice"])}

    def test_let_go_leaves_no_trace(self, agent: Core, shelf: Shelf, held: Module):
        shelf.let_go(held.id)
        assert agent.ledger.view().choices == {}
        assert on_disk(shelf.quarantine) == []


class TestTidying:
    def test_keeps_current_modules(self, agent: Core, shelf: Shelf, held: Module, tiny_taught: Core, tina: str):
        notices = [announced_by(tiny_taught, task) for task in ("dice", "latin")]
        agent.ledger.trust(tina, "tina")
        agent.ledger.merge(notices, "tina")
        (shelf.partial / notices[1].digest).write_bytes(b"a leaf")
        shelf.tidy(agent.ledger.view())
        assert [h.module for h in shelf.held()] == [held]
        assert on_disk(shelf.partial) == [notices[1].digest]

    def test_removes_partial_files_of_outdated_modules(self, agent: Core, shelf: Shelf):
        first, second = announced(ALICE, data=b"1"), announced(ALICE, version=2, data=b"2")
        agent.ledger.open_trust = True
        for notice in (first, second):
            agent.ledger.merge([notice], "alice")
            (shelf.partial / notice.digest).write_bytes(b"x")
        shelf.tidy(agent.ledger.view())
        assert on_disk(shelf.partial) == [second.digest]
        agent.ledger.merge([withdraw("dice", 2, ALICE)], "alice")
        shelf.tidy(agent.ledger.view())
        assert on_disk(shelf.partial) == []

    @pytest.mark.parametrize("newer", ["version", "withdrawal"])
    def test_removes_held_modules_that_are_superseded(self, agent, shelf, held, tiny_taught, newer: str):
        identity = tiny_taught.identity
        by = announced(identity, "dice", 2) if newer == "version" else withdraw("dice", 1, identity)
        agent.ledger.merge([by], "tina")
        shelf.tidy(agent.ledger.view())
        assert (shelf.held(), on_disk(shelf.quarantine)) == ([], [])
        assert agent.ledger.view().choices == {}

    def test_keeps_a_held_module_that_is_newer_than_its_announcement(
        self, agent: Core, shelf: Shelf, tiny_taught: Core, files
    ):
        module = agent.bank.check(files["dice"])
        card = module.card.model_copy(update={"version": 3})
        later, data = Module.create(card, module.tensors, tiny_taught.identity)
        shelf.hold(later.id, data, "it came as a file")
        agent.ledger.merge([announced_by(tiny_taught, "dice")], "tina")
        shelf.tidy(agent.ledger.view())
        assert [h.module for h in shelf.held()] == [later]

    def test_removes_the_file_left_by_an_interrupted_drop(self, agent: Core, shelf: Shelf, held: Module):
        agent.ledger.choose(held.id, "refused", "dropped by the user")
        shelf.tidy(agent.ledger.view())
        (path,) = shelf.quarantine.iterdir()  # another process may be about to hold it again
        os.utime(path, (0, 0))
        shelf.tidy(agent.ledger.view())
        assert on_disk(shelf.quarantine) == []


class TestTrust:
    @pytest.fixture
    def believing(self, agent: Core, files: dict[str, bytes], tina: str) -> Core:
        """Return an agent that trusts Tina and holds two of her modules: announced dice, and latin from a file."""
        agent.ledger.trust(tina, "tina")
        for task in ("dice", "latin"):
            agent.import_bytes(files[task])
        return agent

    def test_removed_moves_all_of_a_teachers_modules_to_quarantine(self, believing, shelf, tina, tiny_tasks):
        own, _ = believing.learn(tiny_tasks / "greek")
        moved = distrust(believing, shelf, tina)
        assert {m.card.task for m in moved} == {"dice", "latin"}
        assert believing.tasks() == [own]
        assert [h.module.card.task for h in shelf.held()] == ["dice", "latin"]
        assert {h.reason for h in shelf.held()} == {"its teacher tina is not trusted any more"}
        assert not believing.ledger.trusts(tina)

    def test_restored_has_modules_vetted_again_or_restored(self, believing, shelf, tina, tiny_taught):
        notice = announced_by(tiny_taught, "dice")
        believing.ledger.merge([notice], "tina")
        distrust(believing, shelf, tina)
        trust(believing, shelf, tina, "tina")
        assert believing.ledger.trusts(tina)
        assert on_disk(shelf.partial) == [notice.digest]  # a node vets it
        assert [m.card.task for m in believing.tasks()] == ["latin"]  # no peer would offer it again
        assert (shelf.held(), believing.ledger.view().choices) == ([], {})
        shelf.tidy(believing.ledger.view())
        assert on_disk(shelf.partial) == [notice.digest]

    def test_added_does_not_release_modules_held_for_another_reason(self, agent, shelf, held, tina):
        trust(agent, shelf, tina, "tina")
        assert [h.module for h in shelf.held()] == [held]

    def test_whose_removal_was_interrupted_can_be_removed_again(self, believing, shelf, tina, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(believing.bank, "remove", lambda _: pytest.fail("killed here"))
            with pytest.raises(pytest.fail.Exception):
                distrust(believing, shelf, tina)
        assert believing.ledger.trusts(tina)
        assert len(distrust(believing, shelf, tina)) == 2
        assert believing.tasks() == []

    def test_in_the_own_key_cannot_be_removed(self, agent: Core, shelf: Shelf):
        with pytest.raises(AgentError, match="it always trusts itself"):
            distrust(agent, shelf, agent.identity.public_key)

    def test_in_an_unlisted_teacher_can_be_removed(self, agent: Core, shelf: Shelf):
        assert distrust(agent, shelf, ALICE.public_key) == []
