"""Every command as run from the shell: its output, the files it writes, and its errors."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from running import LEARNED, Ran, failed

from skillmesh import __version__
from skillmesh.cli import COMMANDS, show
from skillmesh.core import Core
from skillmesh.data.views import VIEWS

Command = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    for console in (show.console, show.stderr):
        monkeypatch.setattr(console, "_width", 250)  # tables are truncated to the terminal's width


@pytest.fixture
def home(tiny_taught: Core, tmp_path: Path) -> Path:
    """Home of an agent that knows the four tiny tasks; tests may change it."""
    shutil.copytree(tiny_taught.home, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def photo(tiny_tasks: Path) -> Path:
    return min((tiny_tasks / "dice/train").glob("*/*"))


@pytest.fixture(scope="session")
def small_network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of timm's smallest network, which is quick to calibrate."""
    import torch

    from skillmesh.backbone.building import import_timm

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "small.pt"
    torch.save(import_timm().create_model("test_efficientnet").state_dict(), path)
    return path


class TestHome:
    def test_is_set_before_or_after_the_command_or_by_an_environment_variable(
        self, command: Command, home, monkeypatch
    ):
        known = command("tasks", "--json", "--home", home)
        assert [t["task"] for t in known.json["tasks"]] == sorted(LEARNED)
        assert command("--home", home, "tasks", "--json") == known
        assert command("--home", "/nowhere", "tasks", "--home", home, "--json") == known
        monkeypatch.setenv("SKILLMESH_HOME", str(home))
        assert command("tasks", "--json") == known

    def test_missing_home_is_an_error_with_advice(self, command: Command, tmp_path, photo):
        for words in (
            *(["show", "x"], ["export", "x", "f"], ["forget", "x"], ["withdraw", "x"], ["remember", "x"]),
            *(["peers"], ["trust", "remove", "x"], ["quarantine", "release", "x"], ["merge", "x", "y"]),
        ):
            ran = command(*words, "--home", tmp_path / "no")
            failed(ran, "there is no agent at", f"`skillmesh --home {tmp_path / 'no'} init`")
        assert not (tmp_path / "no").exists()

    def test_typed_home_is_repeated_in_every_suggested_command(
        self, command: Command, tmp_path, monkeypatch, photo
    ):
        home = tmp_path / "my home"
        quoted = f"'{home}'"
        assert f"`skillmesh --home {quoted} learn FOLDER`" in command("tasks", "--home", home).out
        assert f"`skillmesh --home {quoted} learn FOLDER`" in command("ask", photo, f"--home={home}").err
        assert f"`skillmesh --home {quoted} serve`" in command("--home", home, "status").out
        monkeypatch.setenv("SKILLMESH_HOME", str(home))
        assert "`skillmesh learn FOLDER`" in command("tasks").out


class TestInit:
    def test_creates_an_agent_with_the_given_settings(self, command: Command, tmp_path: Path):
        ran = command(
            *("init", "--home", tmp_path / "a", "--name", "bob", "--anchor", "gmmc", "--clusters", 7),
            *("--representation", "sqrt-features", "--variance-floor", 0.01),
        )
        assert ran.code == 0
        agent = Core(tmp_path / "a")
        assert "agent 'bob' at" in ran.out
        assert agent.identity.public_key in ran.out
        config = agent.config
        assert (config.anchor, config.clusters, config.variance_floor) == ("gmmc", 7, 0.01)
        assert config.representation == "sqrt-features"

    def test_refuses_an_existing_home(self, command: Command, home: Path):
        key = (home / "key.pem").read_bytes()
        failed(command("init", "--home", home), "there is an agent at", "already")
        assert (home / "key.pem").read_bytes() == key

    def test_impossible_settings_give_a_one_line_error(self, command: Command, tmp_path: Path):
        failed(command("init", "--home", tmp_path / "a", "--variance-floor", 1e9), "variance_floor")
        failed(command("init", "--home", tmp_path / "a", "--name", "x" * 99), "name")
        assert not (tmp_path / "a/agent.json").exists()

    @pytest.mark.torch
    def test_a_backbone_without_a_calibration_gives_a_one_line_error(self, command: Command, tmp_path: Path):
        failed(command("init", "--home", tmp_path / "a", "--backbone", "resnet18"), "calibrate FOLDER_OF_TASKS")
        assert not (tmp_path / "a/agent.json").exists()


