"""Everything that reaches a terminal, a log or a page is made safe, whether commands or other code write it."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import skillmesh
from skillmesh.cli import show
from skillmesh.cli.outlet import TRACE, Guarded, LogFormatter
from skillmesh.cli.show import Screen, table
from skillmesh.common.text import hidden, safe_html
from skillmesh.core import Core
from skillmesh.errors import FolderOfTasksError

ROOT = Path(skillmesh.__file__).parents[1]
SOURCES = sorted(
    path for package in ("skillmesh", "skillmesh_challenge") for path in (ROOT / package).rglob("*.py")
)
BAD = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e\u3164\n12:00:00 forged line"
"""A file name, task or note as an attacker would choose it."""


def writers(source: Path) -> set[str]:
    """Return places in a source file that could write to the terminal or to pages without being neutralised."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(f"{node.func.id}()")
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found & {
        "sys.stdout",
        "sys.stderr",
        "sys.__stdout__",
        "sys.__stderr__",
        "print()",
        "Console()",
        "rich.console.Console",
        "rich.print",
        "typer.echo",
        "typer.secho",
        "click.echo",
        "logging.StreamHandler",
        "logging.basicConfig",
        "html.escape",
        "traceback.print_exc",
    }


def test_no_source_file_bypasses_the_outlet():
    streams = {"sys.stdout", "sys.stderr"}
    expected = {
        "skillmesh/cli/outlet.py": streams,
        "skillmesh/cli/show.py": {
            *streams,
            "rich.console.Console",
            "logging.StreamHandler",
            "logging.basicConfig",
        },
        "skillmesh/cli/__init__.py": streams,  # flushed
        "skillmesh/cli/learn.py": {"sys.stderr"},  # asked whether it is a terminal
        "skillmesh/common/text.py": {"html.escape"},
    }
    found = {source.relative_to(ROOT).as_posix(): writers(source) for source in SOURCES}
    assert {where: names for where, names in found.items() if names} == expected


def is_safe(text: str) -> bool:
    return all(hidden("x" + letter) is None for letter in text.replace("\n", "").replace("\t", ""))


class TestStreams:
    def test_neutralise_all_printed_text(self, monkeypatch: pytest.MonkeyPatch):
        written = io.StringIO()
        guarded = Guarded(written)
        print(BAD, "ok", file=guarded)
        monkeypatch.setattr(sys, "stderr", guarded)
        try:
            raise ValueError(BAD)
        except ValueError:
            sys.excepthook(*sys.exc_info())
        assert "ok\n" in written.getvalue()
        assert "\\x1b]0;pwned" in written.getvalue()
        assert is_safe(written.getvalue())

    def test_refuse_bytes_and_forward_other_attributes(self):
        guarded = Guarded(io.StringIO())
        with pytest.raises(TypeError, match="needs a str"):
            guarded.write(b"x")  # type: ignore[arg-type]
        assert guarded.isatty() is False
        guarded.writelines(["a\r", "b"])
        assert guarded.getvalue() == "a\nb"

    def test_consoles_print_a_text_as_one_line(self):
        for terminal in (True, False):
            written = io.StringIO()
            console = Screen(file=written, markup=False, highlight=False, force_terminal=terminal, width=200)
            console.print(BAD, style="bold")
            rows = table(BAD, "name", "+why")
            rows.add_row(BAD, BAD)
            console.print(rows)
            plain = re.sub(r"\x1b\[[0-9;]*m", "", written.getvalue())
            assert is_safe(plain), ascii(plain)
            assert "\n12:00" not in plain
            assert "\\x1b]0;pwned" in plain

    def test_progress_bars_draw_through_the_guard_and_what_is_printed_meanwhile_does_not(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        written = io.StringIO()
        monkeypatch.setattr(sys, "stderr", Guarded(written))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(show, "stderr", Screen(stderr=True, force_terminal=True, width=100))
        with show.progress_bar() as bar:
            bar.start(BAD, 3)
            print(BAD, file=sys.stderr)
            bar.advance(3)
        drawn = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.getvalue()).replace("\r", "")
        assert "\x1b[" in written.getvalue()
        assert "3/3" in drawn
        assert is_safe(drawn), ascii(drawn)


