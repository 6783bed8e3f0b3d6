"""The ledger: agents with the same notices agree, decisions are kept, and no fault leaves half a change."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notices import ALICE, BOB, EVE, announced

from skillmesh.errors import AgentError, LedgerDamagedError
from skillmesh.module.notice import Announcement, Notice, Slot, link, withdraw
from skillmesh.store import ledger as ledger_module
from skillmesh.store.ledger import NOTHING, Ledger, LedgerView, root_of

DICE = Slot(ALICE.public_key, "dice")
MODULE = "ab" * 32


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Alice's ledger, in which she trusts Bob."""
    opened = Ledger(tmp_path / "ledger.sqlite", ALICE.public_key)
    opened.trust(BOB.public_key, "bob")
    yield opened
    opened.close()


def beside(ledger: Ledger) -> Ledger:
    """Return the ledger opened a second time, as by another process."""
    return Ledger(ledger.path, ledger.own_key)


def contents_of(view: LedgerView) -> tuple[object, ...]:
    return view.root, dict(view.known), dict(view.seen)


@cache
def notices_of(tasks: int) -> list[Notice]:
    """Return announcements and withdrawals of two teachers, some of them with the same version."""
    notices: list[Notice] = []
    for identity in (ALICE, BOB):
        for number in range(tasks):
            task = f"task {number}"
            for version in (1, 2):
                notices += [announced(identity, task, version, data) for data in (b"one", b"two")]
                notices.append(withdraw(task, version, identity, "wrong"))
    return notices


class TestAgreement:
    """Merging is a join: order, grouping and repetition do not matter."""

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.sampled_from(notices_of(4)), min_size=1, max_size=25),
        st.randoms(use_true_random=False),
        st.sampled_from([1, 2, 3, 1000]),
    )
    def test_agents_that_received_the_same_notices_agree(
        self, notices: list[Notice], chance: random.Random, per_teacher: int
    ):
        known = []
        with TemporaryDirectory() as folder, ExitStack() as over:
            for number in range(3):
                batch = notices + chance.choices(notices, k=5)
                chance.shuffle(batch)
                ledger = Ledger(Path(folder) / str(number), ALICE.public_key, per_teacher=per_teacher)
                over.callback(ledger.close)
                ledger.trust(BOB.public_key, "bob")
                while batch:
                    size = chance.randint(1, 8)
                    ledger.merge(batch[:size], "somebody")
                    batch = batch[size:]
                known.append(contents_of(ledger.view()))
                assert ledger.merge(notices, "somebody") == []
                assert contents_of(ledger.view()) == known[-1]
        assert known[0] == known[1] == known[2]

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.sampled_from(notices_of(3)), max_size=25))
    def test_the_highest_notice_of_each_slot_is_current(self, notices: list[Notice]):
        with TemporaryDirectory() as folder:
            ledger = Ledger(Path(folder) / "one", ALICE.public_key, open_trust=True)
            added = ledger.merge(notices, "somebody")
            known = ledger.view().known
            ledger.close()
        slots = {notice.slot for notice in notices}
        assert known == {slot: max((n for n in notices if n.slot == slot), key=lambda n: n.rank) for slot in slots}
        assert {notice.digest for notice in added} == {notice.digest for notice in known.values()}

    def test_one_teacher_cannot_fill_the_ledger(self, ledger: Ledger):
        ledger.per_teacher = 5
        many = [announced(BOB, f"task {i}") for i in range(30)]
        added = [notice for start in range(0, 30, 7) for notice in ledger.merge(many[start : start + 7], "eve")]
        assert len(ledger.view().known) == 5
        assert {n.digest for n in ledger.view().known.values()} <= {n.digest for n in added}
        assert ledger.merge([announced(ALICE, "own")], "eve")  # other teachers have their own limit

    def test_the_root_covers_only_known_notices(self, ledger: Ledger):
        assert ledger.view().root == root_of([])
        ledger.merge(notices_of(2), "eve")
        before = ledger.view()
        assert before.root == root_of(before.known.values()) != root_of([])
        ledger.merge([announced(EVE)], "eve")  # whom Alice does not trust
        ledger.forget(DICE)
        ledger.choose(MODULE, "refused", "bad")
        assert ledger.view().root == before.root


