"""The examples of docs/howto/http.md, run as they are against a real page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from pages import visited

from skillmesh.core import Core
from skillmesh.page.server import Page

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "http.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_tasks: Path) -> Iterator[Page]:
    core = Core.open(tmp_path_factory.mktemp("served") / "home")
    core.learn(tiny_tasks / "dice")
    with visited(core) as visit:
        yield visit.page


@pytest.fixture
def folder(tmp_path: Path, tiny_tasks: Path) -> Path:
    """Return a folder with the files that the examples name."""
    images = sorted((tiny_tasks / "dice").glob("train/*/*"))
    for name, image in zip(("rose", "dice", "apple1", "apple2"), images[:4], strict=True):
        (tmp_path / f"{name}.jpg").write_bytes(image.read_bytes())
    for name, image in zip(("pear1", "pear2"), images[-2:], strict=True):
        (tmp_path / f"{name}.jpg").write_bytes(image.read_bytes())
    return tmp_path


def as_served(text: str, served: Page) -> str:
    for old, new in (("TOKEN", served.tokens.owner), ("http://127.0.0.1:8737", served.url)):
        assert old in text
        text = text.replace(old, new)
    return text


def test_the_curl_lines_answer_images(served: Page, folder: Path):
    lines = blocks("sh")[0].splitlines()
    assert len(lines) == 2
    for line, count in zip(lines, (1, 2), strict=True):
        done = subprocess.run(
            ["bash", "-c", f"{as_served(line, served)} -s"], cwd=folder, capture_output=True, text=True, check=True
        )
        assert len(json.loads(done.stdout)["answers"]) == count


def test_the_events_can_be_followed_with_curl(served: Page):
    (line,) = blocks("sh")[1].splitlines()
    done = subprocess.run(
        ["bash", "-c", f"{as_served(line, served)} -s --max-time 2"], capture_output=True, text=True, check=False
    )
    assert "event: hello" in done.stdout


def test_the_program_teaches_a_task(served: Page, folder: Path):
    (program,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", as_served(program, served)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done "), done.stdout
