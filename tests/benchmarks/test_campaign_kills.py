"""Kills and power cuts of the campaign: a short round that finds nothing, and broken code that it must find."""

from __future__ import annotations

import importlib
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (sys.platform == "linux" and shutil.which("cc")), reason="needs Linux and a C compiler"
    ),
]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PATIENCE = 240.0
"""Maximum seconds, for a busy machine."""

WRITES_IN_PLACE = """
import pathlib
def replace(self, target):
    pathlib.Path(target).write_bytes(self.read_bytes())
    self.unlink()
pathlib.Path.replace = replace
"""
NEVER_SYNCS = "import os; os.fsync = lambda _: None"
REPORTS_TOO_EARLY = """
import typer
from skillmesh.core import Core
forget = Core.forget
def early(self, task):
    typer.echo("forgot it")
    return forget(self, task)
Core.forget = early
"""
LEAVES_LITTER = """
import os
from skillmesh.store.bank import Bank
refresh = Bank._refresh
def litter(self):
    refresh(self)
    (self.folder / f"{os.urandom(8).hex()}.tmp").touch()
Bank._refresh = litter
"""


@pytest.fixture(scope="module")
def attacks() -> Iterator[Callable[[str], Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield lambda name: importlib.import_module(f"attacks.{name}")


@pytest.fixture(scope="module")
def prepared(attacks, tmp_path_factory) -> Path:
    """Return a folder in which everything is prepared and nothing was attacked yet."""
    kept = tmp_path_factory.mktemp("prepared")
    figures = attacks("kills").run(0, 1, kept, print)
    assert figures["failures"] == []
    return kept


@pytest.fixture
def run(attacks, prepared, tmp_path) -> Callable[..., dict[str, Any]]:
    """Return a function that attacks one command, from a fresh start."""

    def run_on(command: str, **options: Any) -> dict[str, Any]:
        kept = tmp_path / "kept"
        if not kept.exists():
            shutil.copytree(prepared, kept)
        seconds = options.pop("seconds", PATIENCE)
        figures: dict[str, Any] = attacks("kills").run(seconds, 1, kept, print, only=[command], **options)
        return figures

    return run_on


def test_prefixes_of_the_writes_of_forget_and_kills_lose_nothing(run):
    figures = run("forget", until="round")
    assert figures["failures"] == []
    assert figures["prefixes_by_command"]["forget"] > 10
    assert figures["power_cut_states"] > figures["prefix_states"] > 10
    assert figures["kills"] + figures["finished_before_the_kill"] == figures["tries"] > 0
    assert figures["losses"] == 0


def test_a_second_call_resumes_where_the_first_stopped(run):
    first = run("drop", parts=["kills"], seconds=0.1)
    second = run("drop", parts=["kills"], seconds=0.1)
    assert first["tries"] >= 1
    assert second["tries"] > first["tries"]
    assert second["kills"] >= first["kills"]


def test_kills_find_a_file_that_is_overwritten_in_place(run):
    figures = run("import", parts=["kills"], until="failure", prelude=WRITES_IN_PLACE)
    assert figures["losses"] == 1
    assert "import killed" in figures["failures"][0]["repeat"]


@pytest.mark.parametrize(
    ("command", "prelude", "found"),
    [
        pytest.param("import", NEVER_SYNCS, "a power cut loses", id="never-syncs"),
        pytest.param("import", WRITES_IN_PLACE, "the process ends", id="writes-in-place"),
        pytest.param("forget", REPORTS_TOO_EARLY, "the process ends", id="reports-too-early"),
        pytest.param("drop", LEAVES_LITTER, "the process ends", id="leaves-litter"),
    ],
)
def test_prefixes_and_power_cuts_find_broken_code(run, command, prelude, found):
    figures = run(command, parts=["cuts"], until="failure", prelude=prelude)
    assert found in figures["failures"][0]["repeat"]


# The model of a disk.


def rename_into_place(op: Any, synced: bool) -> list[Any]:
    """Return the calls of a program that replaces the file 1, `a`, by a new one."""
    sync = [op("sync", 2)] if synced else []
    return [
        op("create", 2, names=(("b", 2),)),
        op("write", 2, 0, b"new"),
        *sync,
        op("rename", names=(("b", None), ("a", 2))),
    ]


@pytest.mark.parametrize(("synced", "contents"), [(True, {b"old", b"new"}), (False, {b"old", b"new", b""})])
def test_a_rename_of_a_file_that_was_not_synced_may_leave_nothing(attacks, synced, contents):
    log = attacks("write_log")
    start = log.Disk({"a": 1}, {1: bytearray(b"old")})
    ops = rename_into_place(log.Op, synced)
    states = [log.after(start, ops), *(disk for _, disk in log.power_cuts(start, ops, random.Random(0), 20))]
    assert {bytes(disk.contents.get(disk.names["a"], b"")) for disk in states} == contents


def test_a_file_synced_with_its_folder_survives(attacks):
    log = attacks("write_log")
    ops = [*rename_into_place(log.Op, synced=True), log.Op("sync folder", path="")]
    assert log.unsynced(ops) == []
    assert log.unsynced([*ops, log.Op("mkdir", names=(("c", log.FOLDER),))]) == [len(ops)]


def test_a_file_in_a_folder_whose_name_was_lost_is_lost(attacks):
    log = attacks("write_log")
    ops = [
        log.Op("mkdir", names=(("folder", log.FOLDER),)),
        log.Op("create", 1, names=(("folder/a", 1),)),
        log.Op("sync folder", path="folder"),
    ]
    lost, disk = next(log.power_cuts(log.Disk(), ops, random.Random(0), 0))
    assert lost == "all unsynced"
    assert disk.reachable() == {}