class TestLearn:
    def test_says_what_was_learned(self, command: Command, tmp_path: Path, tiny_tasks: Path):
        ran = command("learn", tiny_tasks / "dice", "--home", tmp_path / "new", "--name", "cubes")
        assert (ran.code, ran.err) == (0, f"made a new agent 'new' at {tmp_path / 'new'}\n")
        assert ran.out.startswith("learned 'cubes': 2 classes, 8 images (6 training, 2 validation)\n  validation ")
        assert [m.card.task for m in Core(tmp_path / "new").tasks()] == ["cubes"]

    def test_reads_a_zip_and_prints_json(self, command: Command, tmp_path: Path, tiny_tasks: Path):
        with zipfile.ZipFile(tmp_path / "dice.zip", "w") as archive:
            for path in sorted((tiny_tasks / "dice").rglob("*.jpg")):
                archive.write(path, path.relative_to(tiny_tasks))
            archive.writestr("dice/train/five/broken.jpg", b"no image")
            archive.writestr("dice/readme.txt", b"no image either")
        words = ("--licence", "CC0-1.0", "--note", "drawn", "--json", "--home", tmp_path / "new")
        facts = command("learn", tmp_path / "dice.zip", *words).json
        assert (facts["task"], facts["counts"], facts["version"]) == ("dice", [3, 3], 1)
        assert (facts["licence"], facts["note"]) == ("CC0-1.0", "drawn")
        assert [u["file"] for u in facts["unreadable"]] == ["dice/train/five/broken.jpg"]
        assert len(facts["notes"]) == 1
        assert facts["seconds"] > 0
        assert facts["bytes"] == Core(tmp_path / "new").bank.find("dice").size

    def test_lists_what_was_left_out(self, command: Command, tmp_path: Path, tiny_tasks: Path):
        shutil.copytree(tiny_tasks / "dice", tmp_path / "dice")
        broken = min((tmp_path / "dice/train").iterdir()) / "[broken].jpg"
        broken.write_bytes(b"")
        (tmp_path / "dice/.hidden").write_text("")
        ran = command("learn", tmp_path / "dice", "--home", tmp_path / "new")
        assert ran.code == 0
        assert "note: 1 hidden file(s) ignored\n" in ran.err
        assert f"check: 1 image that cannot be read: train/{broken.parent.name}/[broken].jpg (" in ran.err

    def test_learning_again_needs_replace(self, command: Command, home: Path, tiny_tasks: Path):
        failed(command("learn", tiny_tasks / "dice", "--home", home), "'dice' is learned already", "--replace")
        assert command("learn", tiny_tasks / "dice", "--replace", "--home", home).code == 0
        assert Core(home).bank.find("dice").card.version == 2

    def test_a_folder_without_a_task_is_an_error(self, command: Command, home: Path, tmp_path: Path):
        (tmp_path / "empty").mkdir()
        (tmp_path / "one/class").mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / "one/class/a.png")
        (tmp_path / "bad.zip").write_bytes(b"no zip")
        expected = {"missing": "missing", "empty": "no class folders", "one": "one class only", "bad.zip": "zip"}
        before = sorted((home / "bank").iterdir())
        for name, words in expected.items():
            failed(command("learn", tmp_path / name, "--home", home), words)
        assert sorted((home / "bank").iterdir()) == before


