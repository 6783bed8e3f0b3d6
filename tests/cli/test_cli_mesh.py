"""The commands trust, quarantine, withdraw, config, certs and status, with no node running."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from notices import ALICE, BOB, announced
from running import LEARNED, Ran, failed

from skillmesh.cli import show
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.mesh.shelf import Shelf
from skillmesh.module import Module
from skillmesh.module.notice import Slot, Withdrawal, withdraw
from skillmesh.module.teachers import claimed

Command = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    for console in (show.console, show.stderr):
        monkeypatch.setattr(console, "_width", 250)


@pytest.fixture
def home(tiny_taught: Core, tmp_path: Path) -> Path:
    """Home of Tina, who taught the four tiny tasks; tests may change it."""
    shutil.copytree(tiny_taught.home, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def student(new_agent: Callable[..., Core], skill_files: dict[str, Path]) -> Core:
    """An agent that imported two of Tina's modules."""
    agent = new_agent("student")
    for name in ("dice", "latin"):
        agent.import_file(skill_files[name])
    return agent


@pytest.fixture
def tina(tiny_taught: Core) -> str:
    return tiny_taught.identity.public_key


@pytest.fixture
def dice(student: Core, skill_files: dict[str, Path]) -> Module:
    """Tina's dice, in the student's quarantine instead of its bank."""
    module = student.bank.find("dice")
    Shelf(student.home, student.ledger).hold(module.id, skill_files["dice"].read_bytes(), "it claims everything")
    student.bank.remove(module)
    return module


def tasks(home: Path) -> list[str]:
    return [module.card.task for module in Core(home).tasks()]


class TestTrust:
    def test_show_mine_prints_the_key_and_nothing_else(self, command: Command, home: Path, tina: str):
        assert command("trust", "show-mine", "--home", home).out == f"{tina}\n"

    def test_an_added_teacher_is_listed(self, command: Command, home: Path):
        assert "no teacher but itself" in command("trust", "list", "--home", home).out
        ran = command("trust", "add", ALICE.public_key, "--name", "alice", "--home", home)
        assert ran == (0, f"trusts alice ({ALICE.public_key[:12]}…)\n", "")
        assert command("trust", "list", "--home", home).out == f"{ALICE.public_key}  alice\n"
        said = command("trust", "list", "--home", home, "--json").json
        assert said == {"trusted": [{"key": ALICE.public_key, "name": "alice"}]}

    def test_a_teacher_without_a_given_name_is_shown_by_claimed_name_and_key(self, command: Command, home: Path):
        Core(home).ledger.merge([announced(BOB)], "bob")
        ran = command("trust", "add", BOB.public_key, "--home", home)
        assert f"trusts bob~{BOB.public_key[:8]} (" in ran.out
        assert f"trust add {BOB.public_key} --name NAME`" in ran.out
        assert Slot(BOB.public_key, "dice") in Core(home).ledger.view().known
        assert f"trusts {ALICE.public_key[:12]} (" in command("trust", "add", ALICE.public_key, "--home", home).out

    @pytest.mark.parametrize("key", ["alice", "ab" * 31, "AB" * 32, "ab" * 33])
    def test_an_invalid_key_is_refused(self, command: Command, home: Path, key: str):
        failed(
            command("trust", "add", key, "--home", home), f"{key!r} is not a public key; expected 64 hex digits"
        )
        assert Core(home).ledger.view().trusted == {}

    @pytest.mark.parametrize("by", ["key", "name", "beginning"])
    def test_remove_moves_modules_to_quarantine_and_add_brings_them_back(
        self, command: Command, student: Core, tina: str, by: str
    ):
        home = student.home
        command("trust", "add", tina, "--name", "tina", "--home", home)
        named = {"key": tina, "name": "tina", "beginning": tina[:10]}[by]
        ran = command("trust", "remove", named, "--home", home)
        assert ran == (0, "tina is no longer trusted; modules moved to quarantine: 2\n", "")
        assert tasks(home) == []
        listed = command("quarantine", "list", "--home", home).out
        assert listed.count("its teacher tina is not trusted any more") == 2
        command("trust", "add", tina, "--home", home)
        assert tasks(home) == ["dice", "latin"]
        assert command("quarantine", "list", "--home", home).out == "no modules in quarantine\n"

    def test_removing_an_untrusted_teacher_lists_the_trusted_ones(self, command: Command, home: Path):
        failed(command("trust", "remove", "eve", "--home", home), "0 trusted teachers match 'eve'", "none")
        command("trust", "add", ALICE.public_key, "--name", "alice", "--home", home)
        failed(command("trust", "remove", "eve", "--home", home), f"trusted teachers: alice {ALICE.public_key}")


