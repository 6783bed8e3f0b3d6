"""The command `ask`: one line per image on a terminal, tabs or JSON for programs, and no answer is lost."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from skillmesh.answering.answer import Answer, Guess
from skillmesh.cli import show
from skillmesh.cli.answers import AnswerLines
from skillmesh.common.config import AgentConfig
from skillmesh.core import Core
from skillmesh.data.inputs import WINDOW

Command = Callable[..., Any]
Terminal = Callable[[int], None]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return a function that makes output look as on a terminal of this width, without colours."""

    def of(width: int) -> None:
        console = Console(force_terminal=True, no_color=True, color_system=None, width=width, highlight=False)
        monkeypatch.setattr(show, "console", console)

    return of


@pytest.fixture
def photo(tiny_tasks: Path) -> Path:
    return min((tiny_tasks / "dice/train").glob("*/*"))


@pytest.fixture
def ask(command: Command, tiny_taught: Core) -> Command:
    return lambda *words: command("ask", *words, "--home", tiny_taught.home)


class TestOnATerminal:
    def test_every_image_is_one_line_that_fits(self, ask: Command, terminal: Terminal, tiny_tasks: Path):
        images = sorted(tiny_tasks.glob("*/test/*/*"))
        for width in (80, 100, 60):
            terminal(width)
            lines = ask(*images).out.splitlines()
            assert len(lines) == len(images)
            assert max(map(len, lines)) <= width

    def test_a_long_name_is_shortened_in_the_middle(
        self, ask: Command, terminal: Terminal, photo: Path, tmp_path: Path
    ):
        long = tmp_path / ("holiday " * 9) / "IMG_20260703_1.jpg"
        long.parent.mkdir()
        shutil.copy(photo, long)
        terminal(80)
        (line,) = ask(long).out.splitlines()
        name = line.split("  ")[0]
        assert name.startswith(str(long)[:3])
        assert "…" in name
        assert name.endswith("_1.jpg")
        assert line.split("  ")[1] == photo.parent.name

    def test_the_teacher_is_shown_only_if_there_are_several(
        self, ask: Command, terminal: Terminal, photo: Path, new_agent, command: Command, tiny_tasks: Path
    ):
        terminal(80)
        assert "tina" not in ask(photo).out
        both = new_agent("student")
        for name in ("anna", "bert"):
            teacher = new_agent(name)
            teacher.learn(tiny_tasks / ("dice" if name == "anna" else "latin"))
            for module in teacher.bank:
                both.import_bytes(teacher.bank.file_of(module))
        assert "anna~" in command("ask", photo, "--home", both.home).out

    def test_other_labels_are_shown_above_five_per_cent(self, terminal: Terminal, capsys):
        terminal(80)
        lines = AnswerLines(["a.jpg"])
        lines.lay_out({"label": 6, "task": 4, "teacher": 0})
        guesses = tuple(Guess(n, "food", "me", c) for n, c in (("apple", 0.9), ("plum", 0.06), ("pear", 0.04)))
        lines.add(Answer("a.jpg", False, guesses, 0.5))
        line = capsys.readouterr().out
        assert line.split() == ["a.jpg", "apple", "food", "90", "%", "or", "plum", "6", "%"]

    def test_an_unknown_image_shows_the_nearest_class(
        self, ask: Command, terminal: Terminal, strange: list[Path], taught, command
    ):
        terminal(80)
        out = command("ask", *strange, "--home", taught.home).out
        assert "unknown" in out
        assert "nearest: " in out

    def test_an_image_that_is_not_sure_shows_the_nearest_class_too(self, terminal: Terminal, capsys):
        terminal(80)
        lines = AnswerLines(["a.jpg"])
        lines.lay_out({"label": 6, "task": 4, "teacher": 0})
        lines.add(Answer("a.jpg", False, (Guess("apple", "food", "me", 0.7),), 1.1, unsure=True, known=0.8))
        line = capsys.readouterr().out
        assert line.split() == ["a.jpg", "not", "sure", "–", "–", "nearest:", "apple", "(food)"]

    @pytest.mark.parametrize("name", ["[/b].jpg", "[bold]x.jpg", ":smile:.jpg"])
    def test_names_are_shown_as_they_are(self, ask: Command, terminal: Terminal, photo: Path, tmp_path, name: str):
        path = tmp_path / "p" / name  # the first one lies in a folder named "["
        path.parent.mkdir(parents=True)
        shutil.copy(photo, path)
        terminal(200)
        assert str(path) in ask(path).out

    def test_names_cannot_move_the_cursor_or_exceed_the_line(
        self, ask: Command, terminal: Terminal, photo: Path, tmp_path: Path
    ):
        with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
            archive.write(photo, "a\x1b[2K\x1b[1A\u202e.jpg")
        (tmp_path / ("犬" * 40)).mkdir()
        shutil.copy(photo, tmp_path / ("犬" * 40) / "1.jpg")
        terminal(80)
        ran = ask(tmp_path / "evil.zip", tmp_path / ("犬" * 40), "no\x1b[2K.jpg")
        assert not {"\x1b", "\u202e"} & set(ran.out + ran.err)
        assert [cell_len(line) <= 80 for line in ran.out.splitlines()] == [True, True]

    def test_a_suggested_command_is_not_broken_over_lines(self, terminal: Terminal, capsys):
        terminal(40)
        show.say("nothing is here yet; to begin, learn one with `skillmesh learn some/folder/of/images` now")
        assert "\n`skillmesh learn some/folder/of/images`\n" in capsys.readouterr().out