class TestTasksAndShow:
    def test_tasks_lists_them(self, command: Command, home: Path, tmp_path: Path):
        rows = command("tasks", "--home", home).out.splitlines()
        assert [row.split()[0] for row in rows[1:]] == sorted(LEARNED)
        command("init", "--home", tmp_path / "new")
        assert (
            f"no tasks yet; teach one with `skillmesh --home {tmp_path / 'new'} learn FOLDER`"
            in command("tasks", "--home", tmp_path / "new").out
        )

    def test_tasks_lists_damaged_files(self, command: Command, home: Path):
        path = max((home / "bank").glob("*.skill"))
        path.write_bytes(path.read_bytes()[:500])
        ran = command("tasks", "--home", home)
        assert ran.code == 0
        assert f"unusable module: {path}: " in ran.err
        said = command("tasks", "--json", "--home", home).json
        assert [d["file"] for d in said["damaged"]] == [str(path)]
        assert len(said["tasks"]) == 3

    def test_show_prints_all_facts(self, command: Command, home: Path):
        facts = command("show", "dice", "--json", "--home", home).json
        module = Core(home).bank.find("dice")
        assert facts["id"] == module.id
        assert facts["classes"] == dict.fromkeys(module.card.classes, 3)
        assert facts["tensors"].keys() == module.tensors.keys()
        text = command("show", "dice@tina", "--home", home).out
        assert f"id: {module.id}\n" in text
        assert f"  {module.card.classes[0]}: 3\n" in text
        assert "\nanchors: sketch\n" in text
        assert "(" not in text

    def test_an_unknown_task_name_lists_the_known_ones(self, command: Command, home: Path, tmp_path: Path):
        for words in (["show", "birds"], ["forget", "birds"], ["export", "birds", tmp_path / "b.skill"]):
            failed(command(*words, "--home", home), "no task 'birds' here", "dice, greek, latin, shapes")


class TestSharing:
    def test_export_import_and_forget(self, command: Command, home: Path, tmp_path: Path):
        file, other = tmp_path / "dice.skill", tmp_path / "other"
        assert command("export", "dice", file, "--home", home).out.startswith(f"wrote {file}, ")
        assert command("import", file, "--home", other).out.startswith("imported 'dice' (2 classes) by tina~")
        assert Core(other).bank.find("dice").size == file.stat().st_size
        assert command("forget", "dice", "--home", other).out.startswith("forgot 'dice' by tina~")
        assert Core(other).tasks() == []

    def test_import_accepts_good_files_and_reports_bad_ones(self, command: Command, skill_files, tmp_path: Path):
        (tmp_path / "bad.skill").write_bytes(b"")
        files = [skill_files["dice"], tmp_path / "bad.skill", skill_files["latin"], tmp_path / "none.skill"]
        ran = command("import", *files, "--json", "--home", tmp_path / "new")
        assert ran.code == 1
        assert [m["task"] for m in ran.json["imported"]] == ["dice", "latin"]
        assert [(r["file"], r["kind"]) for r in ran.json["refused"]] == [
            (str(files[1]), "NotASkillFileError"),
            (str(files[3]), "ModuleError"),
        ]
        assert [m.card.task for m in Core(tmp_path / "new").tasks()] == ["dice", "latin"]

    def test_export_to_nowhere_is_an_error(self, command: Command, home: Path, tmp_path: Path):
        failed(command("export", "dice", tmp_path / "no/dice.skill", "--home", home), "cannot write")


KEYS = {
    *(
        "task_given_accuracy",
        "task_found_accuracy",
        "final_accuracy",
        "strict_accuracy",
        "known_unanswered",
        "known_unknown",
        "module_bytes",
    ),
    *("anchor_bytes", "learn_seconds", "answer_seconds", "confidence_error", "tasks", "hidden", "settings"),
    *("unknown_threshold", "task_temperature", "provenance", "intervals"),
}


