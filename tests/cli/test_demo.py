"""The demo with few agents: its output, and that it leaves no process behind."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from PIL import Image
from rich.console import Console
from running import Ran

from skillmesh.cli import show
from skillmesh.cli.demo import member as crews
from skillmesh.cli.demo.guard import ended_by_signals, only_one
from skillmesh.cli.demo.member import Crew, Member
from skillmesh.cli.demo.plan import DemoPlan
from skillmesh.cli.demo.screen import as_dict, print_outcome, screen
from skillmesh.cli.demo.story import StoryOutcome, play
from skillmesh.data.demo import LEARNED
from skillmesh.errors import AgentError, BackboneError
from skillmesh.mesh.calling import NotRunningError, call
from skillmesh.mesh.process import free_port

pytestmark = pytest.mark.long

SMALL = DemoPlan(
    learned=("dice", "latin", "greek"),
    hidden=("snowflakes",),
    images={"train": 3, "val": 1, "test": 2},
    teachers=("ada", "dee"),
)
RUN = f"""
from pathlib import Path
from skillmesh.cli.demo import run
from skillmesh.cli.demo.plan import DemoPlan
run(Path("OUT"), None, True, {SMALL!r})
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def outcome(out: Path) -> StoryOutcome:
    return play(out, SMALL, None)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    for console in (show.console, show.stderr):
        monkeypatch.setattr(console, "_width", 250)


class TestTheStory:
    def test_everyone_knows_everything_and_answers_the_same(self, outcome: StoryOutcome):
        assert list(outcome.sheets) == ["ada", "eve"]
        assert outcome.same_answers
        assert outcome.same_modules == 3
        ada = outcome.sheets["ada"]
        assert len(ada.answers) == 2 * (6 + 8 + 7 + 6)
        assert ada.mean("found", SMALL.learned) > 0.8

    def test_the_killed_agents_tasks_stay_known(self, outcome: StoryOutcome):
        ada, dee, eve = outcome.members
        assert dee.killed
        assert not any(member.node.process for member in outcome.members)
        assert ada.since.keys() == eve.since.keys() == set(SMALL.learned)
        assert ada.agent.bank.find("latin").card.teacher == eve.agent.bank.find("latin").card.teacher == "dee"

    def test_as_json(self, outcome: StoryOutcome):
        said = json.loads(json.dumps(as_dict(outcome), allow_nan=False))
        assert [(a["agent"], a["learned"]) for a in said["agents"]] == [("ada", 2), ("dee", 1), ("eve", 0)]
        ada, _, eve = said["agents"]
        assert eve["received"] == 3
        assert eve["bytes_fetched"] == sum(task["module_bytes"] for task in said["tasks"])
        assert ada["answers_sha256"] == eve["answers_sha256"]
        assert [task["teacher"] for task in said["tasks"]] == ["ada", "dee", "ada"]
        assert [task["task"] for task in said["hidden"]] == ["snowflakes"]
        assert said["speedup"] == pytest.approx(said["alone_seconds"] / said["together_seconds"], abs=0.01)
        assert said["late"]["seconds"] > said["late"]["seconds_on_the_mesh"] > 0

    def test_as_text(self, outcome: StoryOutcome, capsys: pytest.CaptureFixture[str]):
        print_outcome(outcome)
        shown = capsys.readouterr().out
        for words in ("learned", "received", "killed", "the same 54 answers, bit by bit", "3 of 3 modules"):
            assert words in shown
        for words in ("eve came late", "one alone in", "snowflakes", f"picture: {outcome.picture}"):
            assert words in shown

    def test_the_picture(self, outcome: StoryOutcome):
        with Image.open(outcome.picture) as picture:
            assert picture.size[0] > 1000

    def test_the_grid_is_live_on_a_terminal(self, outcome: StoryOutcome, monkeypatch: pytest.MonkeyPatch):
        terminal = io.StringIO()
        monkeypatch.setattr(show, "stderr", Console(file=terminal, force_terminal=True, width=100, height=40))
        with screen(SMALL.learned) as view:
            view.event("something happens")
            view.news(outcome.members, {})
            view.status("7 of 54 answered")
        for words in ("something happens", "received", "killed", "7 of 54 answered"):
            assert words in terminal.getvalue()