class TestVersions:
    def test_a_withdrawal_beats_its_version_and_a_newer_version_beats_the_withdrawal(self, ledger: Ledger):
        first, gone, second = announced(version=1), withdraw("dice", 1, ALICE), announced(version=2)
        for notice in (first, gone, second):
            assert ledger.merge([notice], "bob") == [notice]
            assert ledger.view().known == {DICE: notice}
        assert ledger.merge([first, gone], "bob") == []

    def test_a_withdrawal_covers_all_versions_up_to_its_own(self, ledger: Ledger):
        assert not ledger.withdrawn(DICE, 1)
        ledger.merge([announced(version=2)], "bob")
        assert not ledger.withdrawn(DICE, 1)
        ledger.merge([withdraw("dice", 2, ALICE)], "bob")
        assert [ledger.withdrawn(DICE, version) for version in (1, 2, 3)] == [True, True, False]

    def test_the_latest_version_is_kept_after_a_withdrawal(self, ledger: Ledger):
        assert ledger.latest_version(DICE) == 0
        ledger.merge([announced(version=4)], "bob")
        ledger.merge([withdraw("dice", 4, ALICE)], "bob")
        assert ledger.latest_version(DICE) == 4


class TestTrust:
    def test_moves_notices_between_known_and_seen(self, ledger: Ledger):
        notice = announced(EVE)
        assert ledger.merge([notice], "eve") == []
        assert (ledger.view().known, ledger.view().seen) == ({}, {notice.slot: notice})
        ledger.trust(EVE.public_key, "eve")
        assert (ledger.view().known, ledger.view().seen) == ({notice.slot: notice}, {})
        assert ledger.trusts(EVE.public_key)
        ledger.distrust(EVE.public_key)
        assert (ledger.view().known, ledger.view().seen) == ({}, {notice.slot: notice})
        assert not ledger.trusts(EVE.public_key)
        assert ledger.view().at(notice.slot) == notice

    def test_open_trust_includes_everyone(self, ledger: Ledger):
        notice = announced(EVE)
        ledger.merge([notice], "eve")
        assert ledger.view().known == {}
        ledger.open_trust = True
        assert ledger.view().known == {notice.slot: notice}
        assert ledger.trusts(EVE.public_key)

    def test_in_the_agent_itself_cannot_be_removed_and_needs_no_entry(self, ledger: Ledger):
        ledger.merge([announced()], "bob")
        ledger.trust(ALICE.public_key, "me")
        assert ledger.view().trusted == {BOB.public_key: "bob"}
        ledger.distrust(ALICE.public_key)
        assert ledger.trusts(ALICE.public_key)
        assert DICE in ledger.view().known

    def test_given_late_applies_the_same_limit(self, ledger: Ledger, tmp_path: Path):
        many = [announced(EVE, f"task {i}") for i in range(9)]
        ledger.per_teacher = 4
        ledger.merge(many, "eve")
        ledger.trust(EVE.public_key, "eve")
        early = Ledger(tmp_path / "early", ALICE.public_key, per_teacher=4)
        early.trust(EVE.public_key, "eve")
        early.merge(many, "eve")
        assert ledger.view().root == early.view().root
        assert len(ledger.view().known) == 4

    def test_untrusted_teachers_have_a_low_limit(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(ledger_module, "MAX_SEEN", 3)
        ledger.merge([announced(EVE, f"task {i}") for i in range(5)], "eve")
        assert len(ledger.view().seen) == 3
        newer = announced(EVE, "task 0", 2)
        ledger.merge([newer], "eve")  # a stored notice may be updated
        assert ledger.view().seen[newer.slot] == newer
        ledger.merge(
            [announced(BOB, f"task {i}") for i in range(5)], "eve"
        )  # trusted teachers have a limit of their own
        assert len(ledger.view().known) == 5

    def test_open_trust_leaves_room_for_the_agent_itself_and_listed_teachers(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(ledger_module, "MAX_KNOWN", 3)
        ledger.open_trust = True
        for teacher, room in ((EVE, 3), (BOB, 5), (ALICE, 5)):
            ledger.merge([announced(teacher, f"task {i}") for i in range(5)], "eve")
            assert [slot.teacher_key for slot in ledger.view().known].count(teacher.public_key) == room


class TestDecisions:
    def test_are_seen_by_another_process_and_after_a_restart(self, ledger: Ledger):
        other = beside(ledger)
        ledger.forget(DICE)
        ledger.choose(MODULE, "held", "odd")
        ledger.ban("eve", "lied")
        ledger.note_addresses("bob", ["tcp/10.0.0.1:7447"])
        for there in (other, beside(ledger)):
            view = there.view()
            assert view.forgotten == {DICE}
            assert view.choices[MODULE][:2] == ("held", "odd")
            assert view.bans == {"eve": "lied"}
            assert view.trusted == {BOB.public_key: "bob"}
            assert there.addresses() == {"bob": ["tcp/10.0.0.1:7447"]}

    def test_can_be_undone(self, ledger: Ledger):
        other = beside(ledger)
        ledger.forget(DICE)
        ledger.choose(MODULE, "held", "odd")
        ledger.ban("eve", "lied")
        assert other.view().bans
        other.remember(DICE)
        other.unchoose(MODULE)
        other.unban("eve")
        view = ledger.view()
        assert (view.forgotten, view.choices, view.bans) == (frozenset(), {}, {})

    def test_the_last_choice_and_the_first_reason_to_ban_count(self, ledger: Ledger):
        ledger.choose(MODULE, "held", "odd")
        ledger.choose(MODULE, "released", "fine")
        ledger.ban("eve", "lied")
        ledger.ban("eve", "lied again")
        assert ledger.view().choices[MODULE][:2] == ("released", "fine")
        assert ledger.view().bans == {"eve": "lied"}

    def test_long_reasons_are_cut(self, ledger: Ledger):
        ledger.choose(MODULE, "refused", "x" * 10_000)
        ledger.ban("eve", "x" * 10_000)
        assert len(ledger.view().choices[MODULE].reason) == len(ledger.view().bans["eve"]) == 1000

    def test_an_agents_new_addresses_replace_its_old_ones(self, ledger: Ledger):
        ledger.note_addresses("bob", ["tcp/1:1", "tcp/2:2"])
        ledger.note_addresses("bob", ["tcp/3:3"])
        assert ledger.addresses() == {"bob": ["tcp/3:3"]}


class TestViews:
    def test_are_the_same_object_until_something_changes(self, ledger: Ledger):
        other = beside(ledger)
        view = ledger.view()
        assert ledger.view() is view
        ledger.merge([], "bob")
        unchanged = ledger.view()
        assert unchanged == view
        other.merge([announced()], "bob")
        assert ledger.view().known.keys() == {DICE}
        assert view.known == {}  # an earlier view does not change

    def test_show_all_tables_at_one_moment(self, ledger: Ledger):
        """Another process changes several tables while this one reads them."""
        other = beside(ledger)

        def in_between(statement: str) -> None:
            if "FROM notices" in statement:
                ledger._database.set_trace_callback(None)
                other.merge([announced(BOB)], "bob")
                other.forget(DICE)

        ledger.merge([], "bob")
        ledger._database.set_trace_callback(in_between)
        view = ledger.view()
        assert (len(view.known), len(view.forgotten)) in ((0, 0), (1, 1))
        assert (len(ledger.view().known), len(ledger.view().forgotten)) == (1, 1)

    def test_two_processes_that_merge_at_once_lose_nothing(self, ledger: Ledger):
        halves = [[announced(BOB, f"task {i}") for i in range(start, 60, 2)] for start in (0, 1)]

        def merge(half: list[Notice]) -> None:
            mine = beside(ledger)
            for notice in half:
                mine.merge([notice], "bob")

        threads = [threading.Thread(target=merge, args=(half,)) for half in halves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ledger.view().known) == 60


# Faults.

MERGE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from notices import ALICE, announced
from skillmesh.store.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), ALICE.public_key, per_teacher=10**6)
have = len(ledger.view().known) // 3
print("ready", flush=True)
for batch in itertools.count(have):
    ledger.merge([announced(ALICE, f"{batch} {i}") for i in range(3)], "me")
    print(batch, flush=True)
