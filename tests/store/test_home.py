"""An agent's home with damaged or lost files, a full disk, no permission, other users, or two commands at once."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import pickle
import re
import resource
import shlex
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.resources import as_file
from importlib.resources import files as files_of
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from notices import BOB, EVE, announced
from running import failed

from skillmesh import core as core_module
from skillmesh.backbone import backbone as backbone_module
from skillmesh.common import files
from skillmesh.common.config import AgentConfig, MeshSettings
from skillmesh.common.files import write_whole
from skillmesh.core import Core
from skillmesh.errors import AgentError, LedgerDamagedError, TaskExistsError
from skillmesh.learning import lesson as lesson_module
from skillmesh.mesh.calling import call
from skillmesh.mesh.control import Control
from skillmesh.mesh.node import LOCK, Node
from skillmesh.mesh.repair import WHY_UNKNOWN, _fault, _rows, repair
from skillmesh.mesh.shelf import Shelf
from skillmesh.module import write
from skillmesh.module.notice import Slot, withdraw
from skillmesh.store import ledger as ledger_module
from skillmesh.store.home import CALIBRATION_FILE, create_home, refuse_half_renewed
from skillmesh.store.ledger import Ledger

NOBODY = 65534
"""Another user of this machine."""
SHIPPED = Path(backbone_module.__file__).with_name("calibrations") / "lite0.safetensors"
"""The calibration that comes with the package."""


@pytest.fixture
def home(tiny_taught: Core, tmp_path: Path) -> Path:
    """A copy of the home of an agent with four tasks, a trusted teacher (Bob) and several decisions."""
    shutil.copytree(tiny_taught.home, tmp_path / "home")
    agent = Core(tmp_path / "home")
    agent.ledger.trust(BOB.public_key, "bob")
    agent.ledger.ban(EVE.public_key, "it lied")
    agent.ledger.forget(Slot(BOB.public_key, "cards"))
    agent.ledger.merge([announced(BOB, "chess"), withdraw("go", 3, BOB)], "bob")
    agent.ledger.choose("ab" * 32, "refused", "it is absurd")
    agent.ledger.close()
    return tmp_path / "home"


def garbage(path: Path) -> None:
    path.write_bytes(b"no database at all" * 1000)


def cut_off(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def other_tables(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE notices (colour TEXT)")
        database.commit()


def one_page(path: Path) -> None:
    """Overwrite the page with the trusted teachers: SQLite notices that only when it reads them."""
    with closing(sqlite3.connect(path)) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trusted'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    data[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(data)


def spoil_a_notice(home: Path) -> None:
    """Change one notice so that its signature is wrong; everything else can be read."""
    with closing(sqlite3.connect(home / "ledger.sqlite")) as raw:
        raw.execute("UPDATE notices SET data = CAST(replace(data, 'chess', 'chest') AS BLOB) WHERE task = 'chess'")
        raw.commit()


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no further file."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (garbage, cut_off, empty, remove, other_tables, one_page, folder_instead)


@pytest.fixture(params=DAMAGES, ids=lambda damage: damage.__name__)
def damaged(request: pytest.FixtureRequest, home: Path) -> Path:
    for ending in ("-wal", "-shm"):
        assert not (home / f"ledger.sqlite{ending}").exists()
    request.param(home / "ledger.sqlite")
    return home


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class TestDamagedLedger:
    def test_commands_that_only_read_work_with_one_warning(self, damaged, command, photo, tmp_path, caplog):
        before = contents(damaged)
        caplog.set_level(logging.WARNING)
        for words in (
            ("tasks", "--json"),
            ("show", "dice", "--json"),
            ("ask", photo, "--json"),
            ("status", "--json"),
            ("export", "dice", tmp_path / "out.skill"),
            ("trust", "show-mine"),
        ):
            caplog.clear()
            ran = command(*words, "--home", damaged)
            assert ran.code == 0, ran.err
            warnings = [record.message for record in caplog.records if "ledger" in record.message]
            assert len(warnings) == 1 or words[0] in ("export", "trust"), (
                words
            )  # these do not read the whole ledger
            assert len(warnings) <= 1
            assert all("repair" in text and "\n" not in text for text in warnings)
            if words[0] == "tasks":
                assert {task["task"] for task in ran.json["tasks"]} == {"shapes", "dice", "latin", "greek"}
            if words[0] == "ask":
                assert "dice" in ran.out
            if words[0] == "status":
                assert ran.json["ledger_damage"] in warnings[0]
        assert (tmp_path / "out.skill").exists()
        old = before.get("ledger.sqlite")
        if old is None or b"colour" not in old:  # SQLite opens, and may change, a file that is a database
            assert contents(damaged).get("ledger.sqlite") == old

    def test_commands_that_change_the_ledger_are_refused_before_any_work(
        self, damaged, command, tiny_tasks, skill_files
    ):
        before = contents(damaged)
        for words in (
            ("learn", tiny_tasks / "snowflakes"),
            ("learn", tiny_tasks / "dice", "--continue", "dice"),
            ("compose", "new", "dice:*"),
            ("import", skill_files["dice"]),
            ("forget", "dice"),
            ("withdraw", "dice"),
            ("withdraw", "never learned"),
            ("remember", "cards"),
            ("trust", "add", "cd" * 32),
            ("trust", "remove", "bob"),
            ("quarantine", "drop", "dice"),
            ("peers", "--unban", EVE.public_key),
        ):
            ran = command(*words, "--home", damaged)
            assert ran.code == 1, words
            assert re.search(r"`skillmesh (--home \S+ )?repair`", ran.err), (words, ran.err)
            assert "learn" not in words or "to do" not in ran.err
        after = contents(damaged)
        assert after.keys() - before.keys() <= {"ledger.sqlite-shm", "ledger.sqlite-wal", "mesh.json"}
        assert {name: after[name] for name in before if "ledger" not in name} == {
            name: data for name, data in before.items() if "ledger" not in name
        }

    def test_no_node_starts(self, damaged):
        with pytest.raises(LedgerDamagedError):
            Node(Core(damaged), MeshSettings.of({})).start()


def test_the_installed_command_reports_a_damaged_ledger_in_one_line(home: Path):
    garbage(home / "ledger.sqlite")
    ran = subprocess.run(
        [sys.executable, "-m", "skillmesh", "--home", home, "tasks"], capture_output=True, text=True, check=True
    )
    (line,) = ran.stderr.splitlines()
    assert line.startswith(
        f"the ledger {home}/ledger.sqlite is damaged: file is not a database; continuing without"
    )
    assert "dice" in ran.stdout


class TestRepair:
    def test_of_an_undamaged_ledger_changes_nothing(self, command, home):
        before = contents(home)["ledger.sqlite"]
        ran = command("repair", "--json", "--home", home)
        assert (ran.code, ran.json["damage"], ran.json["aside"]) == (0, None, None)
        assert "not damaged" in command("repair", "--home", home).out
        assert contents(home)["ledger.sqlite"] == before

    def test_restores_the_agent_and_keeps_the_old_file(self, damaged, command, tiny_tasks):
        old = contents(damaged).get("ledger.sqlite")
        ran = command("repair", "--json", "--home", damaged)
        assert ran.code == 0, ran.err
        assert set(ran.json["announced"]) == {"shapes", "dice", "latin", "greek"}
        if old is not None and b"colour" not in old:  # SQLite opens, and may change, a file that is a database
            assert Path(ran.json["aside"]).read_bytes() == old
        agent = Core(damaged)
        assert agent.ledger.damage is None
        own = {n.task for n in agent.ledger.view().known.values() if n.teacher_key == agent.identity.public_key}
        assert own == {"shapes", "dice", "latin", "greek"}
        assert stat.S_IMODE((damaged / "ledger.sqlite").stat().st_mode) == 0o600
        agent.learn(tiny_tasks / "snowflakes")
        assert agent.forget("dice").card.task == "dice"
        assert command("repair", "--json", "--home", damaged).json["damage"] is None

    def test_reports_what_is_lost_if_nothing_can_be_read(self, home, command):
        garbage(home / "ledger.sqlite")
        output = command("repair", "--home", home).out
        for text in ("kept as", "names that you gave them", "may come back", "are banned", "merged", "sync"):
            assert text in output
        view = Core(home).ledger.view()
        assert (view.trusted, view.bans, view.seen) == ({}, {}, {})

    @pytest.mark.parametrize(("count", "words"), [(1, "1 trusted teacher,"), (2, "2 trusted teachers,")])
    def test_counts_one_in_the_singular(self, home, command, count, words):
        if count == 2:
            agent = Core(home)
            agent.ledger.trust(EVE.public_key, "eve")
            agent.ledger.close()
        spoil_a_notice(home)
        assert words in " ".join(command("repair", "--home", home).out.split())

    def test_counts_one_own_task_and_one_module_in_the_singular(self, new_agent, tiny_tasks, skill_files, command):
        agent = new_agent()
        agent.learn(tiny_tasks / "dice")
        latin = skill_files["latin"].read_bytes()
        Shelf(agent.home, agent.ledger).hold(agent.bank.check(latin).id, latin, "it lies")
        agent.ledger.close()
        garbage(agent.home / "ledger.sqlite")
        output = " ".join(command("repair", "--home", agent.home).out.split())
        assert "1 own task: dice; 0 of other teachers" in output
        assert "the reasons are lost: 1 module " in f"{output} "

    @pytest.mark.parametrize(
        ("settings", "advice"),
        [
            ({"calibration": True}, "import it into an agent with that backbone"),
            ({"compact": True}, "import it into an agent of the same settings"),
        ],
        ids=["another backbone", "other settings"],
    )
    def test_gives_no_other_advice_about_a_module_than_its_error(
        self, new_agent, skill_files, other_calibration, command, settings, advice
    ):
        if "calibration" in settings:
            settings = {"calibration": other_calibration}
        home = new_agent(**settings).home
        shutil.copy(skill_files["dice"], home / "bank/00.skill")
        assert command("repair", "--home", home).err.strip().endswith(f"; {advice}")

    def test_says_what_to_do_with_a_module_whose_error_does_not(self, new_agent, command):
        home = new_agent().home
        (home / "bank/00.skill").write_bytes((2**40).to_bytes(8, "little") + b"{}")
        assert command("repair", "--home", home).err.strip().endswith("; import or learn it again")

    def test_keeps_decisions_that_can_still_be_read(self, home, command):
        """One notice is damaged: all decisions are kept, above all bans and withdrawals."""
        spoil_a_notice(home)
        ran = command("repair", "--json", "--home", home)
        assert ran.json["lost"] == ["notices"]
        view = Core(home).ledger.view()
        assert view.trusted == {BOB.public_key: "bob"}
        assert view.bans == {EVE.public_key: "it lied"}
        assert view.forgotten == {Slot(BOB.public_key, "cards")}
        assert view.choices["ab" * 32].choice == "refused"
        assert view.at(Slot(BOB.public_key, "chess")) is None
        assert view.at(Slot(BOB.public_key, "go")).version == 3
        assert Core(home).ledger.withdrawn(Slot(BOB.public_key, "go"), 3)

    def test_keeps_other_tables_if_one_cannot_be_read(self, home, command):
        one_page(home / "ledger.sqlite")
        ran = command("repair", "--json", "--home", home)
        assert ran.json["lost"] == ["trusted"]
        assert Core(home).ledger.view().bans == {EVE.public_key: "it lied"}
        assert Core(home).ledger.view().trusted == {}

    def test_an_own_task_that_was_withdrawn_is_not_announced_again(self, home, command):
        """A process was killed after the withdrawal, before it removed the module; then the ledger was damaged."""
        agent = Core(home)
        agent.ledger.merge([withdraw("dice", 1, agent.identity)], agent.identity.public_key)
        agent.ledger.close()
        one_page(home / "ledger.sqlite")
        assert "dice" not in command("repair", "--json", "--home", home).json["announced"]
        assert Core(home).ledger.withdrawn(Slot(agent.identity.public_key, "dice"), 1)

    def test_keeps_modules_in_quarantine(self, home, skill_files):
        agent = Core(home)
        module = agent.bank.find("dice")
        shelf = Shelf(home, agent.ledger)
        shelf.hold(module.id, skill_files["dice"].read_bytes(), "it lies")
        agent.bank.remove(module)
        agent.ledger.close()
        garbage(home / "ledger.sqlite")
        assert repair(Core(home)).held == 1
        (held,) = Shelf(home, Core(home).ledger).held()
        assert (held.module.id, held.reason) == (module.id, WHY_UNKNOWN)
        assert [m.card.task for m in Core(home).tasks()] == ["greek", "latin", "shapes"]

    def test_does_not_apply_the_damaged_files_log_to_the_new_one(self, home):
        """SQLite would apply the log beside the old file to the new one."""
        with closing(sqlite3.connect(home / "ledger.sqlite")) as other:
            other.execute("PRAGMA journal_mode=WAL")
            other.execute("DELETE FROM bans")
            other.commit()
            log_of_changes = (home / "ledger.sqlite-wal").read_bytes()
        garbage(home / "ledger.sqlite")
        (home / "ledger.sqlite-wal").write_bytes(log_of_changes)
        aside = repair(Core(home)).aside
        assert aside is not None
        assert aside.with_name(f"{aside.name}-wal").read_bytes() == log_of_changes
        assert not (home / "ledger.sqlite-wal").exists()
        assert Core(home).ledger.damage is None

    @pytest.mark.parametrize("bank", ["full", "empty"])
    @pytest.mark.parametrize("step", range(5))
    def test_interrupted_at_any_step_can_be_repeated_without_loss(self, home, monkeypatch, step, bank):
        """Steps: the new file is written, the old one and its log are moved, the new one is moved into place."""
        if bank == "empty":
            for file in (home / "bank").glob("*.skill"):
                file.unlink()
        spoil_a_notice(home)
        for ending in ("-wal", "-shm"):
            (home / f"ledger.sqlite{ending}").touch()
        moves, move = [], Path.replace

        def stop(self: Path, target: Path) -> Path:
            if "ledger" not in f"{self.name}{target.name}":
                return move(self, target)
            moves.append(target.name)
            if len(moves) > step:
                raise KeyboardInterrupt
            return move(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", stop)
            with pytest.raises(KeyboardInterrupt):
                repair(Core(home))
        left = Core(home).ledger
        left.view()
        assert left.damage is not None, "the rest must not pass for a new agent's ledger"
        done = repair(Core(home))
        assert done.lost == ("notices",)
        assert done.aside is not None
        assert done.aside.exists()
        agent = Core(home)
        assert agent.ledger.damage is None
        assert agent.ledger.view().trusted == {BOB.public_key: "bob"}
        assert agent.ledger.view().bans == {EVE.public_key: "it lied"}
        assert list(home.glob("ledger.new-*")) == []

    @pytest.mark.parametrize("bank", ["full", "empty"])
    def test_on_a_full_disk_leaves_the_old_file_and_can_be_repeated(self, home, monkeypatch, bank):
        if bank == "empty":
            for file in (home / "bank").glob("*.skill"):
                file.unlink()
        spoil_a_notice(home)

        def full_at_home(folder: Path, mode: int) -> Any:
            if folder == home:
                raise OSError(errno.ENOSPC, "No space left on device")
            return begin(folder, mode)

        agent, before, begin = Core(home), contents(home)["ledger.sqlite"], files._begin
        with monkeypatch.context() as patch:
            patch.setattr(files, "_begin", full_at_home)
            with pytest.raises(AgentError, match="make room"):
                repair(agent)
        assert contents(home)["ledger.sqlite"] == before
        assert repair(Core(home)).kept["trusted"] == 1
        assert Core(home).ledger.view().trusted == {BOB.public_key: "bob"}
        assert Core(home).ledger.view().bans == {EVE.public_key: "it lied"}

    def test_a_temporary_error_does_not_count_as_damage(self, home):
        """If no file can be opened, an undamaged ledger cannot be read, but none of its rows may be dropped."""
        for look in (_fault, lambda path: _rows(path, "trusted")):
            with no_more_files(), pytest.raises(AgentError, match="cannot be read: Too many open files") as caught:
                look(home / "ledger.sqlite")
            assert not isinstance(caught.value, LedgerDamagedError)

    def test_is_refused_while_a_node_runs(self, home):
        from filelock import FileLock

        garbage(home / "ledger.sqlite")
        with FileLock(home / LOCK), pytest.raises(AgentError, match=r"a node runs on .*; stop it first"):
            repair(Core(home))


def test_the_root_folder_has_no_name_and_is_not_half_renewed():
    refuse_half_renewed(Path("/"))


class TestDamagedSettings:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"{", "found text that is not valid JSON (EOF while parsing an object at line 1 column 1), expected"),
            (b"\xff\xfe", "found bytes that are not UTF-8 text, expected"),
            (b"[]", "expected a JSON object with one entry for each setting"),
            (b"{}", "the setting name is missing"),
            (b'{"name": "x", "colour": "red"}', "found the setting colour, which does not exist"),
            (b'{"name": 5}', "the setting name is 5; expected a valid string"),
            (b'{"name": "x", "seed": -1}', "the setting seed is -1; expected a number greater than or equal to 0"),
            (b'{"name": "x", "anchor": "magic"}', "the setting anchor is 'magic'; expected 'sketch', 'gmmc' or"),
            (b'{"name": "x", "compact": true, "representation": "features"}', "compact modules need the repres"),
        ],
    )
    def test_say_what_was_found_what_was_expected_and_what_to_do(self, home, command, content, expected):
        (home / "agent.json").write_bytes(content)
        before = contents(home)
        ran = command("tasks", "--home", home)
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert f"{home}/agent.json is damaged: " in ran.err
        assert expected in ran.err
        assert "; correct the file, put it back from a copy, or create an agent in another home" in ran.err
        assert not any(word in ran.err for word in ("https:", "pydantic", "AgentConfig", "input_value", "codec"))
        assert contents(home) == before


def advised(error: str) -> list[str]:
    """Return the words of the only command that an error message suggests, without `skillmesh`."""
    (command,) = re.findall(r"`skillmesh ([^`]*)`", error)
    return shlex.split(command)


class TestLostSettings:
    @pytest.mark.parametrize("words", [("tasks",), ("status",), ("repair",), ("config",)], ids=str)
    def test_are_not_replaced_by_defaults(self, home, command, words):
        (home / "agent.json").unlink()
        before = contents(home)
        ran = command(*words, "--home", home)
        assert ran.code == 1
        assert f"{home} has no agent.json: the agent's settings are lost" in ran.err
        assert "(found key.pem, ledger.sqlite, 4 modules; these are unchanged)" in ran.err
        assert "put agent.json back from a copy" in ran.err
        assert f"`skillmesh --home {home} init --backbone lite0 --representation descriptor --anchor sketch`" in (
            " ".join(ran.err.split())
        )
        assert contents(home) == before

    def test_are_not_replaced_by_a_program(self, home):
        (home / "agent.json").unlink()
        for open_home in (Core, Core.open):
            with pytest.raises(
                AgentError, match=f"settings are lost .*`skillmesh --home {home} init --backbone lite0"
            ):
                open_home(home)
        assert not (home / "agent.json").exists()

    @pytest.mark.parametrize(
        "settings",
        [{}, {"compact": True}, {"calibration": True}, {"compact": True, "calibration": True}, {"anchor": "maha"}],
        ids=str,
    )
    def test_can_be_written_again_with_the_command_of_the_message(
        self, new_agent, tiny_tasks, other_calibration, command, settings
    ):
        if "calibration" in settings:
            settings = settings | {"calibration": other_calibration}
        agent = new_agent(**settings)
        agent.learn(tiny_tasks / "dice")
        home = agent.home
        tasks, before = command("tasks", "--json", "--home", home).json, contents(home)
        (home / "agent.json").unlink()
        assert command(*advised(command("tasks", "--home", home).err)).code == 0
        assert command("tasks", "--json", "--home", home).json == tasks
        after = contents(home)
        old, new = (json.loads(found["agent.json"]) for found in (before, after))
        assert old | {"name": home.name} == new
        assert Core(home).name == "alice", "the key keeps the name"
        for name in ("key.pem", "calibration.safetensors", *(name for name in before if "bank/" in name)):
            assert after.get(name) == before.get(name)

    def test_name_the_calibration_file_and_how_to_correct_a_wrong_init(
        self, new_agent, tiny_tasks, other_calibration, command
    ):
        agent = new_agent(calibration=other_calibration)
        agent.learn(tiny_tasks / "dice")
        (agent.home / "agent.json").unlink()
        error = command("tasks", "--home", agent.home).err
        assert "(found key.pem, ledger.sqlite, calibration.safetensors, 1 module; these are unchanged)" in error
        assert "`--calibration` must name the calibration.safetensors found there" in error
        assert "if modules are unusable then, delete agent.json and run `init` again with other" in error

    def test_can_be_corrected_after_a_wrong_init(self, new_agent, tiny_tasks, command):
        agent = new_agent(compact=True)
        agent.learn(tiny_tasks / "dice")
        (agent.home / "agent.json").unlink()
        words = advised(command("tasks", "--home", agent.home).err)
        assert command("init", "--home", agent.home).code == 0
        assert command("tasks", "--json", "--home", agent.home).json["tasks"] == []
        (agent.home / "agent.json").unlink()
        assert command(*words).code == 0
        assert [module.card.task for module in Core(agent.home).tasks()] == ["dice"]

    def test_do_not_let_another_calibration_replace_the_only_copy(
        self, new_agent, other_calibration, command, tmp_path
    ):
        agent = new_agent(calibration=other_calibration)
        agent.close()
        home = agent.home
        (home / "agent.json").unlink()
        before = contents(home)
        ran = command("init", "--home", home, "--calibration", SHIPPED)
        failed(ran, f"{SHIPPED} differs from {home}/calibration.safetensors; expected the same content")
        assert "; use the latter, or move it away first if it is not the agent's" in ran.err
        assert contents(home) == before
        same = shutil.copy(other_calibration, tmp_path / "same.safetensors")
        assert command("init", "--home", home, "--calibration", same).code == 0

    def test_let_a_calibration_be_replaced_while_there_are_no_modules(self, tmp_path, other_calibration):
        create_home(tmp_path / "new", calibration=other_calibration)
        (tmp_path / "new/agent.json").unlink()
        create_home(tmp_path / "new", calibration=SHIPPED)
        assert (tmp_path / "new/calibration.safetensors").read_bytes() == SHIPPED.read_bytes()

    def test_are_those_of_the_agents_own_modules(self, home, new_agent, tiny_tasks, command):
        other = new_agent("other", compact=True, anchor="maha")
        other.export(other.learn(tiny_tasks / "dice")[0].card.task, home / "bank/00.skill")
        (home / "agent.json").unlink()
        options = advised(command("tasks", "--home", home).err)[3:]
        assert options == ["--backbone", "lite0", "--representation", "descriptor", "--anchor", "sketch"]

    @pytest.mark.parametrize(
        ("kinds", "anchor"),
        [
            ([("gmmc", "sketch"), ("sketch",)], "sketch"),
            ([("gmmc", "sketch"), ("gmmc",)], "gmmc"),
            ([("gmmc", "sketch")], "sketch"),
            ([("gmmc", "maha")], "gmmc"),
        ],
    )
    def test_have_an_anchor_that_all_modules_have(self, home, command, monkeypatch, kinds, anchor):
        agent = Core(home)
        card = agent.bank.find("dice").card
        cards = iter([card.model_copy(update={"anchors": each}) for each in kinds])
        for file in sorted((home / "bank").glob("*.skill"))[len(kinds) :]:
            file.unlink()
        monkeypatch.setattr(core_module.Module, "load", lambda *_: SimpleNamespace(card=next(cards)))
        (home / "agent.json").unlink()
        words = advised(command("tasks", "--home", home).err)
        assert words[words.index("--anchor") + 1] == anchor

    @pytest.mark.parametrize("name", ["x; touch gone '$(id)'", "x` or `skillmesh forget dice"])
    def test_quote_a_backbones_name_that_others_chose(self, home, command, name):
        module = Core(home).bank.find("dice")
        changes = {"backbone_name": name, "teacher": EVE.name, "teacher_key": EVE.public_key}
        for file in (home / "bank").glob("*.skill"):
            file.unlink()
        data = write(module.card.model_copy(update=changes), module.tensors, EVE)
        (home / "bank/00.skill").write_bytes(data)
        (home / "agent.json").unlink()
        error = command("tasks", "--home", home).err
        words = advised(error)
        assert error.count("`skillmesh ") == 1
        assert words[3:] == ([] if "`" in name else ["--backbone", name, *words[5:]])

    @pytest.mark.parametrize("open_home", [Core, Core.open])
    def test_are_noticed_in_the_middle_of_a_repair(self, home, open_home):
        for file in (home / "bank").glob("*.skill"):
            file.unlink()
        (home / "ledger.sqlite").rename(home / "ledger.new-20261118-131814-f1ed.sqlite")
        (home / "agent.json").unlink()
        with pytest.raises(AgentError, match=r"settings are lost \(found key.pem, ledger.new-\S+, 0 modules"):
            open_home(home)
        assert not (home / "agent.json").exists()

    def test_written_again_without_the_key_warn_of_another_agent(self, home, command, tmp_path):
        (home / "agent.json").unlink()
        assert "key.pem" not in command("init", "--home", home).err
        key = (home / "key.pem").read_bytes()
        for name in ("agent.json", "key.pem"):
            (home / name).unlink()
        ran = command("init", "--home", home)
        assert ran.code == 0
        agent = Core(home)
        assert agent.identity.public_key not in {module.card.teacher_key for module in agent.tasks()}
        assert f"{home} holds a ledger or modules, but had no key.pem: with the new key this is another agent" in (
            ran.err
        )
        assert "put it in place of the new one before you learn or share anything" in ran.err
        (home / "key.pem").write_bytes(key)
        agent = Core(home)
        assert {module.card.teacher_key for module in agent.tasks()} == {agent.identity.public_key}
        assert command("init", "--home", tmp_path / "new").err == ""

    def test_without_the_key_say_that_a_new_key_makes_another_agent(self, home, command):
        (home / "agent.json").unlink()
        (home / "key.pem").unlink()
        output = " ".join(command("tasks", "--home", home).err.split())
        assert "key.pem is missing too: put it back first, or the new key makes this another agent" in output

    def test_a_home_whose_creation_was_interrupted_opens_with_defaults(self, tmp_path, one_network):
        """A process was killed between writing the key and writing the settings: nothing was learned yet."""
        create_home(tmp_path / "new", name="x")
        key = (tmp_path / "new/key.pem").read_bytes()
        (tmp_path / "new/agent.json").unlink()
        assert Core.open(tmp_path / "new").tasks() == []
        assert (tmp_path / "new/key.pem").read_bytes() == key


class TestDamagedMeshSettings:
    @pytest.fixture
    def broken(self, home: Path) -> Path:
        MeshSettings.of({"trust": "open"}).save(home)
        (home / "mesh.json").write_text('{"trust": "open"')
        return home

    def test_stop_only_the_commands_that_need_them(self, broken, command, photo, tmp_path, caplog):
        for words in (
            ("tasks",),
            ("show", "dice"),
            ("ask", photo),
            ("export", "dice", tmp_path / "out.skill"),
            ("import", tmp_path / "out.skill"),
            ("trust", "list"),
            ("repair",),
            ("forget", "dice"),
        ):
            caplog.clear()
            ran = command(*words, "--home", broken)
            assert ran.code == 0, (words, ran.err)
            (warning,) = [record.message for record in caplog.records if "mesh.json" in record.message]
            assert "is damaged: found text that is not valid JSON" in warning
            assert "correct or remove the file; until then only teachers on the trust list are trusted" in warning
        command("certs", "init", tmp_path / "ca")
        before = contents(broken)
        for words in (("config",), ("status",), ("sync",), ("certs", "issue", tmp_path / "ca")):
            ran = command(*words, "--home", broken)
            assert (ran.code, "mesh.json is damaged" in ran.err) == (1, True), words
        assert contents(broken).keys() == before.keys(), "no certificate was written"
        assert (broken / "mesh.json").read_text() == '{"trust": "open"'

    def test_trust_only_listed_teachers(self, broken):
        ledger = Core(broken).ledger
        assert not ledger.open_trust
        assert ledger.trusts(BOB.public_key)
        assert not ledger.trusts(EVE.public_key)

    def test_cost_no_notice_when_the_ledger_is_repaired(self, broken, monkeypatch):
        """Under open trust a ledger may hold more notices of strangers than with a trust list."""
        agent = Core(broken)
        agent.ledger.open_trust = True
        agent.ledger.merge([announced(EVE, f"task {number}") for number in range(5)], "eve")
        agent.ledger.close()
        spoil_a_notice(broken)
        monkeypatch.setattr(ledger_module, "MAX_SEEN", 2)
        repair(Core(broken))
        assert sum(slot.teacher_key == EVE.public_key for slot in Core(broken).ledger.view().seen) == 5


# Missing permissions, and full disks.


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Return a function that mounts a temporary disk with the given options of `mount`."""
    mount = shutil.which("mount")
    folders: list[Path] = []

    def make(options: str) -> Path:
        folder = tmp_path / f"disk{len(folders)}"
        folder.mkdir()
        words = [mount, "-t", "tmpfs", "-o", options, "none", folder]
        if not mount or subprocess.run(words, check=False, capture_output=True).returncode:
            pytest.skip("no disk can be mounted here")
        folders.append(folder)
        return folder

    yield make
    for folder in folders:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("ended", ["in order", "killed", "killed, copied without shm"])