@pytest.mark.slow
def test_a_second_time_in_the_same_folder(
    command: Callable[..., Ran], outcome: StoryOutcome, out: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("skillmesh.cli.demo.DemoPlan", lambda: SMALL)
    ran = command("demo", "--out", out, "--json")
    assert ran.json["same_answers"]
    assert "ada has learned dice" in ran.err


def _heed_interrupts() -> None:
    """Restore SIGINT as in a terminal; a shell makes its background processes and their children ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class TestNothingIsLeftBehind:
    """The parent is ended while its agents run."""

    def started(self, out: Path) -> subprocess.Popen[bytes]:
        demo = subprocess.Popen(
            [sys.executable, "-c", RUN.replace("OUT", str(out))],
            stderr=subprocess.DEVNULL,
            preexec_fn=_heed_interrupts,
        )
        until = time.monotonic() + 60
        while time.monotonic() < until and not all(_runs(out / "agents" / name) for name in SMALL.teachers):
            assert demo.poll() is None
            time.sleep(0.1)
        return demo

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
    def test_by_a_signal(self, outcome: StoryOutcome, out: Path, number: int, code: int):
        demo = self.started(out)
        demo.send_signal(number)
        assert demo.wait(30) == code
        for name in SMALL.teachers:
            with FileLock(out / "agents" / name / "node.lock", timeout=0):
                pass

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next demo ends them")
    def test_by_a_kill(self, outcome: StoryOutcome, out: Path):
        demo = self.started(out)
        demo.kill()
        demo.wait()
        for name in SMALL.teachers:
            with FileLock(out / "agents" / name / "node.lock", timeout=5):
                pass

    def test_by_an_earlier_demo(self, tmp_path: Path):
        earlier = Member(tmp_path / "ada", (), free_port())
        earlier.start(tmp_path / "cache", None)
        with Crew([earlier]) as crew:
            crew.watch(lambda: earlier.joined is not None, lambda _: None)
            Member(tmp_path / "ada", (), free_port())
            assert earlier.node.process is not None
            assert earlier.node.process.wait(10) == 0

    def test_by_an_agent_that_ends(self, tmp_path: Path):
        broken = Member(tmp_path / "agents/ada", (), free_port())
        (broken.home / "mesh.json").write_text("broken")
        with Crew([broken]) as crew:
            broken.start(tmp_path / "cache", None)
            with pytest.raises(
                AgentError, match=r"(?s)ada ended with exit status 1, .*\nskillmesh: [^\n]* is damaged"
            ):
                crew.watch(lambda: False, lambda _: None)
        assert broken.node.process is None


def test_agents_without_progress_end_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crews, "PATIENCE", 0.1)
    with Crew([Member(tmp_path / "agents/ada", (), free_port())]) as crew:
        crew["ada"].start(tmp_path / "cache", None)
        with pytest.raises(AgentError, match=r"made no progress for 0 s.*\nada: .*log is empty"):
            crew.watch(lambda: False, lambda _: None)


class TestRefused:
    def test_a_second_demo_in_one_folder(self, tmp_path: Path):
        with only_one(tmp_path), pytest.raises(AgentError, match=r"already runs in"), only_one(tmp_path):
            pass

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path):
        (tmp_path / "file").touch()
        with pytest.raises(AgentError, match="cannot write"), only_one(tmp_path / "file/out"):
            pass

    def test_to_clear_a_folder_that_is_not_an_agents_home(self, tmp_path: Path):
        (tmp_path / "ada").mkdir()
        (tmp_path / "ada/thesis.txt").touch()
        with pytest.raises(AgentError, match="not an agent's home"):
            Member(tmp_path / "ada", (), free_port())
        assert (tmp_path / "ada/thesis.txt").exists()

    def test_a_device_that_is_not_there(self, tmp_path: Path):
        with pytest.raises(BackboneError, match="abacus"):
            play(tmp_path, SMALL, "abacus")


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_every_task_has_one_teacher():
    plan = DemoPlan()
    dealt = [plan.lessons(name) for name in plan.teachers]
    assert sorted(task for tasks in dealt for task in tasks) == sorted(LEARNED)
    assert len(plan.lessons(plan.victim)) == min(map(len, dealt))


def _runs(home: Path) -> bool:
    try:
        call(home, "status")
    except NotRunningError:
        return False
    return True
