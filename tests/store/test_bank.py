"""The bank stores modules completely or not at all, whatever other files it holds."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from skillmesh.core import Core
from skillmesh.errors import (
    AgentError,
    ModuleError,
    SettingsMismatchError,
    SignatureError,
    TaskExistsError,
    TensorError,
    TruncatedError,
)
from skillmesh.module import Card, Identity, Module, module_id
from skillmesh.module.format import _header_bytes
from skillmesh.numerics.arrays import Array
from skillmesh.store.bank import Bank, specs_for

NewAgent = Callable[..., Core]


@pytest.fixture(scope="session")
def dice(skill_files: dict[str, Path]) -> bytes:
    return skill_files["dice"].read_bytes()


@pytest.fixture
def bank(tmp_path: Path, tiny_taught: Core, skill_files: dict[str, Path]) -> Bank:
    """A bank of latin and greek."""
    bank = Bank(tmp_path / "bank", tiny_taught.bank.backbone)
    for name in ("latin", "greek"):
        bank.add(skill_files[name].read_bytes())
    return bank


def again(bank: Bank) -> Bank:
    return Bank(bank.folder, bank.backbone)


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def names(bank: Bank) -> set[str]:
    return {module.card.task for module in bank}


def signed(agent: Core, data: bytes, tensors: dict[str, Array] | None = None, **fields: Any) -> bytes:
    """Return the module signed again by its teacher, with other tensors or another card."""
    module = agent.bank.check(data)
    card = module.card.model_copy(update=fields)
    held = module.tensors | (tensors or {})
    signature = agent.identity.sign("module", module_id(card, held))
    return _header_bytes(card, held, signature) + b"".join(held[name].tobytes() for name in sorted(held))


class TestAdding:
    def test_stores_the_file_under_its_id(self, bank: Bank, dice: bytes):
        module = bank.add(dice)
        assert listing(bank.folder)[f"{module.id}.skill"] == dice == bank.file_of(module)
        assert names(bank) == names(again(bank)) == {"dice", "latin", "greek"}

    def test_twice_changes_nothing(self, bank: Bank, dice: bytes):
        first = bank.add(dice)
        before = listing(bank.folder)
        assert bank.add(dice) is first
        assert listing(bank.folder) == before

    @pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
    def test_that_fails_leaves_the_bank_unchanged(self, bank: Bank, dice: bytes, monkeypatch, step: str):
        before = listing(bank.folder)

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(step, fail)
            with pytest.raises(AgentError, match=r"cannot write to the bank .*: No space left on device"):
                bank.add(dice)
        assert listing(bank.folder) == before
        assert names(bank) == names(again(bank)) == {"latin", "greek"}
        assert bank.add(dice) in bank

    def test_writes_a_temporary_file_and_then_renames_it(self, bank: Bank, dice: bytes, monkeypatch):
        seen = []
        rename = Path.replace

        def watch(self: Path, target: Path) -> Path:
            seen.append((self.suffix, self.parent, self.read_bytes(), target.exists()))
            return rename(self, target)

        monkeypatch.setattr(Path, "replace", watch)
        bank.add(dice)
        assert seen == [(".partial", bank.folder, dice, False)]

    def test_a_newer_version_replaces_the_older(self, bank: Bank, dice: bytes, tiny_taught: Core):
        bank.add(dice)
        newer = bank.add(signed(tiny_taught, dice, version=2))
        assert [m.card.version for m in bank if m.card.task == "dice"] == [2]
        assert len(listing(bank.folder)) == 3
        assert again(bank).find("dice") == newer

    def test_an_older_version_is_refused(self, bank: Bank, dice: bytes, tiny_taught: Core):
        newer = bank.add(signed(tiny_taught, dice, version=3))
        before = listing(bank.folder)
        for data in (dice, signed(tiny_taught, dice, version=2, note="as new")):
            with pytest.raises(TaskExistsError, match="'dice' is here in version 3; this file is version"):
                bank.add(data)
        assert listing(bank.folder) == before
        bank.remove(newer)
        assert bank.add(dice).card.version == 1

    def test_a_version_older_than_one_that_another_process_stored_is_refused(
        self, bank: Bank, dice: bytes, tiny_taught: Core
    ):
        newer = again(bank).add(signed(tiny_taught, dice, version=3))
        with pytest.raises(TaskExistsError, match="'dice' is here in version 3; this file is version 1"):
            bank.add(dice)
        assert bank.find("dice") == newer

    def test_every_bank_keeps_the_same_of_two_modules_with_one_version(
        self, bank: Bank, dice: bytes, tiny_taught: Core
    ):
        other = signed(tiny_taught, dice, note="the same version")
        low, high = sorted((dice, other), key=lambda data: bank.check(data).id)
        bank.add(low)
        kept = bank.add(high)
        with pytest.raises(TaskExistsError):
            bank.add(low)
        assert bank.find("dice") == kept == bank.check(high)


class TestOpening:
    def test_lists_a_damaged_file_and_opens_the_rest(self, bank: Bank):
        path = bank.folder / f"{bank.find('latin').id}.skill"
        path.write_bytes(path.read_bytes()[:-100])
        opened = again(bank)
        assert names(opened) == {"greek"}
        assert [(d.path, type(d.error)) for d in opened.damaged] == [(path, TruncatedError)]
        assert path.exists()  # so that the user can examine it

    def test_a_damaged_module_can_be_added_again(self, bank: Bank, skill_files: dict[str, Path]):
        path = bank.folder / f"{bank.find('latin').id}.skill"
        path.write_bytes(b"")
        opened = again(bank)
        opened.add(skill_files["latin"].read_bytes())
        assert names(again(bank)) == {"latin", "greek"}
        assert again(bank).damaged == []

    def test_removes_partial_files_of_killed_processes(self, bank: Bank, dice: bytes):
        before = listing(bank.folder)
        (bank.folder / "tmpabc.partial").write_bytes(dice[:1000])
        assert names(again(bank)) == {"latin", "greek"}
        assert listing(bank.folder) == before

    def test_refuses_a_file_under_another_modules_name(self, bank: Bank):
        latin, greek = (bank.folder / f"{bank.find(name).id}.skill" for name in ("latin", "greek"))
        latin.replace(greek)
        opened = again(bank)
        assert len(opened) == 0
        assert [d.path for d in opened.damaged] == [greek]
        assert "holds the module" in str(opened.damaged[0].error)

    def test_lists_modules_that_its_owner_cannot_use(self, bank: Bank, new_agent: NewAgent):
        agent = new_agent(anchor="maha")
        for path in bank.folder.glob("*.skill"):  # copied in by hand
            shutil.copy(path, agent.bank.folder)
        opened = Core(agent.home)
        assert opened.tasks() == []
        assert {type(d.error) for d in opened.bank.damaged} == {SettingsMismatchError}

    def test_lists_a_folder_with_the_name_of_a_module(self, bank: Bank):
        (bank.folder / "folder.skill").mkdir()
        opened = again(bank)
        assert names(opened) == {"latin", "greek"}
        assert [d.path.name for d in opened.damaged] == ["folder.skill"]

    def test_lists_a_symbolic_link_to_a_missing_file(self, bank: Bank):
        """It does not count as a file removed meanwhile: the bank is locked, so no process can remove one."""
        (bank.folder / "astray.skill").symlink_to(bank.folder / "gone")
        opened = again(bank)
        assert names(opened) == {"latin", "greek"}
        assert [damaged.path.name for damaged in opened.damaged] == ["astray.skill"]

    def test_keeps_the_newest_of_two_versions(self, bank: Bank, dice: bytes, tiny_taught: Core):
        files = [signed(tiny_taught, dice, version=version) for version in (2, 9, 10, 1)]
        for data in files:  # left by kills between writing the new version and removing the old
            module = tiny_taught.bank.check(data)
            (bank.folder / f"{module.id}.skill").write_bytes(data)
        opened = again(bank)
        assert opened.find("dice").card.version == 10
        assert len(opened) == len(listing(bank.folder)) == 3

    def test_keeps_one_task_of_two_teachers(self, bank: Bank, dice: bytes, new_agent: NewAgent):
        bank.add(dice)
        eve = new_agent("eve")
        module = bank.find("dice")
        card = module.card.model_copy(update={"teacher": "eve", "teacher_key": eve.identity.public_key})
        _, data = Module.create(card, module.tensors, eve.identity)
        bank.add(data)
        assert len(again(bank)) == len(bank) == 4
        assert bank.find("dice@eve").content_id == bank.find("dice@tina").content_id


def test_iteration_does_not_depend_on_the_order_of_arrival(tmp_path, tiny_taught: Core, skill_files):
    orders = set()
    for number, order in enumerate(itertools.permutations(skill_files.values())):
        bank = Bank(tmp_path / str(number), tiny_taught.bank.backbone)
        for file in order[:-1]:
            bank.add(file.read_bytes())
        last = bank.add(order[-1].read_bytes())
        orders.add(tuple(m.id for m in bank))
        assert [m.id for m in again(bank)] == [m.id for m in bank]
        if number >= 6:
            bank.remove(last)
            assert [m.id for m in bank] == [m.id for m in again(bank)]
    assert len(orders) == 1


def test_removing_leaves_nothing_behind(bank: Bank):
    bank.remove(bank.find("latin"))
    assert names(bank) == names(again(bank)) == {"greek"}
    assert len(listing(bank.folder)) == 1


# --- hostile files, through the command


def _attacks() -> Iterator[tuple[str, str, Callable[[Core, bytes], bytes]]]:
    """Yield for each attack its name, the expected error, and a function that makes the file from a good one."""

    def flip(where: int) -> Callable[[Core, bytes], bytes]:
        return lambda _, data: data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]

    def nan(agent: Core, data: bytes) -> bytes:
        return signed(agent, data, {"head.bias": np.array([np.nan, 0], np.float32)})

    def count(agent: Core, data: bytes) -> bytes:
        return signed(agent, data, {"head.bias": np.zeros(3, np.float32)})

    def forged(agent: Core, data: bytes) -> bytes:
        return data.replace(json.dumps("tina").encode()[1:-1], b"anna")

    yield "empty", "NotASkillFileError", lambda _, data: b""
    yield "pickle", "NotASkillFileError", lambda _, data: pickle.dumps({"weights": [1.0] * 99})
    yield "text", "NotASkillFileError", lambda _, data: b"skillmesh " * 99
    yield "cut in the header", "TruncatedError", lambda _, data: data[:200]
    yield "cut in a tensor", "TruncatedError", lambda _, data: data[:-1]
    yield "longer", "NotCanonicalError", lambda _, data: data + b"\0"
    yield "huge header", "HeaderTooLargeError", lambda _, data: (2**40).to_bytes(8, "little") + data[8:]
    yield "a bit of a tensor", "SignatureError", flip(-5)
    yield "another teacher's name", "SignatureError", forged
    yield "NaN", "NotFiniteError", nan
    yield "a bias too many", "TensorError", count
    yield "another dtype", "TensorError", lambda a, d: signed(a, d, {"head.bias": np.zeros(2, np.float16)})
    yield "a tensor too many", "TensorError", lambda a, d: signed(a, d, {"malware": np.zeros(2, np.int8)})
    yield "format 4", "FormatVersionError", lambda a, d: signed(a, d, format=4)
    yield "a path as the task", "CardError", lambda a, d: signed(a, d, task="../../etc")
    yield "another backbone", "BackboneMismatchError", lambda a, d: signed(a, d, backbone="0" * 64)
    yield "another representation", "SettingsMismatchError", lambda a, d: signed(a, d, representation="features")


@pytest.mark.parametrize(("error", "attack"), [pytest.param(e, a, id=name) for name, e, a in _attacks()])
def test_a_hostile_file_changes_nothing(
    tmp_path, bank: Bank, tiny_taught: Core, dice: bytes, command, error: str, attack
):
    home = tmp_path / "home"
    shutil.copytree(tiny_taught.home, home, ignore=shutil.ignore_patterns("bank"))
    shutil.copytree(bank.folder, home / "bank")
    before = listing(home / "bank")
    (tmp_path / "bad.skill").write_bytes(attack(tiny_taught, dice))
    (tmp_path / "good.skill").write_bytes(dice)
    ran = command("import", tmp_path / "bad.skill", "--home", home)
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err.startswith(f"skillmesh: {tmp_path / 'bad.skill'}: {error}: ")
    assert ran.err.count("\n") == 1
    assert listing(home / "bank") == before
    assert names(Bank(home / "bank", bank.backbone)) == {"latin", "greek"}
    assert command("import", tmp_path / "bad.skill", tmp_path / "good.skill", "--home", home).code == 1
    assert names(Bank(home / "bank", bank.backbone)) == {"latin", "greek", "dice"}  # the good one is kept


def test_a_module_with_a_flipped_bit_is_refused(bank: Bank, dice: bytes):
    before = listing(bank.folder)
    rng = np.random.default_rng(0)
    for where in rng.integers(0, len(dice), 200):
        bad = bytearray(dice)
        bad[where] ^= 1 << int(rng.integers(8))
        with pytest.raises(ModuleError):
            bank.add(bytes(bad))
    assert listing(bank.folder) == before


def test_a_missing_file_is_refused(tmp_path, tiny_taught: Core):
    for path in (tmp_path / "nothing.skill", tmp_path):
        with pytest.raises(ModuleError, match=r"expected a \.skill file"):
            tiny_taught.import_file(path)


def test_a_module_signed_with_another_key_is_refused(new_agent: NewAgent, bank: Bank, dice: bytes):
    eve = new_agent("eve")
    with pytest.raises(SignatureError):
        bank.add(signed(eve, dice))


def test_adding_takes_account_of_modules_that_another_process_added(
    new_agent: NewAgent, skill_files: dict[str, Path]
) -> None:
    """The bank was opened before another process added a module; it notices that when it adds its own."""
    first = new_agent()
    second = Bank(first.bank.folder, first.bank.backbone)
    data = skill_files["dice"].read_bytes()
    module = first.bank.add(data)
    assert not len(second)
    assert second.add(data) == module
    assert len(second) == 1


def test_a_bank_locked_by_another_process_raises_an_error(
    new_agent: NewAgent, skill_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = new_agent().bank
    monkeypatch.setattr(bank._lock, "timeout", 0.1)
    with FileLock(bank.folder / ".lock"), pytest.raises(AgentError, match="cannot be locked"):
        bank.add(skill_files["dice"].read_bytes())


def narrower(module: Module, dim: int) -> bytes:
    """Return the module, validly signed, with descriptors of another width."""
    width = module.card.dim
    tensors = dict(module.tensors)
    for name, values in module.tensors.items():
        if values.shape[-1] == width:
            tensors[name] = np.ascontiguousarray(values[..., :dim])
    mallory = Identity.create("mallory")
    facts = module.card.model_dump() | {"dim": dim, "teacher": "mallory", "teacher_key": mallory.public_key}
    return Module.create(Card(**facts), tensors, mallory)[1]


def test_signed_module_of_another_width_is_refused_and_the_agent_still_answers(
    new_agent: NewAgent, skill_files: dict[str, Path], tmp_path: Path, mixed: list[Path]
) -> None:
    agent = new_agent()
    honest = agent.import_file(skill_files["dice"])
    (tmp_path / "narrow.skill").write_bytes(narrower(honest, 100))
    with pytest.raises(TensorError, match="100 numbers, expected 2912"):
        agent.import_file(tmp_path / "narrow.skill")
    assert [m.id for m in agent.bank] == [honest.id]
    assert agent.answer(mixed[0]).best.task == "dice"


def test_signed_module_with_enormous_means_is_refused(new_agent: NewAgent, skill_files: dict[str, Path]) -> None:
    """With means of a million, float32 rounding errors would exceed the differences between other tasks."""
    agent = new_agent()
    honest = Module.load(skill_files["dice"], specs_for)
    mallory = Identity.create("mallory")
    facts = honest.card.model_dump() | {"teacher": "mallory", "teacher_key": mallory.public_key}
    tensors = honest.tensors | {"sketch.mean.scale": np.full_like(honest.tensors["sketch.mean.scale"], 1e4)}
    with pytest.raises(TensorError, match=r"sketch\.mean\.scale"):
        agent.bank.add(Module.create(Card(**facts), tensors, mallory)[1])


def test_a_file_is_checked_once_when_it_is_written_and_once_when_it_is_read(
    new_agent: Callable[..., Core], tiny_tasks: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from skillmesh.module import format as module_format

    read, times = module_format.read, []
    monkeypatch.setattr(module_format, "read", lambda data, *rest: times.append(len(data)) or read(data, *rest))
    teacher, student = new_agent("teacher"), new_agent("student")
    teacher.learn(tiny_tasks / "dice")
    assert len(times) == 1
    student.import_file(teacher.export("dice", tmp_path / "dice.skill"))
    assert len(times) == 2