"""


def run_beside_tests(code: str, *arguments: object) -> subprocess.Popen[str]:
    paths = [str(Path(__file__).parents[1] / "helpers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_a_killed_process_leaves_a_whole_change_or_none(tmp_path: Path):
    path = tmp_path / "ledger.sqlite"
    for wait in (0.0, 0.013, 0.1):
        with run_beside_tests(MERGE_FOR_EVER, path) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            first = process.stdout.readline()
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
            printed = (first + process.stdout.read()).split()
        ledger = Ledger(path, ALICE.public_key)
        tasks = {slot.task for slot in ledger.view().known}
        batches = {int(task.split()[0]) for task in tasks}
        assert tasks == {f"{batch} {i}" for batch in batches for i in range(3)}
        assert {int(batch) for batch in printed} <= batches  # finished changes are kept
        assert ledger.merge([announced(BOB)], "bob") == []
        ledger.close()


FILL = """
import resource, sys
from pathlib import Path
from notices import ALICE, announced
from skillmesh.errors import AgentError
from skillmesh.store.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), ALICE.public_key, per_teacher=10**6)
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
for number in range(10_000):
    before = ledger.view()
    try:
        large = {"size": 100 * 2**15, "leaves": "0" * 6400}
        ledger.merge([announced(ALICE, f"{number} {i}", **large) for i in range(9)], "me")
    except AgentError as error:
        assert ledger.view() is before
        after = Ledger(Path(sys.argv[1]), ALICE.public_key).view()
        assert after.root == before.root, "another process sees half a change"
        assert number > 0
        print(error)
        break
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    (Path(sys.argv[1]).parent / "ballast").unlink()
assert ledger.merge([announced(ALICE, "with room again")], "me")
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes, half filled with a file that can be removed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if (
        not mount
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "none", folder], check=False).returncode
    ):
        pytest.skip("no disk can be mounted here")
    (folder / "ballast").write_bytes(bytes(1_000_000))
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill_up(path: Path, how: str) -> None:
    with run_beside_tests(FILL, path, how) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.startswith(f"cannot use the ledger {path}: ")
    assert "nothing in it was changed; make room" in out