class TestLogs:
    def formatted(self, *words: object, error: bool = False) -> str:
        try:
            raise ValueError(BAD)
        except ValueError:
            info = sys.exc_info() if error else None
        record = logging.LogRecord("skillmesh", logging.INFO, "x.py", 1, words[0], words[1:], info)
        return LogFormatter().format(record)

    def test_format_a_record_as_one_line(self):
        line = self.formatted("imported %s by %s", BAD, "ada")
        assert "\n" not in line
        assert is_safe(line)

    def test_prefix_the_lines_of_tracebacks(self):
        first, *trace = self.formatted("failed", error=True).split("\n")
        assert first.endswith("failed")
        assert len(trace) > 2
        assert all(line.startswith(TRACE) and is_safe(line) for line in trace)
        assert any("forged" in line for line in trace)


def test_errors_of_several_lines_keep_exactly_these_lines():
    error = FolderOfTasksError.of_lines("first", f"    learn {BAD}")
    assert len(error.lines) == 2
    assert str(error).startswith("first\n")


def test_pages_show_no_markup_and_nothing_hidden():
    page = safe_html(f"<b>{BAD}</b>")
    assert page.startswith("&lt;b&gt;")
    assert "\n" not in page
    assert is_safe(page)


class TestCommands:
    """Tests with real processes and hostile file names."""

    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, new_agent: Callable[..., Core], skill_files: dict[str, Path]) -> Path:
        agent = new_agent("student")
        agent.import_file(skill_files["dice"])
        return agent.home

    @pytest.fixture
    def images(self, tmp_path: Path, tiny_tasks: Path) -> Path:
        folder = tmp_path / "images"
        folder.mkdir()
        bad = os.fsencode(BAD.replace("/", "_")) + b"\xff.png"
        (folder / "fine.png").write_bytes(next((tiny_tasks / "dice" / "test").glob("*/*")).read_bytes())
        Path(os.fsdecode(os.fsencode(folder) + b"/" + bad)).write_bytes(b"no image")
        return folder

    def run(self, *words: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, "-m", "skillmesh", *map(str, words)], capture_output=True)

    def check(self, output: bytes) -> None:
        text = output.decode()
        assert is_safe(text), ascii(text)
        assert not [line for line in text.splitlines() if line.startswith("12:00:00")]

    @pytest.mark.long
    def test_ask(self, images: Path, home: Path):
        ran = self.run("ask", "--home", home, *images.iterdir())
        self.check(ran.stdout)
        self.check(ran.stderr)
        for shown in (b"skipped:", b"\\x1b]0;pwned", b"\\udcff"):
            assert shown in ran.stderr
        as_json = self.run("ask", "--home", home, "--json", *images.iterdir())
        self.check(as_json.stdout)
        assert BAD in json.loads(as_json.stdout)["unreadable"][0]["file"]

    @pytest.mark.long
    def test_on_a_terminal(self, images: Path, home: Path):
        main, other = pty.openpty()
        words = [sys.executable, "-m", "skillmesh", "ask", "--home", str(home), *map(str, images.iterdir())]
        process = subprocess.Popen(words, stdout=other, stderr=other, stdin=subprocess.DEVNULL)
        os.close(other)
        output = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:
                break
            if not part:
                break
            output += part
        process.wait()
        os.close(main)
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode()).replace("\r", "")
        assert "skipped:" in text
        assert "\\x1b]0;pwned" in "".join(text.split())
        assert is_safe(text), ascii(text)

    @pytest.mark.parametrize("words", [("show", BAD), (f"--{BAD}",), ("show", "x", "--home", BAD)], ids=range(3))
    def test_errors_and_complaints_about_options(self, words: tuple[str, ...], home: Path):
        ran = self.run("--home", home, *words)
        assert ran.returncode
        assert is_safe(ran.stderr.decode()), ascii(ran.stderr.decode())
        assert b"pwned" in ran.stderr