class TestQuarantine:
    def test_lists_held_modules_with_reasons(self, command: Command, student: Core, dice: Module):
        text = command("quarantine", "list", "--home", student.home).out
        first, why, release, drop = text.splitlines()
        assert first.startswith(f"dice by {claimed(dice.card)}, since 20")
        assert why == "  it claims everything"
        for line, verb in ((release, "release"), (drop, "drop")):
            assert line.endswith(f"`skillmesh --home {student.home} quarantine {verb} {dice.id[:12]}`")
        (said,) = command("quarantine", "list", "--json", "--home", student.home).json["held"]
        facts = {"task": "dice", "teacher": claimed(dice.card), "id": dice.id, "reason": "it claims everything"}
        assert facts.items() <= said.items()

    @pytest.mark.parametrize("by", ["dice", "dice@tina", "id"])
    def test_a_released_module_answers(self, command: Command, student: Core, dice: Module, by: str):
        ran = command("quarantine", "release", dice.id if by == "id" else by, "--home", student.home)
        assert ran == (0, f"released 'dice' by {claimed(dice.card)}\n", "")
        assert tasks(student.home) == ["dice", "latin"]
        assert command("quarantine", "list", "--home", student.home).out == "no modules in quarantine\n"

    def test_drop_throws_it_away(self, command: Command, student: Core, dice: Module):
        ran = command("quarantine", "drop", "dice", "--home", student.home)
        assert ran == (0, f"dropped 'dice' by {claimed(dice.card)}\n", "")
        assert tasks(student.home) == ["latin"]
        assert command("quarantine", "list", "--json", "--home", student.home).json == {"held": []}
        status = command("status", "--json", "--home", student.home).json
        assert [r["id"] for r in status["refused"]] == [dice.id]

    def test_an_unknown_module_lists_the_held_ones(self, command: Command, student: Core, dice: Module):
        for verb in ("release", "drop"):
            ran = command("quarantine", verb, "birds", "--home", student.home)
            failed(ran, "no module in quarantine matches 'birds'", f"dice@{claimed(dice.card)} ({dice.id[:12]})")


class TestWithdraw:
    def test_withdraws_an_own_task(self, command: Command, home: Path, tina: str):
        ran = command("withdraw", "dice", "--reason", "mislabelled", "--home", home)
        assert ran.code == 0
        assert ran.out.startswith("withdrew 'dice' up to version 1; ")
        assert "dice" not in tasks(home)
        notice = Core(home).ledger.view().known[Slot(tina, "dice")]
        assert isinstance(notice, Withdrawal)
        assert notice.reason == "mislabelled"

    def test_withdrawing_another_teachers_task_is_refused(self, command: Command, student: Core):
        failed(
            command("withdraw", "dice", "--home", student.home),
            "has taught no task 'dice'",
            f"skillmesh --home {student.home} forget",
        )
        assert tasks(student.home) == ["dice", "latin"]

    def test_import_refuses_a_withdrawn_module(
        self, command: Command, student: Core, tiny_taught: Core, skill_files
    ):
        command("forget", "dice", "--home", student.home)
        student.ledger.merge([withdraw("dice", 1, tiny_taught.identity)], "tina")
        ran = command("import", skill_files["dice"], "--home", student.home)
        failed(
            ran, f"WithdrawnError: tina~{tiny_taught.identity.public_key[:8]} has withdrawn version 1 of 'dice'"
        )
        assert tasks(student.home) == ["latin"]


