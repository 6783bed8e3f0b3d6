"""Rules about the source that no linter knows."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
OURS = {"skillmesh/arguments.py"}
"""Files whose asserts are for us: they fail on import, where a signature and its description differ."""


def test_an_assert_tells_a_type_and_checks_no_input() -> None:
    """`python -O` leaves asserts out, so nothing may rest on one."""
    wrong = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Assert) and not _tells_a_type(node.test)
    ]
    assert not [place for place in wrong if place.split(":")[0] not in OURS]


def _tells_a_type(test: ast.expr) -> bool:
    match test:
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
    return False


def test_messages_of_the_library_name_no_option_of_a_command_alone() -> None:
    """Programs read them, too: `errors.option` says it either way, and a whole command stands in backticks."""
    found = [
        f"{file.relative_to(SOURCE)}:{line}: {text}"
        for file in (SOURCE / "skillmesh").rglob("*.py")
        if file.parent.name not in ("cli", "demo")
        for line, text in _texts(ast.parse(file.read_text()))
        if " " in text and re.search(r"(?<![\w-])--[a-z]", re.sub(r"`[^`]*`|pip install \S+ \S+", "", text))
    ]
    assert not found


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the strings that a program can say: neither docstrings nor both ways to write an option."""
    match node:
        case ast.Call(func=ast.Name(id="option")) | ast.Expr(value=ast.Constant(value=str())):
            return
        case ast.Constant(value=str(text)):
            yield node.lineno, text
        case ast.JoinedStr(values=parts):
            said = (part.value if isinstance(part, ast.Constant) else "…" for part in parts)
            yield node.lineno, "".join(map(str, said))
            parts = [part for part in parts if isinstance(part, ast.FormattedValue)]
            yield from (text for part in parts for text in _texts(part.value))
        case _:
            yield from (text for child in ast.iter_child_nodes(node) for text in _texts(child))