class TestEval:
    @pytest.fixture
    def folders(self, tiny_tasks: Path, tmp_path: Path) -> Path:
        for name in ("dice", "latin", "greek"):
            shutil.copytree(tiny_tasks / name, tmp_path / "tasks" / name)
        return tmp_path / "tasks"

    def test_views_are_measured_of_an_agent_that_learned_from_views(self, command: Command, folders: Path):
        ran = command("eval", folders / "dice", "--views", "--learn-views", "1", "--json")
        assert ran.json["settings"]["learn_views"] == 1
        assert [row["view"] for row in ran.json["views"]] == ["original", *VIEWS]
        assert command("eval", folders / "dice", "--json").json["settings"]["learn_views"] == 0.34
        ran = command("eval", folders / "dice", folders / "latin", "--views")
        assert "views of the test images" in ran.out
        assert "rotated 10°" in ran.out
        failed(command("eval", folders, "--no-learn", "--learn-views", "1"), "leave out --learn-views")

    def test_learn_takes_views(self, command: Command, folders: Path, home: Path):
        ran = command("learn", folders / "dice", "--name", "viewed", "--views", "1", "--json", "--home", home)
        assert (ran.json["views"], ran.json["format"]) == (1, 3)
        for words, views in (((), 0.34), (("--views", "0"), None)):
            ran = command("learn", folders / "dice", "--replace", *words, "--json", "--home", home)
            assert ran.json["views"] == views
        failed(command("learn", folders / "dice", "--name", "x", "--views", "1.5", "--home", home), "whole number")
        failed(
            command("learn", folders / "dice", "--continue", "viewed", "--views", "1", "--home", home), "--views"
        )

    def test_learns_all_tasks_and_writes_the_documented_json(
        self, command: Command, folders: Path, tmp_path: Path
    ):
        ran = command(
            "eval", folders, "--out", tmp_path / "out.json", "--anchor", "maha", "--representation", "features"
        )
        assert ran.code == 0
        assert "mean" in ran.out
        report = read_json(tmp_path / "out.json")
        assert report.keys() >= KEYS
        assert [t["task"] for t in report["tasks"]] == ["dice", "greek", "latin"]
        assert report["settings"]["anchor"] == "maha"
        assert report["settings"]["representation"] == "features"
        for task in (report, *report["tasks"]):
            for key in ("task_given_accuracy", "task_found_accuracy", "final_accuracy"):
                assert 0 <= task[key] <= 1
            assert task["module_bytes"] > 1000
        assert report["provenance"]["command"].startswith("skillmesh eval tasks --out out.json --anchor maha")
        assert report["provenance"]["seed"] == 0

    def test_no_learn_tests_the_agent_as_it_is(self, command: Command, home: Path, tiny_tasks: Path):
        before = sorted((home / "bank").iterdir())
        ran = command("eval", tiny_tasks, "--no-learn", "--json", "--home", home)
        report = ran.json
        assert [t["task"] for t in report["tasks"]] == sorted(LEARNED)
        assert [h["task"] for h in report["hidden"]] == ["snowflakes"]
        assert report.keys() >= KEYS | {"hidden_unanswered", "hidden_unknown", "unknown_auroc"}
        assert report.keys() >= {"mixed_confidence_error", "hidden_confidence"}
        assert sorted((home / "bank").iterdir()) == before
        table = command("--home", home, "eval", tiny_tasks, "--no-learn").out
        assert "snowflakes (never learned)" in table
        stated = f"{100 * report['mixed_confidence_error']:.1f} %"
        assert f"if half of all images are of tasks never learned, by {stated}\n" in table

    def test_with_only_tasks_that_were_never_learned(self, command: Command, taught: Core, demo_tasks: Path):
        words = ("eval", demo_tasks / "snowflakes", "--no-learn", "--home", taught.home)
        ran = command(*words, "--json")
        assert ran.json["final_accuracy"] is None
        assert ran.json["hidden_unanswered"] >= ran.json["hidden_unknown"] > 0
        assert "snowflakes (never learned)" in command(*words).out

    @pytest.mark.sklearn
    def test_json_is_valid_without_probes(self, command: Command, folders: Path, tmp_path: Path):
        for task in folders.iterdir():
            shutil.rmtree(task / "val")
            for image in task.glob("train/*/[12].jpg"):
                image.unlink()
        ran = command("eval", folders, "--json", "--anchor", "gmmc", "--representation", "features")
        assert ran.json["unknown_threshold"] is None

    def test_errors_are_one_line(self, command: Command, folders: Path, tmp_path: Path, monkeypatch):
        failed(command("eval", tmp_path / "none"), "there is nothing at")
        (tmp_path / "empty").mkdir()
        failed(command("eval", tmp_path / "empty"), "no task was found in")
        failed(command("eval", folders, "--no-learn", "--home", tmp_path / "none"), "there is no agent at")
        command("init", "--home", tmp_path / "new")
        failed(command("eval", folders, "--no-learn", "--home", tmp_path / "new"), "knows no task yet")
        monkeypatch.setattr("skillmesh.evaluation.evaluate.evaluate", lambda *_, **__: pytest.fail("too late"))
        failed(command("eval", folders, "--out", tmp_path / "no/out.json"), "no folder")