class TestForgetAndRemember:
    def test_a_forgotten_task_can_be_remembered(self, command: Command, student: Core, tina: str):
        assert command("forget", "dice", "--home", student.home).out == f"forgot 'dice' by tina~{tina[:8]}\n"
        status = command("status", "--json", "--home", student.home).json
        assert status["forgotten"] == [{"task": "dice", "teacher_key": tina}]
        ran = command("remember", "dice", "--home", student.home)
        assert ran == (0, "'dice' comes back at the next sync\n", "")
        assert student.ledger.view().forgotten == frozenset()

    def test_of_two_teachers_one_must_be_named(self, command: Command, student: Core, tina: str):
        student.forget("dice")
        student.ledger.forget(Slot(BOB.public_key, "dice"))
        ran = command("remember", "dice", "--home", student.home)
        failed(ran, "several forgotten tasks are named 'dice'", f"dice@tina~{tina[:8]}")
        assert command("remember", f"dice@tina~{tina[:8]}", "--home", student.home).code == 0
        assert student.ledger.view().forgotten == {Slot(BOB.public_key, "dice")}

    def test_remembering_a_task_that_was_not_forgotten_lists_the_forgotten_ones(
        self, command: Command, student: Core
    ):
        ran = command("remember", "dice", "--home", student.home)
        failed(ran, "no forgotten task is named 'dice'; forgotten tasks: none")


class TestConfig:
    def test_shows_the_defaults(self, command: Command, home: Path):
        lines = command("config", "--home", home).out.splitlines()
        assert {"network=machine", "trust=listed", "listen=", "interests=", "sync_seconds=10.0"} <= set(lines)
        said = command("config", "--json", "--home", home).json
        assert said == json.loads(MeshSettings.of({}).model_dump_json())
        assert not (home / "mesh.json").exists()

    def test_saves_changed_settings(self, command: Command, home: Path):
        words = (
            "network=fixed",
            "connect=10.0.0.1:7447, 10.0.0.2:7448",
            "interests=bird*,tag:farm",
            "quota_bytes=5",
        )
        assert command("config", *words, "--home", home).code == 0
        assert command("config", "sync_seconds=2.5", "--home", home).code == 0
        kept = MeshSettings.load(home)
        assert (kept.network, kept.quota_bytes, kept.sync_seconds) == ("fixed", 5, 2.5)
        assert kept.connect == ("tcp/10.0.0.1:7447", "tcp/10.0.0.2:7448")
        assert kept.interests == ("bird*", "tag:farm")
        assert "interests=bird*,tag:farm\n" in command("config", "--home", home).out
        command("config", "interests=", "--home", home)
        assert MeshSettings.load(home).interests == ()

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ("network=moon", "network"),
            ("quota_bytes=lots", "quota_bytes"),
            ("quota_bytes=-1", "quota_bytes"),
            ("quota_bytes=", "quota_bytes"),
            ("modules_per_hour=0", "modules_per_hour"),
            ("sync_seconds=nan", "sync_seconds"),
            ("sync_seconds=0", "sync_seconds"),
            ("discovery_port=70000", "discovery_port"),
            ("connect=nowhere", "'nowhere' is not the address"),
            ("connect=10.0.0.1:99999", "port 99999"),
            ("connect=10.0.0.1:7447", "stays on this machine"),
            ("network=client", "needs a gateway"),
            ("trust=everyone", "trust"),
            ("colour=red", "'colour=red' is not a setting; expected NAME=VALUE, NAME being one of network, "),
            ("network", "'network' is not a setting"),
        ],
    )
    def test_refuses_invalid_values_and_keeps_the_old_ones(
        self, command: Command, home: Path, change: str, word: str
    ):
        command("config", "quota_bytes=7", "--home", home)
        before = (home / "mesh.json").read_bytes()
        failed(command("config", "max_module_bytes=9", change, "--home", home), word)
        assert (home / "mesh.json").read_bytes() == before

    def test_damaged_settings_are_reported(self, command: Command, home: Path):
        for text in ("{", '{"colour": "red"}', '{"quota_bytes": -1}'):
            (home / "mesh.json").write_text(text)
            failed(command("config", "--home", home), "mesh.json is damaged", "correct or remove the file")