def test_a_home_on_a_read_only_disk_lists_shows_asks_and_exports(
    home, mounted, command, photo, tmp_path, ended, caplog
):
    disk = mounted("size=20m")
    agent = Core(home)
    if ended != "in order":  # the last change is in the log beside the ledger
        agent.ledger.trust("cd" * 32, "carl")
    else:
        agent.ledger.close()
    shutil.copytree(home, disk / "home")
    if ended == "killed, copied without shm":
        (disk / "home/ledger.sqlite-shm").unlink()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    before = contents(disk)
    assert {task["task"] for task in command("tasks", "--json", "--home", disk / "home").json["tasks"]} == {
        *("shapes", "dice", "latin", "greek")
    }
    for words in (("show", "dice"), ("ask", photo), ("status",), ("export", "dice", tmp_path / "out.skill")):
        ran = command(*words, "--home", disk / "home")
        assert ran.code == 0, ran.err
    trusted = command("trust", "list", "--home", disk / "home").out
    assert "bob" in trusted
    assert ("carl" in trusted) == (ended != "in order")
    assert command("quarantine", "list", "--home", disk / "home").code == 0
    for words in (
        ("forget", "dice"),
        ("import", tmp_path / "out.skill"),
        ("learn", photo.parents[2]),
        ("repair",),
    ):
        ran = command(*words, "--home", disk / "home")
        assert ran.code == 1
        assert "writable" in ran.err
        assert "Traceback" not in ran.err
    assert contents(disk) == before
    assert [record for record in caplog.records if "ledger" in record.message] == []
    agent.ledger.close()