def test_a_full_disk_raises_an_error_changes_nothing_and_writing_works_again_later(small_disk: Path):
    fill_up(small_disk / "ledger.sqlite", "disk")


def test_a_file_size_limit_raises_an_error_and_changes_nothing(tmp_path: Path):
    fill_up(tmp_path / "ledger.sqlite", "limit")


def test_a_change_that_fails_in_the_middle_is_undone(ledger: Ledger):
    def broken() -> Iterator[Notice]:
        yield announced()
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        ledger.merge(broken(), "bob")
    assert ledger.view().known == beside(ledger).view().known == {}
    assert ledger.merge([announced()], "bob")


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_not_changed_and_reading_continues_without_it(tmp_path: Path, content: bytes, caplog):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    ledger = Ledger(path, ALICE.public_key)
    assert ledger.view() == NOTHING
    assert ledger.damage is not None
    with pytest.raises(LedgerDamagedError, match=r"is damaged: .*nothing in it was changed; .*repair"):
        ledger.trust(BOB.public_key)
    for ask in (
        ledger.latest_version,
        lambda slot: ledger.withdrawn(slot, 1),
    ):  # decisions depend on these, so they are not guessed
        with pytest.raises(LedgerDamagedError):
            ask(DICE)
    (record,) = caplog.records
    assert "is damaged" in record.message
    assert f"`skillmesh --home {tmp_path} repair`" in record.message
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("there", [True, False], ids=["empty", "missing"])
def test_a_missing_or_empty_ledger_counts_as_damage_if_one_is_expected(tmp_path: Path, there: bool):
    path = tmp_path / "ledger.sqlite"
    if there:
        path.touch()
    assert (
        Ledger(path, ALICE.public_key, expected=True).damage
        == f"the ledger {path} is {'empty' if there else 'missing'}"
    )
    assert path.exists() == there
    assert Ledger(path, ALICE.public_key).damage is None  # in a home that has learned nothing yet


