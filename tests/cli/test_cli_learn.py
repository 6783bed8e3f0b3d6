"""`learn` on a folder of tasks: it asks what to do, or refuses and gives the two possible commands."""

from __future__ import annotations

import shlex
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillmesh.core import Core

Command = Callable[..., Any]


@pytest.fixture
def shelf(tiny_tasks: Path, tmp_path: Path) -> Path:
    """A folder of two tasks in plain class folders."""
    for name in ("dice", "latin"):
        shutil.copytree(tiny_tasks / name / "train", tmp_path / "my shelf" / name)
    return tmp_path / "my shelf"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def tasks(home: Path) -> list[str]:
    return [module.card.task for module in Core(home).tasks()]


def test_a_folder_of_tasks_is_refused_with_two_working_commands(command: Command, shelf: Path, home: Path):
    ran = command("learn", shelf, "--home", home)
    assert (ran.code, ran.out, tasks(home)) == (1, "", [])
    assert f"{shelf} looks like a folder of tasks, not like one task: found dice, latin" in ran.err
    each, one = (line.strip() for line in ran.err.splitlines() if line.startswith("    "))
    assert each == f"skillmesh learn --home {home} --each-folder '{shelf}'"
    assert one == f"skillmesh learn --home {home} --one-task '{shelf}'"
    assert command(*shlex.split(each)[1:]).code == 0
    assert tasks(home) == ["dice", "latin"]
    assert command(*shlex.split(one)[1:]).code == 0
    assert tasks(home) == ["dice", "latin", "my shelf"]
    assert Core(home).find("my shelf").card.classes == ("dice", "latin")


def test_each_folder_continues_after_a_failure(command: Command, shelf: Path, home: Path):
    (shelf / "bad.zip").write_bytes(b"no zip")
    (shelf / "lonely/only").mkdir(parents=True)
    shutil.copy(next((shelf / "dice").rglob("*.jpg")), shelf / "lonely/only/1.jpg")
    ran = command("learn", shelf, "--each-folder", "--home", home)
    assert ran.code == 1
    assert tasks(home) == ["dice", "latin"]
    assert f"failed: {shelf / 'bad.zip'}: " in ran.err
    assert "one class only ('only')" in ran.err
    assert ran.out.endswith("2 tasks learned, 2 failed\n")


def test_each_folder_as_json(command: Command, shelf: Path, home: Path):
    (shelf / "bad.zip").write_bytes(b"no zip")
    ran = command("learn", shelf, "--each-folder", "--json", "--home", home)
    assert ran.code == 1
    assert [facts["task"] for facts in ran.json["learned"]] == ["dice", "latin"]
    assert [bad["file"] for bad in ran.json["failed"]] == [str(shelf / "bad.zip")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--each-folder", "--name", "x"], "leave out --name"),
        (["--each-folder", "--continue", "x"], "leave out --continue"),
        (["--each-folder", "--one-task"], "leave out --one-task"),
    ],
)
def test_options_that_contradict_each_other(
    command: Command, shelf: Path, home: Path, words: list[str], expected: str
):
    ran = command("learn", shelf, *words, "--home", home)
    assert ran.code == 1
    assert expected in ran.err


def test_each_folder_of_one_task_is_refused(command: Command, shelf: Path, home: Path):
    ran = command("learn", shelf / "dice", "--each-folder", "--home", home)
    assert ran.code == 1
    assert "learn it without --each-folder" in ran.err


def test_suggested_commands_keep_name_and_continue(command: Command, shelf: Path, home: Path):
    assert "--one-task --name pips" in command("learn", shelf, "--name", "pips", "--home", home).err
    assert command("learn", shelf / "dice", "--home", home).code == 0
    assert "--one-task --continue dice" in command("learn", shelf, "--continue", "dice", "--home", home).err


def test_a_zip_of_tasks_must_be_unpacked_first(command: Command, shelf: Path, home: Path, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "shelf.zip", "w") as file:
        for path in sorted(shelf.rglob("*.jpg")):
            file.write(path, path.relative_to(shelf))
    ran = command("learn", tmp_path / "shelf.zip", "--home", home)
    assert ran.code == 1
    assert "unpack it, then run" in ran.err
    assert command("learn", tmp_path / "shelf.zip", "--one-task", "--home", home).code == 0
    assert tasks(home) == ["shelf"]


class TestOnATerminal:
    @pytest.fixture
    def answer(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Simulate a user at a terminal who types these words."""

        def with_words(*words: str) -> None:
            import typer

            given = iter(words)
            monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
            monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
            monkeypatch.setattr(typer, "prompt", lambda *_, **__: next(given))

        return with_words

    @pytest.mark.parametrize(
        ("words", "learned"), [(["each"], ["dice", "latin"]), (["what", "ONE"], ["my shelf"]), (["no"], [])]
    )
    def test_it_asks(
        self,
        command: Command,
        shelf: Path,
        home: Path,
        answer: Callable[..., None],
        words: list[str],
        learned: list[str],
    ):
        answer(*words)
        ran = command("learn", shelf, "--home", home)
        assert ran.code == (0 if learned else 1)
        assert tasks(home) == learned
        assert "looks like a folder of tasks" in " ".join(ran.err.split()), "wherever its lines break"

    def test_programs_are_not_asked(self, command: Command, shelf: Path, home: Path, answer: Callable[..., None]):
        answer()
        ran = command("learn", shelf, "--json", "--home", home)
        assert ran.code == 1
        assert "--one-task" in ran.err
