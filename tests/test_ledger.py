"""The ledger: agents that heard the same agree, decisions stay, and no fault leaves half a change."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notices import ALICE, BOB, EVE, announced

from skillmesh import ledger as ledger_module
from skillmesh.errors import AgentError
from skillmesh.ledger import Ledger, View, root_of
from skillmesh.module.notice import Announcement, Notice, Slot, link, withdraw

DICE = Slot(ALICE.public_key, "dice")
MODULE = "ab" * 32


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Alice's own, where she trusts Bob."""
    opened = Ledger(tmp_path / "ledger.sqlite", ALICE.public_key)
    opened.trust(BOB.public_key, "bob")
    yield opened
    opened.close()


def beside(ledger: Ledger) -> Ledger:
    """As another process has it open."""
    return Ledger(ledger.path, ledger.own_key)


def what_it_knows(view: View) -> tuple[object, ...]:
    return view.root, dict(view.known), dict(view.seen)


@cache
def notices_of(tasks: int) -> list[Notice]:
    """Announcements and withdrawals of two teachers, some of them of one version."""
    found: list[Notice] = []
    for identity in (ALICE, BOB):
        for number in range(tasks):
            task = f"task {number}"
            for version in (1, 2):
                found += [announced(identity, task, version, data) for data in (b"one", b"two")]
                found.append(withdraw(task, version, identity, "wrong"))
    return found


class TestAgreement:
    """Merging is a join: order, grouping and repetition do not matter."""

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.sampled_from(notices_of(4)), min_size=1, max_size=25),
        st.randoms(use_true_random=False),
        st.sampled_from([1, 2, 3, 1000]),
    )
    def test_agents_that_heard_the_same_know_the_same(
        self, heard: list[Notice], chance: random.Random, per_teacher: int
    ):
        known = []
        with TemporaryDirectory() as folder, ExitStack() as over:
            for number in range(3):
                told = heard + chance.choices(heard, k=5)
                chance.shuffle(told)
                ledger = Ledger(Path(folder) / str(number), ALICE.public_key, per_teacher=per_teacher)
                over.callback(ledger.close)
                ledger.trust(BOB.public_key, "bob")
                while told:
                    size = chance.randint(1, 8)
                    ledger.merge(told[:size], "somebody")
                    told = told[size:]
                known.append(what_it_knows(ledger.view()))
                assert ledger.merge(heard, "somebody") == []
                assert what_it_knows(ledger.view()) == known[-1]
        assert known[0] == known[1] == known[2]

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.sampled_from(notices_of(3)), max_size=25))
    def test_what_stands_is_the_highest_of_each_slot(self, heard: list[Notice]):
        with TemporaryDirectory() as folder:
            ledger = Ledger(Path(folder) / "one", ALICE.public_key, open_trust=True)
            news = ledger.merge(heard, "somebody")
            known = ledger.view().known
            ledger.close()
        slots = {notice.slot for notice in heard}
        assert known == {slot: max((n for n in heard if n.slot == slot), key=lambda n: n.rank) for slot in slots}
        assert {notice.digest for notice in news} == {notice.digest for notice in known.values()}

    def test_no_teacher_fills_the_ledger(self, ledger: Ledger):
        ledger.per_teacher = 5
        many = [announced(BOB, f"task {i}") for i in range(30)]
        news = [notice for start in range(0, 30, 7) for notice in ledger.merge(many[start : start + 7], "eve")]
        assert len(ledger.view().known) == 5
        assert {n.digest for n in ledger.view().known.values()} <= {n.digest for n in news}
        assert ledger.merge([announced(ALICE, "own")], "eve")  # others have their own room

    def test_the_root_is_that_of_what_is_known(self, ledger: Ledger):
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

    def test_what_is_withdrawn_is_every_version_up_to_it(self, ledger: Ledger):
        assert not ledger.withdrawn(DICE, 1)
        ledger.merge([announced(version=2)], "bob")
        assert not ledger.withdrawn(DICE, 1)
        ledger.merge([withdraw("dice", 2, ALICE)], "bob")
        assert [ledger.withdrawn(DICE, version) for version in (1, 2, 3)] == [True, True, False]

    def test_the_latest_outlives_its_withdrawal(self, ledger: Ledger):
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

    def test_open_believes_everyone(self, ledger: Ledger):
        notice = announced(EVE)
        ledger.merge([notice], "eve")
        assert ledger.view().known == {}
        ledger.open_trust = True
        assert ledger.view().known == {notice.slot: notice}
        assert ledger.trusts(EVE.public_key)

    def test_of_oneself_cannot_be_lost_and_needs_no_entry(self, ledger: Ledger):
        ledger.merge([announced()], "bob")
        ledger.trust(ALICE.public_key, "me")
        assert ledger.view().trusted == {BOB.public_key: "bob"}
        ledger.distrust(ALICE.public_key)
        assert ledger.trusts(ALICE.public_key)
        assert DICE in ledger.view().known

    def test_comes_with_the_same_limit_as_if_it_had_been_there(self, ledger: Ledger, tmp_path: Path):
        many = [announced(EVE, f"task {i}") for i in range(9)]
        ledger.per_teacher = 4
        ledger.merge(many, "eve")
        ledger.trust(EVE.public_key, "eve")
        early = Ledger(tmp_path / "early", ALICE.public_key, per_teacher=4)
        early.trust(EVE.public_key, "eve")
        early.merge(many, "eve")
        assert ledger.view().root == early.view().root
        assert len(ledger.view().known) == 4

    def test_strangers_have_little_room(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(ledger_module, "MAX_SEEN", 3)
        ledger.merge([announced(EVE, f"task {i}") for i in range(5)], "eve")
        assert len(ledger.view().seen) == 3
        newer = announced(EVE, "task 0", 2)
        ledger.merge([newer], "eve")  # what is there already may be renewed
        assert ledger.view().seen[newer.slot] == newer
        ledger.merge([announced(BOB, f"task {i}") for i in range(5)], "eve")  # friends are not strangers
        assert len(ledger.view().known) == 5


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

    def test_can_be_taken_back(self, ledger: Ledger):
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

    def test_reasons_of_any_length_are_cut(self, ledger: Ledger):
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
        assert view.known == {}  # what was read does not change

    def test_are_of_one_moment(self, ledger: Ledger):
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
from skillmesh.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), ALICE.public_key, per_teacher=10**6)
have = len(ledger.view().known) // 3
print("ready", flush=True)
for batch in itertools.count(have):
    ledger.merge([announced(ALICE, f"{batch} {i}") for i in range(3)], "me")
    print(batch, flush=True)