def test_tables_of_another_program_are_damage(tmp_path: Path):
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE trusted (colour TEXT)")
        other.commit()
    ledger = Ledger(path, ALICE.public_key)
    assert ledger.view() == NOTHING
    assert "no such column" in (ledger.damage or "")


def test_after_damage_the_last_view_is_kept(ledger: Ledger, caplog):
    """A running node answers and trusts as before; it only receives nothing new."""
    ledger.merge([announced()], "bob")
    ledger.trust(BOB.public_key, "bob")
    before = ledger.view()
    with closing(sqlite3.connect(ledger.path)) as raw:
        raw.execute("UPDATE notices SET data = CAST(replace(data, 'dice', 'mice') AS BLOB)")
        raw.commit()
    ledger._decoded.clear()
    assert ledger.view() is ledger.view() is before
    assert len(caplog.records) == 1
    with pytest.raises(LedgerDamagedError):
        ledger.forget(DICE)


def test_a_full_disk_is_not_damage(ledger: Ledger):
    ledger._database.execute("PRAGMA max_page_count = 1")
    with pytest.raises(AgentError, match=r"cannot use the ledger .*full.*nothing in it was changed"):
        ledger.merge([announced(BOB, f"task {i}") for i in range(100)], "bob")
    assert ledger.damage is None


def test_a_damaged_notice_is_damage(ledger: Ledger):
    ledger.merge([announced()], "bob")
    with sqlite3.connect(ledger.path) as raw:
        raw.execute("UPDATE notices SET data = CAST(replace(data, 'dice', 'mice') AS BLOB)")
    raw.close()
    other = beside(ledger)
    assert other.view() == NOTHING
    with pytest.raises(LedgerDamagedError, match=r"the ledger .* is damaged: .*put the file back"):
        other.forget(DICE)
    assert other.damage == f"the ledger {ledger.path} is damaged: a notice in it is not what its teacher signed"


def test_bytes_instead_of_a_name_are_damage(tmp_path: Path):
    path = tmp_path / "ledger.sqlite"
    Ledger(path, ALICE.public_key).trust(BOB.public_key, "bob")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE trusted SET name = x'00ff'")
    ledger = Ledger(path, ALICE.public_key)
    assert ledger.view() == NOTHING
    assert "bytes or numbers instead of text" in str(ledger.damage)


def test_a_table_name_that_is_not_text_is_damage(tmp_path: Path):
    """SQLite quotes the name in its message, which Python then cannot decode."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path, ALICE.public_key).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA writable_schema = 1")
        database.execute(
            "UPDATE sqlite_master SET name = CAST(x'ff' AS TEXT), sql = 'CREATE' WHERE name = 'trusted'"
        )
        database.commit()
    ledger = Ledger(path, ALICE.public_key)
    assert ledger.view() == NOTHING
    assert f"the ledger {path} is damaged" in str(ledger.damage)


def test_too_many_open_files_are_not_reported_as_damage(ledger: Ledger):
    ledger.close()
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, usual[1]))
    try:
        with pytest.raises(AgentError, match=r"cannot be read: Too many open files; .*close") as caught:
            beside(ledger)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert not isinstance(caught.value, LedgerDamagedError)
    assert beside(ledger).view().trusted == {BOB.public_key: "bob"}


def test_a_temporary_disk_error_is_not_damage(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    """SQLite has rolled back by itself, so there is nothing to commit."""

    def fail() -> LedgerView:
        ledger._database.execute("ROLLBACK")
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMMAP
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_read", fail)
        with pytest.raises(AgentError, match=r"cannot use the ledger .*disk I/O error"):
            ledger.view()
    assert ledger.damage is None
    assert ledger.view().trusted == {BOB.public_key: "bob"}


def test_a_missing_folder_is_reported(tmp_path: Path):
    with pytest.raises(AgentError, match=r"cannot write .*ledger\.sqlite: No such file or directory"):
        Ledger(tmp_path / "no-folder" / "ledger.sqlite", ALICE.public_key)


def test_opening_waits_for_a_process_that_is_creating_the_ledger(tmp_path: Path):
    path = tmp_path / "ledger.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE some (x)")
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.3, other.execute, ("COMMIT",)).start()
    assert Ledger(path, ALICE.public_key).view().known == {}
    other.close()


class Refusing:
    """A database that raises these errors, one per call, before it executes anything."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.done: list[str] = []

    def execute(self, words: str) -> None:
        if self.codes:
            error = sqlite3.OperationalError("refused")
            error.sqlite_errorcode = self.codes.pop(0)
            raise error
        self.done.append(words)


