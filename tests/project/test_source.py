"""Rules about the source that no linter knows."""

import ast
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