def test_on_a_full_disk_nothing_half_written_is_left(new_agent, mounted, skill_files, command, tmp_path):
    disk = mounted("size=1m")
    home = disk / "home"
    create_home(home, name="alice")
    Core(home).import_file(skill_files["dice"])
    room = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes((room.f_bavail - 3) * room.f_bsize))
    before = contents(home)
    agent = Core(home)
    with pytest.raises(AgentError, match="make room"):
        [agent.import_file(skill_files[name]) for name in ("shapes", "latin", "greek")]
    left = {name for name in contents(home) if name not in before and "ledger" not in name}
    assert not [name for name in left if "partial" in name]
    with pytest.raises(AgentError, match="make room"):
        agent.export("dice", disk / "large.skill")
    assert not (disk / "large.skill").exists()
    for words in (("tasks",), ("show", "dice"), ("status",), ("export", "dice", tmp_path / "out.skill")):
        assert command(*words, "--home", home).code == 0
    (disk / "ballast").unlink()
    for name in ("shapes", "latin", "greek"):
        Core(home).import_file(skill_files[name])
    assert len(Core(home).bank) == 4


def test_a_full_disk_while_learning_leaves_no_validation_images(new_agent, tiny_tasks, monkeypatch):
    agent = new_agent()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("skillmesh.store.bank.write_whole", full)
        with pytest.raises(AgentError, match="cannot write to the bank"):
            agent.learn(tiny_tasks / "dice")
    assert list((agent.home / "validation").iterdir()) == []
    assert agent.learn(tiny_tasks / "dice")[0].card.version == 1


