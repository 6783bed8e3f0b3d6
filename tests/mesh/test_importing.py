"""The importing thread continues, whatever errors a module or the disk causes."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from notices import BOB, EVE, announced

from skillmesh.core import Core
from skillmesh.mesh.importing import Arrival, Importer, Importing
from skillmesh.mesh.shelf import Partial, Shelf
from skillmesh.module import Module
from skillmesh.module.notice import announce
from skillmesh.numerics.process import one_thread
from skillmesh.vetting.quarantine import Held, Verdict


class Stumbling:
    """An importer that fails on every module."""

    def __init__(self) -> None:
        self.tried: list[str] = []

    def import_all(self, arrivals: list[Arrival]) -> list[Any]:
        self.tried += [arrival.announcement.task for arrival in arrivals]
        if arrivals:
            raise RuntimeError("the trial failed")
        return []


class NoFetcher:
    def start(self, when_over: contextlib.ExitStack) -> None:
        """Fetch nothing."""


def importing_without_peers() -> Importing:
    return Importing(None, None, NoFetcher(), Stumbling(), lambda: None)  # type: ignore[arg-type]


class TestATeachersShare:
    OF_BOB, OF_EVE = ([announced(teacher, f"task {number}") for number in range(6)] for teacher in (BOB, EVE))

    def test_starts_at_one_module_and_doubles_with_each_arrival(self):
        importing = importing_without_peers()
        for most in (1, 2, 4):
            assert len(importing._in_turn(list(self.OF_BOB))) == most
            importing._share(BOB.public_key, arrived=True)
        assert len(importing._in_turn([*self.OF_BOB, *self.OF_EVE])) == 6 + 1

    def test_is_halved_by_a_module_that_no_peer_has(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("skillmesh.mesh.importing.IN_VAIN", 600.0)
        importing = importing_without_peers()
        for _ in range(2):
            importing._share(BOB.public_key, arrived=True)
        for most in (2, 1, 0):
            importing._share(BOB.public_key, arrived=False)
            assert len(importing._in_turn(list(self.OF_BOB))) == most


class TestOneThatHasArrived:
    """Vetting several modules together costs one mapper."""

    def arrival(self, task: str, folder: Path) -> Arrival:
        notice = announced(BOB, task)
        return Arrival(notice, Partial(folder / task, notice))

    @pytest.mark.parametrize("coming", [1, 2])
    def test_waits_only_for_modules_being_fetched(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coming: int
    ):
        monkeypatch.setattr("skillmesh.mesh.importing.LINGER", 120.0)
        importing, began = importing_without_peers(), time.monotonic()
        arrivals = [self.arrival(task, tmp_path) for task in ("chess", "go")[:coming]]
        importing.under_way |= {arrival.announcement.digest for arrival in arrivals}
        importing._arrivals.put(arrivals[0])
        if coming == 2:
            threading.Timer(0.3, importing._arrivals.put, (arrivals[1],)).start()
        assert importing._next_arrivals() == arrivals
        assert time.monotonic() - began < 60


@pytest.mark.parametrize("fault", ["full", "unforeseen"])
def test_importing_continues_if_a_refusal_cannot_be_stored(new_agent, tmp_path: Path, monkeypatch, caplog, fault):
    agent, importer = new_agent(), Stumbling()
    caplog.set_level(logging.ERROR)
    if fault == "full":
        agent.ledger._database.execute("PRAGMA max_page_count = 1")
        agent.ledger.view()
    else:
        monkeypatch.setattr(agent.ledger, "choose", lambda *_: 1 / 0)
    importing = Importing(agent, None, NoFetcher(), importer, lambda: None)  # type: ignore[arg-type]
    with contextlib.ExitStack() as over:
        importing.start(over)
        notices = [announced(BOB, task) for task in ("chess", "go")]
        arrivals = [Arrival(notice, Partial(tmp_path / notice.task, notice)) for notice in notices]
        if fault == "full":  # a ledger has free space in its last page
            monkeypatch.setattr(notices[0].__class__, "digest", property(lambda self: self.task * 5000))
        for number, arrival in enumerate(arrivals):
            importing.under_way.add(notices[number].digest)
            importing._arrivals.put(arrival)
            deadline = time.monotonic() + 20
            while len(importer.tried) <= number or importing.trouble is None:
                assert time.monotonic() < deadline, "importing has stopped"
                time.sleep(0.02)
    assert importer.tried == ["chess", "go"]
    if fault == "full":
        assert "full" in (importing.trouble or "")
        assert importing.under_way == set(), "it is tried again later"


@pytest.mark.parametrize("held", [False, True])
def test_a_fetched_file_is_stored_once_in_the_bank_or_in_quarantine(
    new_agent: Callable[..., Core], tiny_taught: Core, monkeypatch: pytest.MonkeyPatch, held: bool
):
    agent, dice = new_agent("student"), tiny_taught.bank.find("dice")
    agent.ledger.trust(dice.card.teacher_key, "tina")
    shelf, data = Shelf(agent.home, agent.ledger), tiny_taught.bank.file_of(dice)
    notice = announce(dice.card, dice.id, data, tiny_taught.identity)
    agent.ledger.merge([notice], "tina")
    partial = Partial(shelf.partial, notice)
    partial.path.write_bytes(data)
    importer = Importer(agent, shelf, lambda *_: pytest.fail("no peer sent false data"))
    if held:
        verdict = Verdict((), (Held(dice, "it takes others' images"),), [], None)
        monkeypatch.setattr(importer, "_trial", lambda _: SimpleNamespace(judge=lambda *_: verdict))
    assert importer.import_all([Arrival(notice, partial)]) == ([] if held else [dice])
    assert not partial.path.exists()
    assert (shelf.file_of(dice.id) == data, list(agent.bank) == [dice]) == (held, not held)


def test_an_import_that_rebuilds_and_an_answer_do_not_wait_for_each_other(new_agent, skill_files):
    """An import holds the limit to one thread when it rebuilds; the first answer builds a mapper within it."""
    agent = new_agent()
    agent.import_file(skill_files["dice"])
    tasks, answering, importing = agent._answering._tasks, threading.Event(), threading.Event()

    def noting() -> list[Module]:
        if threading.current_thread().name == "answer":
            answering.set()
        return tasks()

    agent._answering._tasks = noting

    def rebuild() -> None:
        with one_thread():
            importing.set()
            answering.wait(1)  # the answer has begun, or waits for the limit
            agent.rebuild()

    threads = [
        threading.Thread(target=rebuild, daemon=True),
        threading.Thread(target=agent.mapper, name="answer", daemon=True),
    ]
    threads[0].start()
    importing.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert [thread.is_alive() for thread in threads] == [False, False]
    assert agent.in_use() == list(agent.bank)
