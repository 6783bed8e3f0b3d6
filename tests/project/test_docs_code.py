"""The code blocks of the docs: Python that parses, and commands with options that exist."""

from __future__ import annotations

import ast
import doctest
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main

from skillmesh.cli import COMMANDS, app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path, *kinds: str) -> Iterator[str]:
    return (text for kind, text in FENCED.findall(page.read_text()) if kind in kinds)


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each call of the command in the page's code blocks, up to the first sign of the shell."""
    indented = re.findall(r"^    (?:\$ )?(.+)$", page.read_text(), re.MULTILINE)
    fenced = "\n".join(blocks(page, "sh", "console", "")).replace("\\\n", " ").splitlines()
    has_challenge = find_spec("skillmesh_challenge") is not None
    for line in (*indented, *fenced):
        for part in re.split(r"&&|\|\||[|;&](?!\w)", re.sub(r"\s+#.*", "", line).removeprefix("$ ")):
            if part.strip().startswith("skillmesh ") and "[OPTIONS]" not in part and "Usage" not in part:
                words = shlex.split(re.sub(r"\$\([^)]*\)|[<>]\s*\S+", "X", part))[1:]
                if has_challenge or words[0] != "challenge":
                    yield words


@pytest.fixture(scope="module")
def program() -> Any:
    for module in COMMANDS:
        import_module(f"skillmesh.cli.{module}")
    return typer.main.get_command(app)


def fault(words: list[str], program: Any) -> str | None:
    """Return what is wrong with a call: no such command, or an option that it does not have."""
    options = {"--home", "--help", "--version"} if words[0].startswith("-") else {"--help"}
    command, names = program, []
    for word in words:
        if word.startswith("-") and word != "-":
            name = word.partition("=")[0]
            if name not in options:
                return f"{' '.join(names)} has no option {name}"
        elif hasattr(command, "get_command"):
            context = command.context_class(command, info_name="x")
            inner = command.get_command(context, word)
            if inner is None and names:
                return f"{' '.join(names)} has no command {word}"
            if inner is not None:
                command, names = inner, [*names, word]
                options |= {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    return None if names or "--version" in words or "--help" in words else f"no command in {words}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_and_options_exist(page: Path, program: Any):
    assert not [wrong for words in commands(page) if (wrong := fault(words, program))]


def test_commands_are_found_in_the_docs(program: Any):
    assert sum(len(list(commands(page))) for page in PAGES) > 150
    assert fault(["learn", "photos", "--no-such"], program) == "learn has no option --no-such"
    assert fault(["trust", "everyone"], program) == "trust has no command everyone"
    assert fault(["--home", "bob", "ask", "x.jpg", "--json"], program) is None


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_python_parses(page: Path):
    examples = [
        example.source for text in blocks(page, "pycon") for example in doctest.DocTestParser().get_examples(text)
    ]
    for source in (*blocks(page, "python"), *examples):
        ast.parse(source)