def test_if_the_ledger_fails_after_the_module_is_stored_the_error_says_so(new_agent, tiny_tasks, monkeypatch):
    agent = new_agent()
    add = agent.bank.add

    def then_no_room(*given: Any) -> Any:
        module = add(*given)
        agent.ledger._database.execute("PRAGMA max_page_count = 1")
        return module

    monkeypatch.setattr(agent.bank, "add", then_no_room)
    with pytest.raises(AgentError) as caught:
        agent.learn(tiny_tasks / "dice", note="x" * 300)
    assert "the task 'dice' is stored and can be used, but is not announced" in str(caught.value)
    assert "nothing was changed" not in str(caught.value)
    assert "make room" in str(caught.value)
    assert [module.card.task for module in Core(agent.home).bank] == ["dice"]


def test_a_module_that_cannot_be_used_keeps_its_validation_images(home, tiny_tasks):
    """If the module becomes usable again, received modules are tried on these images again."""
    kept = validation_of(home)
    (home / "bank" / f"{kept[0]}.skill").write_bytes(b"damaged")
    module, _ = Core(home).learn(tiny_tasks / "snowflakes")
    assert validation_of(home) == sorted([*kept, module.id])


def test_a_missing_module_file_is_not_reported_as_a_full_disk(home, command, tmp_path, monkeypatch):
    def gone(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr("skillmesh.store.bank.Bank.file_of", gone)
    ran = command("export", "dice", tmp_path / "out.skill", "--home", home)
    assert ran.code == 1
    output = " ".join(ran.err.split())
    assert "the file of 'dice' in the bank cannot be read: No such file or directory; import the task or" in output
    assert "make room" not in output


@pytest.mark.parametrize(("number", "advice"), [(errno.ENOSPC, "make room"), (errno.EACCES, "you have access")])
def test_the_advice_to_make_room_is_given_only_for_a_full_disk(home, command, monkeypatch, number, advice):
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Core, "tasks", fail)
    ran = command("tasks", "--home", home)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert advice in ran.err
    assert ("make room" in ran.err) == (number == errno.ENOSPC)


