"""The page on JSON output names every key that commands print, and no other."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import Ran

from skillmesh.core import Core

Command = Callable[..., Ran]
PAGES = Path(__file__).parents[2] / "docs"
PAGE = (PAGES / "reference" / "json.md").read_text()
PARTS = re.split(r"^(?=## |Of .+:$)", PAGE, flags=re.MULTILINE)


def keys(start: str) -> set[str]:
    """Return the keys at the head of each line of the list in the part of the page that begins with `start`."""
    (part,) = [part for part in PARTS if part.startswith(start)]
    cells = re.findall(r"^- (`[^:]+`): ", part, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def listed(command: str) -> set[str]:
    """Return the keys that the list of other commands has for one of them."""
    (cell,) = re.findall(rf"^- `{command}`: (.+)$", PAGE, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", cell))


def nested(value: Any) -> Iterator[str]:
    """Yield the keys of the rows in lists."""
    if isinstance(value, dict):
        for inner in value.values():
            if isinstance(inner, list):
                for row in inner:
                    if isinstance(row, dict):
                        yield from row


@pytest.fixture(scope="module")
def home(tiny_taught: Core, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json") / "home"
    shutil.copytree(tiny_taught.home, folder)
    return folder


MODULE, LESSON, ANSWER = keys("## A module"), keys("## A lesson"), keys("## An answer")
EVAL, NODE, STATUS = keys("## A measurement"), keys("Of a running"), keys("Of `status`")


def test_learning_prints_the_keys_of_a_module_and_a_lesson(command: Command, tiny_tasks: Path, home: Path):
    facts = command("learn", tiny_tasks / "dice", "--name", "more dice", "--json", "--home", home).json
    assert set(facts) == MODULE | LESSON


def test_composing_prints_the_keys_of_a_module_and_a_lesson(command: Command, home: Path):
    facts = command("compose", "mixed", "dice:*", "shapes:*", "--json", "--home", home).json
    assert set(facts) == MODULE | LESSON


def test_lists_of_tasks_print_the_keys_of_modules(command: Command, home: Path, tmp_path: Path):
    facts = command("tasks", "--json", "--home", home).json
    assert set(facts) == {"tasks", "merged", "damaged"}
    assert set(facts["tasks"][0]) == MODULE
    assert set(command("show", "dice", "--json", "--home", home).json) == MODULE | {"tensors"}
    assert command("export", "dice", tmp_path / "dice.skill", "--home", home).code == 0
    (tmp_path / "broken.skill").write_bytes(b"broken")
    files = (tmp_path / "dice.skill", tmp_path / "broken.skill")
    facts = command("import", *files, "--json", "--home", tmp_path / "other").json
    assert set(facts) == {"imported", "refused"}
    assert set(facts["imported"][0]) == MODULE
    assert set(facts["refused"][0]) == {"file", "reason", "kind"}


def test_answers_have_the_keys_of_the_page(command: Command, tiny_tasks: Path, home: Path, tmp_path: Path):
    (tmp_path / "broken.jpg").write_bytes(b"broken")
    photo = min((tiny_tasks / "dice" / "test").glob("*/*"))
    facts = command("ask", photo, tmp_path / "broken.jpg", "--json", "--home", home).json
    assert set(facts) == {"answers", "unreadable"}
    assert set(facts["answers"][0]) == ANSWER
    guess = set(facts["answers"][0]["guesses"][0])
    assert guess - {"supported_by"} == {"label", "task", "teacher", "teacher_key", "confidence"}


def test_measuring_prints_the_keys_of_the_page(command: Command, tiny_tasks: Path, home: Path):
    facts = command("eval", tiny_tasks, "--no-learn", "--json", "--home", home).json
    assert set(facts) == EVAL - {"corrective", "views", "views_mean"}
    assert set(facts["provenance"]) == {"command", "version", "commit", "seed", "data_hash", "date"}


def test_the_status_without_a_node_has_the_keys_of_the_page(command: Command, home: Path):
    assert set(command("status", "--json", "--home", home).json) == STATUS | {
        "running",
        "network",
        "trust",
        "root",
    }


@pytest.mark.long
def test_a_sync_prints_the_keys_of_a_node(command: Command, home: Path):
    facts = command("sync", "--seconds", "1", "--json", "--home", home).json
    assert set(facts) == NODE | {"tasks", "gained"}


@pytest.mark.parametrize(
    "words",
    [
        "backbone",
        "trust list",
        "quarantine list",
        "repair",
        "samples DIR",
        "classes match dice shapes --encoder letters",
    ],
)
def test_other_commands_print_the_keys_that_are_listed(words: str, command: Command, home: Path, tmp_path: Path):
    name, *rest = words.replace("DIR", str(tmp_path / "drawn")).split()
    place = () if name in ("samples", "backbone") else ("--home", home)
    facts = command(name, *rest, "--json", *place).json
    key = " ".join(words.split()[: 2 if name in ("trust", "quarantine", "classes") else 1])
    assert set(facts) <= listed(key)
    assert set(nested(facts)) <= set(re.findall(r"`(\w+)`", PAGE))


@pytest.mark.parametrize("words", ["paper", "study replay", "data list decathlon"])
def test_commands_of_the_challenge_print_the_keys_that_are_listed(words: str, command: Command):
    pytest.importorskip("skillmesh_challenge")
    facts = command("challenge", *words.split(), "--json").json
    assert set(facts) == listed(f"challenge {words.removesuffix(' decathlon').removesuffix(' replay')}")


def test_every_command_with_json_is_on_the_page():
    pages = (PAGES / "reference").glob("commands*.md")
    sections = [part for page in pages for part in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]]
    names = [part.splitlines()[0] for part in sections if "- `--json`" in part]
    assert len(names) > 25
    assert not [name for name in names if f"`{name}`" not in PAGE]


def test_a_failure_prints_an_error(command: Command, home: Path):
    ran = command("show", "no such task", "--json", "--home", home)
    assert (ran.code, set(ran.json)) == (1, {"error"})