class TestOpeningTogether:
    """If two processes open a new ledger at the same moment, SQLite refuses one of them without waiting."""

    def test_the_refused_one_tries_again(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
        database = Refusing(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY)
        monkeypatch.setattr(ledger, "_database", database)
        ledger._use_write_ahead_log()
        assert database.done == ["PRAGMA journal_mode=WAL"]
        monkeypatch.undo()

    @pytest.mark.parametrize(("code", "wait"), [(sqlite3.SQLITE_IOERR, 60.0), (sqlite3.SQLITE_BUSY, -1.0)])
    def test_other_errors_and_lasting_ones_are_raised(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, code: int, wait: float
    ):
        monkeypatch.setattr(ledger_module, "WAIT", wait)
        monkeypatch.setattr(ledger, "_database", Refusing(code))
        with pytest.raises(sqlite3.OperationalError, match="refused"):
            ledger._use_write_ahead_log()
        monkeypatch.undo()


def test_the_signature_of_a_stored_notice_is_checked_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    ledger.merge([announced(BOB, f"task {i}") for i in range(3)], "bob")
    assert len(ledger.view().known) == 3
    monkeypatch.setattr(ledger_module, "decode", lambda _: pytest.fail("once more"))
    ledger.forget(DICE)
    assert all(isinstance(notice, Announcement) for notice in ledger.view().known.values())


def test_a_ledger_of_an_older_release_opens_and_stores_links(tmp_path: Path) -> None:
    """That release has no table for links, and finds none among its notices."""
    path = tmp_path / "ledger.sqlite"
    old = Ledger(path, ALICE.public_key)
    old.merge([announced(ALICE)], "alice")
    root = old.view().root
    old._database.execute("DROP TABLE links")
    old.close()
    new = Ledger(path, ALICE.public_key)
    new_link = link("dice", 1, ["a" * 64, "b" * 64], ALICE)
    assert new.merge([new_link], "alice") == [new_link]
    assert list(new.view().links.values()) == [new_link]
    assert new.view().root == root
    kinds = [json.loads(data)["kind"] for (data,) in new._database.execute("SELECT data FROM notices")]
    assert kinds == ["announcement"]


def test_links_of_untrusted_teachers_count_towards_their_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MAX_SEEN", 3)
    ledger = Ledger(tmp_path / "ledger.sqlite", ALICE.public_key)
    ledger.merge([link(f"task {i}", 1, ["a" * 64, "b" * 64], EVE) for i in range(5)], "eve")
    assert len(ledger.view().seen_links) == 3
    assert ledger.view().links == {}


def test_names_that_the_first_release_copied_from_teachers_are_cleared(tmp_path: Path):
    path = tmp_path / "old.sqlite"
    old = Ledger(path, ALICE.public_key)
    old.merge([announced(BOB)], "bob")
    old.trust(BOB.public_key, "bob")
    old.trust(EVE.public_key, "my neighbour")
    old._database.execute("PRAGMA user_version = 0")
    old.close()
    again = Ledger(path, ALICE.public_key)
    assert again.view().trusted == {BOB.public_key: "", EVE.public_key: "my neighbour"}
    again.trust(BOB.public_key, "bob")
    again.close()
    assert Ledger(path, ALICE.public_key).view().trusted[BOB.public_key] == "bob"