def test_partial_files_of_killed_commands_are_removed_when_the_home_is_opened(home):
    abandoned = [home / folder / ".skillmesh-0123456789abcdef.partial" for folder in (".", "validation", "bank")]
    old = home / "mesh.json.partial"
    for path in (*abandoned, old):
        path.write_bytes(b"half")
    os.utime(old, (0, time.time() - 7200))
    Core(home)
    assert [path for path in (*abandoned, old) if path.exists()] == []


# Two commands at once.


def learn_at_once(
    monkeypatch: pytest.MonkeyPatch, home: Path, *ways: Callable[[Core], tuple[Any, Any]]
) -> list[Any]:
    """Let several agents on one home learn, and store their lessons only when all have finished."""
    studied = threading.Barrier(len(ways))
    study = lesson_module.study

    def together(*arguments: Any, **options: Any) -> Any:
        lesson = study(*arguments, **options)
        studied.wait(60)
        return lesson

    monkeypatch.setattr(lesson_module, "study", together)
    results: list[Any] = [None] * len(ways)

    def run(number: int) -> None:
        try:
            results[number] = ways[number](Core(home))[0]
        except AgentError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(ways))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def validation_of(home: Path) -> list[str]:
    return sorted(path.stem for path in (home / "validation").iterdir())


class TestTwoAtOnce:
    def test_if_two_commands_learn_one_task_the_second_gets_an_error(self, new_agent, tiny_tasks, monkeypatch):
        home = new_agent().home
        ways = [lambda agent, name=name: agent.learn(tiny_tasks / name, name="game") for name in ("dice", "latin")]
        results = learn_at_once(monkeypatch, home, *ways)
        (error,) = [result for result in results if isinstance(result, Exception)]
        (module,) = [result for result in results if not isinstance(result, Exception)]
        assert isinstance(error, TaskExistsError)
        assert "another command has learned the task 'game' meanwhile" in str(error)
        agent = Core(home)
        assert [m.id for m in agent.bank] == validation_of(home) == [module.id]
        (notice,) = agent.ledger.view().known.values()
        assert (notice.id, notice.version) == (module.id, 1)

    def test_if_several_commands_replace_a_task_each_gets_the_next_version(
        self, new_agent, tiny_tasks, monkeypatch
    ):
        home = new_agent().home
        ways = [
            lambda agent, name=name: agent.learn(tiny_tasks / name, name="game", replace=True)
            for name in ("dice", "latin", "greek")
        ]
        results = learn_at_once(monkeypatch, home, *ways)
        assert sorted(module.card.version for module in results) == [1, 2, 3]
        last = max(results, key=lambda module: module.card.version)
        assert [m.id for m in Core(home).bank] == validation_of(home) == [last.id]

    def test_extending_a_task_that_another_command_changed_meanwhile_is_refused(
        self, new_agent, tiny_tasks, monkeypatch
    ):
        agent = new_agent()
        agent.learn(tiny_tasks / "dice")
        from skillmesh.synergy import continuing

        study_extension = continuing.study_extension

        def late(*arguments: Any) -> Any:
            lesson = study_extension(*arguments)
            Core(agent.home).learn(tiny_tasks / "latin", name="dice", replace=True)
            return lesson

        monkeypatch.setattr(continuing, "study_extension", late)
        with pytest.raises(TaskExistsError, match="was changed by another command meanwhile; nothing was stored"):
            agent.continue_task("dice", tiny_tasks / "dice")
        (module,) = Core(agent.home).bank
        assert (module.card.version, validation_of(agent.home)) == (2, [module.id])


