"""Mutants: what is changed and what is not, which are detected, and what a second run repeats."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "skillmesh"

SMALL = '''"""Two functions, of which one is tested."""

LIMIT = 3


def tested(number: int) -> int:
    """Add one."""
    return number + 1


def untested(number: int) -> int:
    if number > LIMIT:
        raise ValueError("too much")
    return number - 1
'''
TESTS = """
import pytest
from small import numbers

@pytest.fixture(scope="session")
def two():
    return numbers.tested(1)

def test_first():
    assert numbers.tested(1) == 2

def test_with_a_fixture(two):
    assert two == 2

def test_that_fails_anyway():
    assert numbers.tested(1) == 5
"""


@pytest.fixture(scope="module")
def making() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("mutation.making")


@pytest.fixture(scope="module")
def named(making: Any) -> Any:
    return importlib.import_module("mutation.named")


def changes(making: Any, source: str) -> set[str]:
    """Return the changed part of each mutant's text."""
    return {f"{m.old} → {m.new}" for m in making.mutants_of("file.py", source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"a < b → (a <= b)", "a < b → (a >= b)"}),
        ("a - b", {"a - b → (a + b)"}),
        ("a / 2", {"a / 2 → (a * 2)", "2 → 3", "2 → 1", "2 → -2", "2 → 0"}),
        ("a and b", {"a and b → (a or b)", "a and b → (b)", "a and b → (a)"}),
        ("not a", {"not a → (a)"}),
        ("min(a, b)", {"min(a, b) → max(a, b)"}),
        ("f(a, b)", {"f(a, b) → f(b, a)"}),
        ("a[b:c]", {"b:c → :c", "b:c → b:"}),
        ("True", {"True → False"}),
        ("a if b else c", {"a if b else c → (c if b else a)"}),
        ("f'{a + 1}'", set()),
        ("'text' + a", set()),
    ],
)
def test_an_expression_has_all_known_mutants(making: Any, source: str, expected: set[str]):
    assert changes(making, f"def f():\n    x = {source}\n") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a", {"return a → return None"}),
        ("b()", {"b() → pass", "b() → return None"}),
        ("a.b = c", {"a.b = c → pass"}),
        ("a += b", {"a += b → pass"}),
        ("raise Error(a + 1)", {"raise Error(a + 1) → pass"}),
        ("log.info('x', a + 1)", set()),
        ("'''Text.'''", set()),
        ("a: Literal[3]", set()),
        ("assert a > 1", set()),
    ],
)
def test_statements_are_deleted_and_messages_are_not_changed(making: Any, body: str, expected: set[str]):
    assert changes(making, f"def f(a: Literal[1]) -> Literal[2]:\n    {body}\n") == expected


def test_printing_and_type_annotations_have_no_mutants(making: Any):
    assert not changes(making, "class A:\n    def __repr__(self):\n        return 1\n")
    assert not changes(making, "class A(Protocol):\n    def f(self, a=1): ...\n")
    assert not changes(making, "if TYPE_CHECKING:\n    a = 1\n")
    assert changes(making, "def f(a=7): ...\n") == {"7 → 8", "7 → 6", "7 → -7", "7 → 0"}


def test_every_mutant_of_the_source_can_be_parsed(making: Any):
    """This includes characters of several bytes."""
    count = 0
    for path in (*sorted((SOURCE / "anchors").glob("*.py")), SOURCE / "answering/answering.py"):
        text = path.read_text()
        for mutant in making.mutants_of(path.name, text):
            assert ast.dump(ast.parse(mutant.applied(text))) != ast.dump(ast.parse(text))
            count += 1
    assert count > 500


def test_a_change_elsewhere_in_a_file_does_not_change_the_draw(making: Any):
    text = (SOURCE / "answering/answering.py").read_text()
    before = making.drawn(making.mutants_of("answering/answering.py", text), 5, 10)
    longer = text.replace("KNOWN = ", "# a comment\n\nKNOWN = ") + "\n\ndef new(a):\n    return a + 1\n"
    after = making.drawn(making.mutants_of("answering/answering.py", longer), 5, 12)
    assert {m.key for m in before} <= {m.key for m in after}
    assert {m.key for m in making.drawn(making.mutants_of("answering/answering.py", text), 6, 10)} != {
        m.key for m in before
    }


def test_every_named_mutant_still_applies_to_the_source(named: Any):
    for mutant in named.named(SOURCE):
        ast.parse(mutant.applied((SOURCE.parent / mutant.file).read_text()))


def test_a_named_mutant_that_no_longer_applies_is_an_error(named: Any):
    with pytest.raises(ValueError, match=r"0 times in answering/answering.py, expected once; update benchmarks"):
        named._mutant(SOURCE, "gone", "answering/answering.py", "no such text", "")


RUN = """
import json, sys
from pathlib import Path
from mutants import Campaign, summary

root = Path(sys.argv[1])
campaign = Campaign(root / "kept", root, root / "src" / "small", preload=())
campaign.map.measure(["tests/test_small.py"], print)
mutants = campaign.draw(100, 0, ("*.py",))
tried = []
for mutant in mutants:
    if campaign.known(mutant) is None:
        tried.append(mutant.key)
        if sys.argv[2] == "try":
            campaign.attempt(mutant)
found = summary(campaign, mutants, root / "src" / "small")
print(json.dumps({"tried": len(tried), "failed": campaign.map.failed} | found))
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for folder in ("src/small", "tests"):
        (root / folder).mkdir(parents=True)
    (root / "src/small/__init__.py").touch()
    (root / "src/small/numbers.py").write_text(SMALL)
    (root / "tests/test_small.py").write_text(TESTS)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return root


def run(root: Path, what: str = "try") -> dict[str, Any]:
    paths = [str(ROOT / "benchmarks"), str(root / "src")]
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(root), what],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_mutants_of_tested_lines_are_detected_others_survive_and_none_is_repeated(small: Path):
    first = run(small)
    assert first["failed"] == ["tests/test_small.py::test_that_fails_anyway"]
    assert first["tried"] == first["mutants"] == first["drawn"] > 5
    assert first["errors"] == 0
    assert {s["line"] for s in first["survivors"]} == {3, 12, 13, 14}
    assert first["detected"] == first["mutants"] - len(first["survivors"]) > 1
    again = run(small, "look")
    assert again["tried"] == 0
    assert {**again, "tried": 0} == {**first, "tried": 0}
    # A new test invalidates the results of survivors only; a change of the source those of all.
    tests = small / "tests/test_small.py"
    tests.write_text(
        TESTS + "\n\ndef test_more():\n    from small.numbers import untested\n    assert untested(3) == 2\n"
    )
    third = run(small)
    assert {s["line"] for s in third["survivors"]} == {12, 13}
    source = small / "src/small/numbers.py"
    source.write_text(SMALL.replace("LIMIT = 3", "LIMIT = 3  # now with a comment"))
    assert run(small, "look")["tried"] == third["mutants"]