class TestCerts:
    @pytest.fixture
    def authority(self, command: Command, tmp_path: Path) -> Path:
        ran = command("certs", "init", tmp_path / "ca")
        assert ran == (0, f"made a certificate authority in {tmp_path / 'ca'}; keep its key secret\n", "")
        return tmp_path / "ca"

    def test_init_makes_an_authority_once(self, command: Command, authority: Path):
        key = (authority / "ca.key").read_bytes()
        assert (authority / "ca.key").stat().st_mode & 0o077 == 0
        failed(command("certs", "init", authority), "ca.key already exists")
        assert (authority / "ca.key").read_bytes() == key

    def test_issue_turns_tls_on_for_the_agent(self, command: Command, authority: Path, home: Path, tina: str):
        ran = command("certs", "issue", authority, "--home", home)
        assert ran.code == 0
        assert "TLS is on" in ran.out
        tls = MeshSettings.load(home).tls
        assert tls is not None
        files = tls.beside(home)
        assert {files.ca.name, files.certificate.name, files.key.name} == {"ca.pem", "agent.pem", "agent.key"}
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        assert [name.value for name in names] == [tina]
        assert files.key.stat().st_mode & 0o077 == 0
        assert "tls=" in command("config", "--home", home).out

    def test_issue_for_another_agent_writes_to_out(self, command: Command, authority, home, tmp_path):
        words = ("certs", "issue", authority, "--key", ALICE.public_key, "--name", "alice")
        failed(command(*words), "--key needs --out DIR")
        assert command(*words, "--out", tmp_path / "out").code == 0
        assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["agent.key", "agent.pem", "ca.pem"]
        assert MeshSettings.load(home).tls is None

    def test_issue_needs_an_authority_and_a_valid_key(self, command: Command, authority, home, tmp_path):
        failed(command("certs", "issue", tmp_path / "none", "--home", home), "cannot read", "ca.pem")
        bad = command("certs", "issue", authority, "--key", "xyz", "--out", tmp_path / "out")
        failed(bad, "'xyz' is not a public key")
        assert MeshSettings.load(home).tls is None