class TestForPrograms:
    def test_a_line_has_tabs_between_its_fields(self, ask: Command, photo: Path):
        ran = ask(photo)
        image, label, task, confidence, teacher = ran.out.rstrip("\n").split("\t")
        assert (image, label, task, teacher) == (str(photo), photo.parent.name, "dice", "tina")
        assert 0 < float(confidence) <= 1
        assert (ran.code, ran.err) == (0, "")

    def test_unknown_is_a_label(self, command: Command, taught: Core, strange: list[Path]):
        lines = [line.split("\t") for line in command("ask", *strange, "--home", taught.home).out.splitlines()]
        assert ["unknown", "", "", ""] in [line[1:] for line in lines]

    def test_not_sure_is_a_label(self, capsys: pytest.CaptureFixture[str]):
        guesses = (Guess("apple", "food", "me", 0.7),)
        AnswerLines(["a.jpg"]).add(Answer("a.jpg", False, guesses, 1.1, unsure=True, known=0.8))
        assert capsys.readouterr().out == "a.jpg\tnot sure\t\t\t\n"

    def test_init_takes_the_share_that_may_stay_unanswered(self, command: Command, tmp_path: Path):
        assert command("init", "--unanswered", "0.2", "--home", tmp_path / "a").code == 0
        assert AgentConfig.load(tmp_path / "a").unanswered == 0.2
        assert command("init", "--unanswered", "0.6", "--home", tmp_path / "b").code == 2
        assert not (tmp_path / "b").exists()

    def test_a_name_with_a_tab_or_line_end_keeps_the_columns(self, ask: Command, photo: Path, tmp_path: Path):
        odd = tmp_path / "a\tb\nc.jpg"
        shutil.copy(photo, odd)
        (line,) = ask(odd).out.splitlines()
        assert line.count("\t") == 4

    def test_json_has_every_figure(self, command: Command, taught: Core, photo: Path, strange: list[Path]):
        output = command("ask", photo, *strange, "--json", "--home", taught.home).json
        assert output.keys() == {"answers", "unreadable"}
        first = output["answers"][0]
        keys = (
            "image",
            "label",
            "task",
            "teacher",
            "confidence",
            "unknown",
            "unsure",
            "known",
            "novelty",
            "guesses",
        )
        assert first.keys() == set(keys)
        assert [first[key] for key in keys[:4]] == [str(photo), photo.parent.name, "dice", "alice"]
        assert any(a["unknown"] and a["label"] is None and a["guesses"] for a in output["answers"])
        assert all((a["label"] is None) == (a["unknown"] or a["unsure"]) for a in output["answers"])
        assert all(0 <= a["confidence"] <= a["known"] <= 1 for a in output["answers"])
        assert len(output["answers"]) == 1 + len(strange)

    def test_json_is_valid_for_names_that_are_not_text(self, ask: Command, photo: Path, tmp_path: Path):
        odd = tmp_path / os.fsdecode(b"bad\xff.jpg")
        shutil.copy(photo, odd)
        output = json.loads(ask(odd, "--json").out.encode())
        assert output["answers"][0]["image"] == str(odd)

    def test_json_is_valid_whatever_happens(
        self, command: Command, photo: Path, tmp_path: Path, tiny_taught: Core
    ):
        empty = command("ask", photo, "--json", "--home", tmp_path / "new")
        assert empty.code == 1
        assert "knows no task yet" in empty.json["error"]
        assert f"skillmesh --home {tmp_path / 'new'} learn" in empty.json["error"]
        nothing = command("ask", "no.jpg", "--json", "--home", tiny_taught.home)
        assert (nothing.code, nothing.json["answers"], len(nothing.json["unreadable"])) == (1, [], 1)
        damaged = tmp_path / "damaged"
        (damaged).mkdir()
        (damaged / "agent.json").write_text("{")
        assert "is damaged" in command("ask", photo, "--json", "--home", damaged).json["error"]