@pytest.mark.torch
class TestBackbones:
    def test_another_backbone_can_be_calibrated_and_used(
        self, command: Command, tiny_tasks, tmp_path, small_network, photo
    ):
        network = ("--backbone", "test_efficientnet", "--weights", small_network)
        out, home = tmp_path / "small.safetensors", tmp_path / "home"
        ran = command("calibrate", tiny_tasks, "--out", out, *network)
        assert ran.code == 0
        assert ran.out.startswith(f"wrote {out}: training images of 5 tasks (30 images)")
        assert command("init", "--home", home, "--calibration", out, *network).code == 0
        assert command("learn", tiny_tasks / "dice", "--home", home).code == 0
        answer = command("ask", photo, "--home", home, "--json").json["answers"][0]
        assert answer["guesses"][0]["task"] == "dice"

    def test_backbone_prints_its_sizes(self, command: Command, small_network: Path):
        facts = command("backbone", "test_efficientnet", "--weights", small_network, "--json").json
        keys = ("name", "parameters", "features", "descriptor", "network_fingerprint", "bias_positions", "biases")
        assert facts.keys() >= set(keys)
        assert sum(facts["biases"].values()) == facts["bias_positions"]
        text = command("backbone", "test_efficientnet", "--weights", small_network).out
        assert f"parameters: {facts['parameters']}\n" in text

    def test_calibrate_errors_are_one_line(self, command: Command, tiny_tasks, tmp_path, small_network):
        network = ("--backbone", "test_efficientnet", "--weights", small_network)
        one = command("calibrate", tiny_tasks / "dice", "--out", tmp_path / "c", *network)
        failed(one, "needs two tasks or more")
        failed(command("calibrate", tiny_tasks, "--out", tmp_path / "no/c", *network), "no folder")
        failed(command("backbone", "no-such-network"), "no-such-network")