class TestStatus:
    def test_without_a_node_shows_that_and_the_tasks(self, command: Command, home: Path):
        ran = command("status", "--home", home)
        assert (ran.code, ran.err) == (0, "")
        first, second = ran.out.splitlines()
        hint = f"run `skillmesh --home {home} serve`"
        assert first == f"agent 'tina' is not sharing (network machine, trust listed); {hint}"
        assert second.startswith("  4 tasks, ")
        assert "root " not in ran.out

    def test_json_has_all_facts(self, command: Command, student: Core, dice: Module):
        ledger = student.ledger
        ledger.merge([announced(ALICE), withdraw("old", 3, ALICE), announced(BOB)], "alice")
        ledger.trust(ALICE.public_key, "alice")
        ledger.choose("ab" * 32, "refused", "bad signature")
        ledger.ban(BOB.public_key, "lied")
        student.forget("latin")
        said = command("status", "--json", "--home", student.home).json
        expected = {
            "running": False,
            "name": "student",
            "key": student.identity.public_key,
            "home": str(student.home),
            "trust": "listed",
            "root": ledger.view().root,
            "known": 1,
            "withdrawn": 1,
            "live": 0,
            "missing": 1,
            "bytes": 0,
        }
        assert {name: said[name] for name in expected} == expected
        assert [(h["task"], h["reason"]) for h in said["held"]] == [("dice", "it claims everything")]
        assert [(r["id"], r["reason"]) for r in said["refused"]] == [("ab" * 32, "bad signature")]
        assert said["forgotten"] == [{"task": "latin", "teacher_key": dice.card.teacher_key}]
        assert said["seen"] == [
            {"task": "dice", "teacher": f"bob~{BOB.public_key[:8]}", "teacher_key": BOB.public_key}
        ]
        assert said["bans"] == [{"agent": BOB.public_key, "reason": "lied"}]

    def test_text_has_all_facts(self, command: Command, student: Core, dice: Module):
        student.ledger.merge([announced(BOB, f"task {i}") for i in range(7)], "bob")
        student.ledger.choose("ab" * 32, "refused", "bad signature")
        student.ledger.ban(BOB.public_key, "lied")
        (latin,) = student.bank.folder.glob("*.skill")
        latin.write_bytes(b"")
        ran = command("status", "--home", student.home)
        assert ran.code == 0
        for words in (
            f" and 2 more by bob~{BOB.public_key[:8]}; to trust it:",
            f"    `skillmesh --home {student.home} trust add {BOB.public_key} --name NAME`",
            f"in quarantine: dice by {claimed(dice.card)}: it claims everything",
            "refused: abababababab…: bad signature",
            f"banned: {BOB.public_key[:12]}…: lied",
        ):
            assert words in ran.out
        assert ran.out.count("it claims everything") == 1
        assert f"damaged: {latin.name}: " in ran.err

    def test_open_trust_counts_tasks_of_all_teachers(self, command: Command, student: Core):
        student.ledger.merge([announced(BOB)], "bob")
        command("config", "trust=open", "--home", student.home)
        said = command("status", "--json", "--home", student.home).json
        assert (said["trust"], said["known"], said["seen"]) == ("open", 1, [])


class TestPeers:
    def test_needs_a_node(self, command: Command, home: Path):
        text = f"no node runs on {home}; start one with `skillmesh --home {home} serve`"
        failed(command("peers", "--home", home), text)
        assert command("peers", "--json", "--home", home).json == {"error": text}

    def test_a_ban_can_be_lifted(self, command: Command, home: Path):
        agent = Core(home)
        for identity in (ALICE, BOB):
            agent.ledger.ban(identity.public_key, "lied")
        failed(
            command("peers", "--unban", "zz", "--home", home), "0 banned agents have a key that begins with 'zz'"
        )
        failed(command("peers", "--unban", "", "--home", home), "2 banned agents have a key that begins with ''")
        ran = command("peers", "--unban", ALICE.public_key[:8], "--home", home)
        assert ran == (0, f"{ALICE.public_key[:12]}… is no longer banned\n", "")
        assert agent.ledger.view().bans.keys() == {BOB.public_key}


class TestLearn:
    def test_puts_tags_on_the_card(self, command: Command, tmp_path: Path, tiny_tasks: Path):
        words = ("learn", tiny_tasks / "dice", "--home", tmp_path / "new")
        said = command(*words, "--tag", "toys", "--tag", "games", "--json").json
        assert said["tags"] == ["games", "toys"]
        assert Core(tmp_path / "new").bank.find("dice").card.tags == ("games", "toys")

    def test_refuses_bad_tags(self, command: Command, home: Path, tiny_tasks: Path):
        ran = command("learn", tiny_tasks / "dice", "--name", "new", "--tag", "No Tag", "--home", home)
        failed(ran, "a tag is 'No Tag', expected", "choose another")
        assert tasks(home) == sorted(LEARNED)


def test_a_command_creates_a_missing_agent_and_says_so(command: Command, tmp_path: Path):
    for words in (
        ("status",),
        ("tasks",),
        ("config",),
        ("trust", "list"),
        ("trust", "show-mine"),
        ("quarantine", "list"),
    ):
        home = tmp_path / "-".join(words)
        ran = command(*words, "--home", home)
        assert ran.code == 0, ran.err
        assert ran.err == f"made a new agent {home.name!r} at {home}\n"
        assert command(*words, "--home", home).err == ""