"""


def run_beside_tests(code: str, *arguments: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_killed_in_the_middle_it_has_all_of_a_change_or_nothing(tmp_path: Path):
    path = tmp_path / "ledger.sqlite"
    for wait in (0.0, 0.013, 0.1):
        with run_beside_tests(MERGE_FOR_EVER, path) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            first = process.stdout.readline()
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
            said = (first + process.stdout.read()).split()
        ledger = Ledger(path, ALICE.public_key)
        tasks = {slot.task for slot in ledger.view().known}
        batches = {int(task.split()[0]) for task in tasks}
        assert tasks == {f"{batch} {i}" for batch in batches for i in range(3)}
        assert {int(batch) for batch in said} <= batches  # what was done stays done
        assert ledger.merge([announced(BOB)], "bob") == []
        ledger.close()


FILL = """
import resource, sys
from pathlib import Path
from notices import ALICE, announced
from skillmesh.errors import AgentError
from skillmesh.ledger import Ledger
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
    """A disk of two megabytes, with something on it that can be thrown away."""
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
    assert "nothing was changed; make room" in out


def test_on_a_full_disk_it_says_so_changes_nothing_and_goes_on_when_there_is_room(small_disk: Path):
    fill_up(small_disk / "ledger.sqlite", "disk")


def test_where_no_more_may_be_written_it_says_so_and_changes_nothing(tmp_path: Path):
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
def test_a_damaged_file_is_a_clear_error(tmp_path: Path, content: bytes):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(AgentError, match=r"cannot use the ledger .*ledger\.sqlite: .*; nothing was changed"):
        Ledger(path, ALICE.public_key)
    assert path.read_bytes() == content


def test_a_damaged_notice_is_a_clear_error(ledger: Ledger):
    ledger.merge([announced()], "bob")
    with sqlite3.connect(ledger.path) as raw:
        raw.execute("UPDATE notices SET data = CAST(replace(data, 'dice', 'mice') AS BLOB)")
    raw.close()
    with pytest.raises(AgentError, match=r"the ledger .* is damaged: .*put the file back"):
        beside(ledger).view()


def test_where_it_cannot_be_it_says_so(tmp_path: Path):
    with pytest.raises(AgentError, match="unable to open database file"):
        Ledger(tmp_path / "no-folder" / "ledger.sqlite", ALICE.public_key)


def test_a_new_ledger_that_another_process_is_making_is_waited_for(tmp_path: Path):
    path = tmp_path / "ledger.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE some (x)")
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.3, other.execute, ("COMMIT",)).start()
    assert Ledger(path, ALICE.public_key).view().known == {}
    other.close()


def test_a_notice_in_the_ledger_is_checked_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    ledger.merge([announced(BOB, f"task {i}") for i in range(3)], "bob")
    assert len(ledger.view().known) == 3
    monkeypatch.setattr(ledger_module, "decode", lambda _: pytest.fail("once more"))
    ledger.forget(DICE)
    assert all(isinstance(notice, Announcement) for notice in ledger.view().known.values())


def test_a_ledger_of_an_older_release_opens_and_takes_links(tmp_path: Path) -> None:
    """That release has no table for them; and one that it opens again shows it nothing that it does not know."""
    path = tmp_path / "ledger.sqlite"
    old = Ledger(path, ALICE.public_key)
    old.merge([announced(ALICE)], "alice")
    root = old.view().root
    old._database.execute("DROP TABLE links")
    old.close()
    new = Ledger(path, ALICE.public_key)
    made = link("dice", 1, ["a" * 64, "b" * 64], ALICE)
    assert new.merge([made], "alice") == [made]
    assert list(new.view().links.values()) == [made]
    assert new.view().root == root
    kinds = [json.loads(data)["kind"] for (data,) in new._database.execute("SELECT data FROM notices")]
    assert kinds == ["announcement"]


def test_strangers_links_count_among_strangers_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_SEEN", 3)
    ledger = Ledger(tmp_path / "ledger.sqlite", ALICE.public_key)
    ledger.merge([link(f"task {i}", 1, ["a" * 64, "b" * 64], EVE) for i in range(5)], "eve")
    assert len(ledger.view().seen_links) == 3
    assert ledger.view().links == {}


def test_names_that_the_first_release_took_from_teachers_count_as_claims(tmp_path: Path):
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