class TestEnds:
    def test_version(self, command: Command):
        assert command("--version") == (0, f"skillmesh {__version__}\n", "")

    def test_a_wrong_option_is_a_usage_error(self, command: Command):
        ran = command("ask", "--colour", "red")
        assert ran.code == 2
        assert "--colour" in ran.err

    def test_an_interrupted_command_says_so(self, command: Command, home: Path, photo: Path, monkeypatch):
        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("skillmesh.core.Core.answer_each", interrupt)
        ran = command("ask", photo, "--home", home)
        assert ran.code == 130
        assert "Traceback" not in ran.err

    def test_no_traceback_from_the_real_command(self, tmp_path: Path):
        words = [Path(sys.executable).with_name("skillmesh"), "show", "x", "--home", tmp_path]
        ran = subprocess.run(words, capture_output=True, text=True)
        failed(Ran(ran.returncode, ran.stdout, ran.stderr), "there is no agent at")

    def test_a_reader_that_leaves_early_is_no_error(self, home: Path):
        words = f"'{sys.executable}' -m skillmesh show dice --home '{home}' | head -n 1"
        ran = subprocess.run(["bash", "-o", "pipefail", "-c", words], capture_output=True, text=True)
        assert ran.stderr == ""


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_interrupting_long_work_says_how_to_resume(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(KeyboardInterrupt), show.resumable(Path("runs/si")):
        raise KeyboardInterrupt
    assert "kept in runs/si; run the same command again to resume" in capsys.readouterr().err


CALLED = """
import sys
from skillmesh.cli import app, load_commands
import typer.main
load_commands(sys.argv[1:])
print(*typer.main.get_command(app).commands)
"""


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["ask", "learn"], "ask"),
        (["--home", "learn", "ask", "photo.jpg"], "ask"),
        (["--home=learn", "import", "x.skill"], "tasks"),
        (["trust", "add", "ask"], "trust"),
        (["no-such-command", "ask"], None),
        (["--home"], None),
        (["--help"], None),
        (["init"], None),
        ([], None),
    ],
)
def test_only_the_module_of_the_typed_command_is_imported(words: list[str], module: str | None):
    ran = subprocess.run([sys.executable, "-c", CALLED, *words], capture_output=True, text=True, check=True)
    every = {"init", *(name for names in COMMANDS.values() for name in names)}
    loaded = set(ran.stdout.split())
    if module is None:
        assert loaded == every
    else:
        assert {"init", *COMMANDS[module]} <= loaded < every


MISSING = """
import importlib.metadata
import sys
from importlib.metadata import EntryPoint, EntryPoints
from skillmesh import cli
points = EntryPoints([EntryPoint("challenge", sys.argv.pop(1), cli.ADDED)])
importlib.metadata.entry_points = points.select
cli.main()
"""


@pytest.mark.parametrize("value", ["no_such_package.cli:commands", "skillmesh.cli:no_such_function"])
@pytest.mark.parametrize("words", [["challenge", "run", "tasks", "--agents", "2"], ["challenge", "--help"]])
def test_commands_of_a_missing_package_say_what_to_install(value: str, words: list[str]):
    ran = subprocess.run([sys.executable, "-c", MISSING, value, *words], capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.startswith("skillmesh: the challenge commands cannot be used: ")
    assert "install what they need with `pip install jinja2" in ran.stderr
    others = subprocess.run([sys.executable, "-c", MISSING, value, "--help"], capture_output=True, text=True)
    assert (others.returncode, others.stderr) == (0, "")
    assert "Not installed: pip install" in others.stdout


def test_no_package_can_replace_a_built_in_command():
    code = MISSING.replace('"challenge"', '"tasks"')
    ran = subprocess.run(
        [sys.executable, "-c", code, "os:getcwd", "tasks", "--help"], capture_output=True, text=True
    )
    assert "List the tasks that the agent knows." in ran.stdout


@pytest.mark.long
def test_piped_answers_are_separated_by_tabs_while_progress_is_on_a_terminal(home: Path, tiny_tasks: Path):
    """With a bar on the terminal, rich puts a stream of its own before stdout."""
    terminal, end = pty.openpty()
    images = sorted((tiny_tasks / "dice/test").glob("*/*"))[:3]
    call = [sys.executable, "-m", "skillmesh", "--home", str(home), "ask", *map(str, images)]
    ran = subprocess.run(call, stdout=subprocess.PIPE, stderr=end, text=True, timeout=120)
    os.close(end)
    os.close(terminal)
    assert ran.returncode == 0
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == [str(image) for image in images]
