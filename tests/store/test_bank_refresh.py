"""`Bank.refresh` notices all changes by other processes, and returns True only if there were any."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest

from skillmesh.core import Core
from skillmesh.store.bank import TICK_NS, Bank

LONG_AGO = 10**18


@pytest.fixture
def bank(tmp_path: Path, tiny_taught: Core, skill_files: dict[str, Path]) -> Bank:
    """A bank of latin and greek that was last changed long ago."""
    bank = Bank(tmp_path / "bank", tiny_taught.bank.backbone)
    for name in ("latin", "greek"):
        bank.add(skill_files[name].read_bytes())
    changed_at(bank, LONG_AGO)
    bank.refresh()
    return bank


def changed_at(bank: Bank, time_ns: int) -> None:
    os.utime(bank.folder, ns=(time_ns, time_ns))


def names(bank: Bank) -> set[str]:
    return {module.card.task for module in bank}


def put(bank: Bank, agent: Core, name: str) -> Path:
    """Copy a module into the bank's folder, as another process would."""
    module = agent.bank.find(name)
    return Path(shutil.copy(agent.bank._path(module.id), bank.folder))


def test_refresh_without_a_change_returns_false(bank: Bank):
    assert not bank.refresh()
    changed_at(bank, LONG_AGO + 10 * TICK_NS)  # a file came and went meanwhile
    assert not bank.refresh()
    assert not bank.refresh()


def test_refresh_reports_a_change_by_another_process_once(bank: Bank, tiny_taught: Core):
    put(bank, tiny_taught, "dice")
    assert bank.refresh()
    assert names(bank) == {"latin", "greek", "dice"}
    assert not bank.refresh()
    bank._path(bank.find("dice").id).unlink()
    assert bank.refresh()
    assert names(bank) == {"latin", "greek"}
    assert not bank.refresh()


def test_an_unchanged_folder_is_not_read_again(bank: Bank, tiny_taught: Core):
    put(bank, tiny_taught, "dice")
    changed_at(bank, LONG_AGO)  # so the folder looks as it did
    assert not bank.refresh()


@pytest.mark.parametrize("drift", [0, -TICK_NS // 2, TICK_NS // 2])
def test_a_second_change_within_one_clock_tick_is_noticed(
    bank: Bank, tiny_taught: Core, monkeypatch: pytest.MonkeyPatch, drift: int
):
    """The folder's time is the same after both, but too recent to be relied on."""
    tick = LONG_AGO + 100 * TICK_NS
    monkeypatch.setattr("skillmesh.store.bank.time.time_ns", lambda: tick + drift)
    put(bank, tiny_taught, "dice")
    changed_at(bank, tick)
    assert bank.refresh()
    put(bank, tiny_taught, "shapes")
    changed_at(bank, tick)
    assert bank.refresh()
    assert names(bank) == {"latin", "greek", "dice", "shapes"}


def test_a_damaged_file_is_listed_while_it_exists(bank: Bank):
    """Neither its arrival nor its removal changes the modules."""
    damaged = bank.folder / "broken.skill"
    damaged.write_bytes(b"no module")
    assert not bank.refresh()
    assert [each.path for each in bank.damaged] == [damaged]
    first = bank.damaged[0]
    changed_at(bank, LONG_AGO + 10 * TICK_NS)
    bank.refresh()
    assert bank.damaged == [first]  # not read again
    damaged.unlink()
    changed_at(bank, LONG_AGO + 20 * TICK_NS)
    assert not bank.refresh()
    assert bank.damaged == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system does not list open files")
def test_storing_and_removing_leave_no_file_open(bank: Bank, skill_files: dict[str, Path]):
    def opened() -> int:
        gc.collect()  # agents of earlier tests, which hold files open, may be freed at any moment
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    for _ in range(5):
        bank.remove(bank.add(skill_files["dice"].read_bytes()))
    assert opened() == before
