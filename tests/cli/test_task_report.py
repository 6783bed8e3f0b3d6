"""What `learn` and `eval` print and the pages that they write."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Ran

from skillmesh.cli import show
from skillmesh.cli.task_report import PER_CLASS
from skillmesh.learning.head import Fit, Head, fit_head

Command = Callable[..., Ran]


class Parsed(HTMLParser):
    """The tags of a page and their link targets."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attributes if name in ("src", "href")]


@pytest.fixture
def mixed_up(demo_tasks: Path, tmp_path: Path) -> Path:
    """Greek letters, two of them swapped in validation and test; the name of one is markup."""
    shutil.copytree(demo_tasks / "greek", tmp_path / "greek")
    for split in ("val", "test"):
        one, two = tmp_path / "greek" / split / "psi", tmp_path / "greek" / split / "xi"
        one.rename(one.with_name("swap"))
        two.rename(one)
        one.with_name("swap").rename(two)
        for number, file in enumerate(sorted(two.iterdir())):
            file.rename(two / f"<img src=x onerror=alert({number})>.jpg")
    for split in ("train", "val", "test"):
        (tmp_path / "greek" / split / "xi").rename(tmp_path / "greek" / split / "<b>xi&")
    return tmp_path / "greek"


class TestLearn:
    def test_prints_confusions_and_advice_in_80_columns(self, command: Command, mixed_up: Path, tmp_path: Path):
        ran = command("learn", mixed_up, "--home", tmp_path / "new")
        lines = ran.out.splitlines()
        assert lines[0] == "learned 'greek': 7 classes, 77 images (56 training, 21 validation)"
        assert re.fullmatch(r"  validation accuracy 71\.4 %, [\d.]+ KB, [\d.]+ s", lines[1])
        assert lines[2].startswith("  confuses    <b>xi& with psi (3 of 3), psi with <b>xi& (3 of 3)")
        assert lines[3].startswith("  advice      more images of ")
        assert max(map(len, lines)) <= 80

    def test_json_has_the_same_facts(self, command: Command, mixed_up: Path, tmp_path: Path):
        facts = command("learn", mixed_up, "--home", tmp_path / "new", "--json").json
        assert facts["confusions"][0] == {"class": "<b>xi&", "given": "psi", "images": 3, "of": 3}
        assert facts["training_accuracy"] == 1.0
        assert facts["validation_accuracy"] == pytest.approx(15 / 21)
        assert facts["advice"].startswith("more images of ")
        assert facts["checks"] == []

    def test_checks_print_a_few_lines_and_are_complete_in_json(
        self, command: Command, demo_tasks: Path, tmp_path: Path
    ):
        shutil.copytree(demo_tasks / "dice", tmp_path / "dice")
        for number in range(5):
            shutil.copy(tmp_path / f"dice/train/one/{number}.jpg", tmp_path / f"dice/val/one/again{number}.jpg")
        (tmp_path / "dice/train/Six").mkdir()
        shutil.copy(tmp_path / "dice/test/six/0.jpg", tmp_path / "dice/train/Six/0.jpg")
        ran = command("learn", tmp_path / "dice", "--home", tmp_path / "a")
        checks = [line for line in ran.err.splitlines() if line.startswith("check: ")]
        assert len(checks) == 2
        assert "'Six' and 'six' are 2 classes" in checks[0]
        assert "5 of 23 validation images left out" in checks[1]
        assert checks[1].endswith("and 2 more")
        facts = command("learn", tmp_path / "dice", "--home", tmp_path / "b", "--json").json
        assert [check["kind"] for check in facts["checks"]] == ["same-name", "twins-across-splits"]
        assert len(facts["checks"][1]["files"]) == 5

    @pytest.mark.torch
    def test_adapt_is_the_only_name_of_the_option(self, command: Command, tiny_tasks: Path, tmp_path: Path):
        ran = command("learn", tiny_tasks / "dice", "--adapt", "auto", "--home", tmp_path / "a")
        assert ran.code == 0
        assert "tried       biases: " in ran.out
        for words in (("--biases", "auto"), ("--warm",), ("--adapt", "never")):
            assert command("learn", tiny_tasks / "dice", *words, "--home", tmp_path / "b").code == 2

    def test_training_accuracy_is_of_the_head_before_validation_images_are_added(
        self, command: Command, mixed_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """A head that always answers the first class is right on one training image of seven."""

        def first_always(*arguments: Any, **options: Any) -> Fit:
            fit = fit_head(*arguments, **options)
            first = np.eye(1, len(fit.before.bias), dtype=np.float32)[0]
            return replace(fit, before=Head(0 * fit.before.weight, first))

        monkeypatch.setattr("skillmesh.learning.lesson.fit_head", first_always)
        facts = command("learn", mixed_up, "--home", tmp_path / "new", "--json").json
        assert facts["training_accuracy"] == pytest.approx(1 / 7)


class TestPages:
    def test_learn_shows_wrongly_answered_validation_images(
        self, command: Command, mixed_up: Path, tmp_path: Path
    ):
        ran = command("learn", mixed_up, "--home", tmp_path / "new", "--report", tmp_path / "page.html")
        assert ran.code == 0
        page = (tmp_path / "page.html").read_text()
        parsed = Parsed(page)
        assert parsed.tags.count("img") == 6
        assert all(source.startswith("data:image/jpeg;base64,") for source in parsed.sources)
        assert "6 of 21 validation images" in page
        assert f"at most {PER_CLASS} per class" in page
        assert '<td class="number">0.0 %</td>' in page

    def test_names_are_not_treated_as_markup(self, command: Command, mixed_up: Path, tmp_path: Path):
        command("learn", mixed_up, "--home", tmp_path / "new", "--report", tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert "<b>xi" not in page
        assert "onerror=alert(0)&gt;" in page
        assert "onerror=alert(0)>" not in page
        assert "script" not in Parsed(page).tags

    def test_eval_shows_the_test_images_of_each_task(
        self, command: Command, mixed_up: Path, tiny_tasks: Path, tmp_path: Path
    ):
        out = tmp_path / "page.html"
        ran = command("eval", mixed_up, tiny_tasks / "dice", "--report", out)
        assert ran.code == 0
        page = out.read_text()
        assert "<h2>greek</h2>" in page
        assert "<h2>dice</h2>" in page
        assert " of 28 test images; at most" in page
        assert page.count("psi → &lt;b&gt;xi&amp; (") == 4
        assert "recall, task given" in page
        assert not [s for s in Parsed(page).sources if not s.startswith(("data:", "#"))]

    def test_a_page_that_cannot_be_written_is_refused_before_the_work(
        self, command: Command, tiny_tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("skillmesh.core.Core.learn", lambda *_, **__: pytest.fail("too late"))
        for words in (["learn", "--home", tmp_path / "new"], ["eval"]):
            for target in (tmp_path / "no/page.html", tmp_path):
                ran = command(words[0], tiny_tasks / "dice", *words[1:], "--report", target)
                assert ran.code == 1
                assert "cannot write" in ran.err


class TestEval:
    def test_prints_recall_and_confusions_of_every_class_on_demand(
        self, command: Command, mixed_up: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(show.console, "_width", 120)
        plain = command("eval", mixed_up).out
        assert "answered instead" not in plain
        assert "final*" in plain
        told = command("eval", mixed_up, "--classes").out
        row = next(line for line in told.splitlines() if line.startswith("psi\t"))
        assert row.split("\t")[1:] == ["4", "0.0 %", "0.0 %", "<b>xi& 4"]
        grid = [line.split("\t") for line in told.splitlines() if re.match(r"\d ", line)]
        assert {line[0].split(" ", 1)[1] for line in grid} >= {"psi", "<b>xi&"}
        assert all(len(line) == len(grid) + 2 for line in grid)
        (psi,) = [line for line in grid if line[0].endswith(" psi")]
        (xi,) = [int(line[0].split()[0]) for line in grid if line[0].endswith(" <b>xi&")]
        assert psi[xi] == "4"

    def test_final_and_strict_stand_side_by_side(self, command: Command, mixed_up: Path, monkeypatch):
        monkeypatch.setattr(show.console, "_width", 200)
        ran = command("eval", mixed_up)
        head = ran.out.splitlines()[0]
        assert "\tfinal\tfinal*\tnot answered\t" in head
        assert (
            "final*: like final, but an image that is not answered (unknown or not sure) counts as wrong"
            in ran.out
        )

    def test_json_goes_to_standard_output_and_out_to_a_file(
        self, command: Command, tiny_tasks: Path, tmp_path: Path
    ):
        ran = command("eval", tiny_tasks / "dice", "--json", "--classes", "--out", tmp_path / "out.json")
        assert ran.json == json.loads((tmp_path / "out.json").read_text())
        (task,) = ran.json["tasks"]
        assert [row["class"] for row in task["by_class"]] == ["five", "four"]
        assert {"recall", "recall_task_given", "given", "images", "given_other_task"} <= task["by_class"][0].keys()
        assert task["left_out"] == 0


class TestProgress:
    def test_a_log_gets_a_line_when_work_starts_and_one_every_few_seconds(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        clock = [100.0]
        monkeypatch.setattr("time.monotonic", lambda: clock[0])
        with show.progress_bar() as progress:
            progress.start("dice", 40)
            for _ in range(40):
                clock[0] += 1
                progress.advance(1)
            progress.start("three", 3)
            progress.advance(3)
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.splitlines() == [
            "dice: 40 to do",
            *(f"dice: {done} of 40, {done} s" for done in (10, 20, 30, 40)),
        ]

    def test_quiet_prints_nothing(self, capsys: pytest.CaptureFixture[str]):
        with show.progress_bar(quiet=True) as progress:
            progress.start("dice", 40)
            progress.advance(40)
        assert capsys.readouterr().err == ""


def test_names_that_are_not_valid_unicode_break_nothing(command: Command, tiny_tasks: Path, tmp_path: Path):
    task = tmp_path / "dice"
    shutil.copytree(tiny_tasks / "dice", task)
    for split in ("train", "val", "test"):
        for number, path in enumerate(sorted((task / split).glob("*/*"))):
            path.rename(path.with_name(os.fsdecode(b"bad\xff%d.jpg" % number)))
    page = tmp_path / "page.html"
    ran = command("eval", task, "--json", "--report", page)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out.encode())["tasks"]
    assert page.read_bytes().decode()
    assert command("learn", task, "--home", tmp_path / "home", "--report", page).code == 0