class TestInputs:
    def test_each_unusable_input_gets_one_line(self, ask: Command, photo: Path, tmp_path: Path):
        (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff broken")
        (tmp_path / "notes.txt").write_text("milk, bread")
        wrong = ["nowhere.jpg", "https://example.org//a.jpg", tmp_path / "bad.jpg", tmp_path / "notes.txt"]
        ran = ask(wrong[0], photo, *wrong[1:], photo)
        assert ran.code == 1
        assert [line.split("\t")[1] for line in ran.out.splitlines()] == [photo.parent.name] * 2
        lines = ran.err.splitlines()
        assert len(lines) == 4
        for name in wrong:
            assert sum(line.startswith(f"skipped: {name}: ") for line in lines) == 1
        output = ask(wrong[0], photo, *wrong[1:], photo, "--json")
        assert output.code == 1
        assert [bad["file"] for bad in output.json["unreadable"]] == [str(name) for name in wrong]
        assert len(output.json["answers"]) == 2

    def test_an_address_is_quoted_as_it_was_typed(self, ask: Command):
        ran = ask("https://example.org//photos/a.jpg")
        assert "https://example.org//photos/a.jpg is an address" in ran.err

    def test_a_file_that_is_not_an_image_is_reported_before_the_backbone_is_loaded(
        self, ask: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("skillmesh.core.Backbone.from_settings", lambda *_, **__: pytest.fail("loaded"))
        monkeypatch.setattr("skillmesh.cli.answers.open_agent", lambda *_, **__: pytest.fail("opened"))
        (tmp_path / "notes.txt").write_text("milk, bread")
        ran = ask(tmp_path / "notes.txt")
        assert ran.code == 1
        assert "found text" in ran.err

    def test_folders_patterns_zips_and_standard_input(
        self, ask: Command, tiny_tasks: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        folder = tiny_tasks / "dice" / "test"
        inside = sorted(map(str, folder.glob("*/*.jpg")))
        assert [line.split("\t")[0] for line in ask(folder).out.splitlines()] == inside
        assert [line.split("\t")[0] for line in ask(f"{folder}/*/*.jpg").out.splitlines()] == inside
        with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
            for path in inside:
                archive.write(path, f"mine/{Path(path).parent.name}-{Path(path).name}")
        zipped = [line.split("\t") for line in ask(tmp_path / "photos.zip").out.splitlines()]
        assert [line[0].startswith(str(tmp_path / "photos.zip")) for line in zipped] == [True] * len(inside)
        given = io.TextIOWrapper(io.BytesIO(photo.read_bytes()))
        monkeypatch.setattr(sys, "stdin", given)
        assert ask("-").out.split("\t")[:2] == ["-", photo.parent.name]

    def test_an_empty_folder_is_a_failure(self, ask: Command, tmp_path: Path):
        ran = ask(tmp_path)
        assert ran.code == 1
        assert str(tmp_path) in ran.err


class TestManyImages:
    def test_are_read_a_few_at_a_time(self, tiny_taught: Core, photo: Path):
        read = 0

        def images() -> Iterator[Path]:
            nonlocal read
            for _ in range(3 * WINDOW):
                read += 1
                yield photo

        answers = tiny_taught.answer_each(images())
        next(answers)
        assert read == WINDOW
        assert len(list(answers)) == 3 * WINDOW - 1

    def test_are_written_as_they_are_answered(
        self, ask: Command, photo: Path, monkeypatch: pytest.MonkeyPatch, tiny_taught: Core
    ):
        """Answers before a failure have already been written, and the JSON is complete."""
        answer_each = Core.answer_each

        def breaks(self: Core, *args: Any, **options: Any) -> Iterator[Answer]:
            for number, answer in enumerate(answer_each(self, *args, **options)):
                if number == 2:
                    raise_on_purpose()
                yield answer

        def raise_on_purpose() -> None:
            from skillmesh.errors import BackboneError

            raise BackboneError("the weights are gone")

        monkeypatch.setattr(Core, "answer_each", breaks)
        ran = ask(*[photo] * 4)
        assert (ran.code, ran.out.count("\n")) == (1, 2)
        assert "the weights are gone" in ran.err
        output = json.loads(ask(*[photo] * 4, "--json").out)
        assert len(output["answers"]) == 2
        assert output["error"] == "the weights are gone"
        monkeypatch.setattr("skillmesh.errors.BackboneError", KeyboardInterrupt)
        output = json.loads(ask(*[photo] * 4, "--json").out)
        assert len(output["answers"]) == 2
        assert output["error"] == "stopped: KeyboardInterrupt"