def test_rows_for_which_sqlite_reports_no_memory_are_damage_and_others_are_kept(
    new_agent: Callable[..., Core],
) -> None:
    """The campaign of attacks fixture such a file. SQLite reports a lack of memory that does not exist."""
    home = new_agent("student").home
    fixture = Path(__file__).parents[1] / "fixtures/hostile/ledger/no-memory-for-a-row.gz"
    (home / "ledger.sqlite").write_bytes(gzip.decompress(fixture.read_bytes()))
    with pytest.raises(LedgerDamagedError, match="a row of it cannot be read"):
        Core(home).ledger.trust("ab" * 32, "ada")
    done = repair(Core(home))
    assert (done.kept["notices"], done.kept["trusted"], done.lost) == (3, 1, ("notices",))
    assert Core(home).ledger.damage is None


def test_a_real_lack_of_memory_is_not_reported_as_damage(
    new_agent: Callable[..., Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = new_agent("student").ledger

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ledger, "_read", full)
    ledger._view = None
    with pytest.raises(MemoryError):
        ledger.view()
    assert ledger.damage is None


# Other users of the machine.


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user of the machine can read; pytest's own folders are private."""
    folder = Path(tempfile.mkdtemp(prefix="skillmesh-public-"))
    folder.chmod(0o755)
    (folder / "public").write_text("for all")
    (folder / "public").chmod(0o644)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o700)  # or an ordinary user cannot remove what is in it
    shutil.rmtree(folder)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def as_nobody(work: Callable[[], Any]) -> Any:
    """Call a function as another user, in a child process; return its result, or its error as text."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    reading_end, writing_end = os.pipe()
    child = os.fork()
    if not child:
        result: Any = "it failed"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            result = work()
        except BaseException as error:
            result = repr(error)
        finally:
            os.write(writing_end, pickle.dumps(result))
            os._exit(0)
    os.close(writing_end)
    with os.fdopen(reading_end, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer)


def test_a_file_can_be_written_into_a_folder_without_read_permission(public: Path) -> None:
    public.chmod(0o333)
    assert as_nobody(lambda: write_whole(public / "module.skill", b"new")) is None
    assert (public / "module.skill").read_bytes() == b"new"


def readable(paths: list[Path], socket_file: Path) -> list[str]:
    """Return the names of the paths that the user of this process can open, list or connect to."""
    reached = []
    for path in paths:
        try:
            if stat.S_ISDIR(path.stat().st_mode):
                list(path.iterdir())
            else:
                path.open("rb").close()
            reached.append(path.name)
        except PermissionError:
            pass
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(str(socket_file))
            reached.append(socket_file.name)
        except PermissionError:
            pass
    return reached


def test_another_user_can_read_nothing_in_a_home(public, no_umask, one_network, tiny_tasks, skill_files):
    home = public / "home"
    agent = Core.open(home)
    agent.learn(tiny_tasks / "dice")
    agent.import_file(skill_files["latin"])
    Shelf(home, agent.ledger).hold("ab" * 32, skill_files["greek"].read_bytes(), "it lies")
    MeshSettings.of({}).save(home)
    control = Control(home, {"hello": lambda: "world"})
    assert call(home, "hello") == "world"
    try:
        private = [home, *home.rglob("*")]
        assert {"key.pem", "ledger.sqlite", "ledger.sqlite-wal", "agent.json", "mesh.json", "validation"} < {
            path.name for path in private
        }
        assert len(list((home / "validation").iterdir())) == 1
        sockets = home / "node.socket"
        assert as_nobody(lambda: readable([public, public / "public"], sockets)) == [public.name, "public"]
        assert as_nobody(lambda: readable(private, sockets)) == []
        home.chmod(0o711)  # opening the folder itself must not open the files in it
        assert as_nobody(lambda: readable([path for path in private if path != home], sockets)) == []
    finally:
        control.close()


def test_nothing_is_readable_by_others_even_for_a_moment(public, no_umask, one_network, tiny_tasks, monkeypatch):
    """Permissions cannot be changed afterwards here, so files must be created with the right ones."""
    for name in ("chmod", "fchmod", "lchmod"):
        monkeypatch.setattr(os, name, lambda *_, **__: None, raising=False)
    monkeypatch.setattr(Path, "chmod", lambda *_, **__: None)
    home = public / "home"
    agent = Core.open(home)
    agent.learn(tiny_tasks / "dice")
    Shelf(home, agent.ledger).hold("ab" * 32, b"a module", "it lies")
    MeshSettings.of({}).save(home)
    agent.ledger.trust(BOB.public_key, "bob")
    modes = {
        path.relative_to(public).as_posix(): path.lstat().st_mode & 0o777 for path in [home, *home.rglob("*")]
    }
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def test_a_readable_home_of_an_earlier_release_is_closed_with_a_warning(home, caplog):
    home.chmod(0o755)
    (home / "bank").chmod(0o755)
    (home / "ledger.sqlite").chmod(0o644)
    Core(home)
    assert [record.message for record in caplog.records] == [
        f"{home} could be read by other users of this machine; it is closed to them now"
    ]
    assert {path.name: path.stat().st_mode & 0o077 for path in (home, *home.iterdir())} == dict.fromkeys(
        (home.name, *(path.name for path in home.iterdir())), 0
    )
    caplog.clear()
    Core(home)
    assert caplog.records == []


def test_a_folder_with_other_files_keeps_its_permissions(tmp_path, one_network):
    """`--home /srv/photos` must not close the photos to other users."""
    (tmp_path / "photos").mkdir()
    tmp_path.chmod(0o755)
    agent = Core.open(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "photos").stat().st_mode & 0o777 == 0o755
    own = ["agent.json", "key.pem", "ledger.sqlite", "bank"]
    assert [(tmp_path / name).stat().st_mode & 0o077 for name in own] == [0, 0, 0, 0]
    assert len(agent.bank) == 0


def keep_own_calibration(home: Path) -> None:
    """Put the shipped calibration into a home, for a user who may not read the folder of this package."""
    config = AgentConfig.load(home)
    with as_file(files_of("skillmesh.backbone") / "calibrations" / "lite0.safetensors") as shipped:
        shutil.copy(shipped, home / CALIBRATION_FILE)
    config.model_copy(update={"calibration": CALIBRATION_FILE}).save(home)


def test_a_home_without_write_permission_is_read_by_its_owner(public, home, tmp_path):
    shutil.copytree(home, public / "home")
    keep_own_calibration(public / "home")
    paths = [public / "home", *(public / "home").rglob("*")]
    is_root = os.geteuid() == 0
    for path in paths:
        if is_root:  # a user who may write everywhere proves nothing
            os.chown(path, NOBODY, NOBODY)
        path.chmod(0o500 if path.is_dir() else 0o400)

    def look(folder: Path) -> object:
        agent = Core(folder)
        return sorted(m.card.task for m in agent.tasks()), agent.teachers.called(BOB.public_key, None)

    look(home)  # imports everything now: another user may not read this Python
    seen = as_nobody(lambda: look(public / "home")) if is_root else look(public / "home")
    assert seen == (["dice", "greek", "latin", "shapes"], "bob")


def test_a_ledger_of_another_user_is_not_reported_as_damaged(public, home):
    path = public / "ledger.sqlite"
    shutil.copy(home / "ledger.sqlite", path)
    path.chmod(0o600)
    output = as_nobody(lambda: Ledger(path, BOB.public_key).damage)
    assert output.startswith(f"AgentError('the ledger {path} cannot be read: Permission denied; ")
    assert "repair" not in output


@pytest.fixture
def photo(tiny_tasks: Path) -> Path:
    return min((tiny_tasks / "dice/train").glob("*/*"))
