"""List the numbers that the docs or the messages of the source stated at an earlier commit and state no longer.

python tools/facts.py COMMIT            # numbers that are stated nowhere any more, with their old lines
python tools/facts.py COMMIT --moved    # also those that are now in another file

A rewrite should keep every fact. A number that vanished was wrong, is now expressed in other words, or is lost.
Tables between `<!-- table NAME -->` and `<!-- end -->` are not compared: they are generated from docs/results.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"(?<![\w.#/-])\d[\d,]*(?:\.\d+)?(?![\w/])")
TABLE = re.compile(r"<!-- table [\w-]+ -->\n.*?<!-- end -->", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--moved", action="store_true")
    arguments = parser.parse_args()
    before, now = files_at(arguments.commit), files_here()
    stated = {name: set(numbers(text)) for name, text in now.items()}
    anywhere = set().union(*stated.values())
    lost = 0
    for name, text in before.items():
        kept = stated.get(name, set()) if arguments.moved else anywhere
        for line in text.splitlines():
            if vanished := [number for number in numbers(line) if number not in kept]:
                lost += 1
                print(f"{name}: {', '.join(vanished)}: {line.strip()[:200]}")
    where = "in their file" if arguments.moved else "anywhere"
    print(f"{lost} lines with numbers that are no longer stated {where}")
    return 0


def numbers(text: str) -> Iterator[str]:
    """Yield the numbers of a text without their thousands separators; 0 to 9 are too common to be useful."""
    for match in NUMBER.finditer(text):
        number = match[0].replace(",", "").rstrip(".")
        if not number.isdigit() or int(number) > 9:
            yield number


def files_at(commit: str) -> Mapping[str, str]:
    """Return the texts of a commit's docs and source, by path."""
    names = git("ls-tree", "-r", "--name-only", commit).splitlines()
    return {name: stated_text(name, git("show", f"{commit}:{name}")) for name in names if counts(name)}


def files_here() -> Mapping[str, str]:
    """Return the texts of the working tree's docs and source, by path."""
    names = (
        str(path.relative_to(ROOT)) for folder in ("docs", "src") for path in sorted((ROOT / folder).rglob("*"))
    )
    names_here = [*names, *(path.name for path in ROOT.glob("*.md"))]
    return {name: stated_text(name, (ROOT / name).read_text()) for name in names_here if counts(name)}


def counts(name: str) -> bool:
    """Return whether a file states facts: a page of the docs, or source with messages and docstrings."""
    return name.endswith(".md") or (name.startswith("src/") and name.endswith(".py"))


def stated_text(name: str, text: str) -> str:
    """Return a page without its generated tables, or the strings of a Python file, one a line."""
    if name.endswith(".md"):
        return TABLE.sub("", text)
    strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return "\n".join(string.replace("\n", " ") for string in strings if isinstance(string, str))


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S607


if __name__ == "__main__":
    raise SystemExit(main())
