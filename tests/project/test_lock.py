"""The locks hold what is tried and what is asked for, with a hash for every file."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
HASH = r"    --hash=sha256:[0-9a-f]{64}(?: \\)?\n"
ENTRY = re.compile(rf"^(?P<name>[\w.-]+)==(?P<version>\S+) \\\n(?:{HASH})+", re.MULTILINE)


def entries(lock: str) -> dict[str, str]:
    """The version of each package of a lock; every line of it belongs to such an entry."""
    text = (ROOT / lock).read_text()
    found = list(ENTRY.finditer(text))
    assert "".join(entry[0] for entry in found) == text, f"{lock} has lines that are no package with hashes"
    return {canonicalize_name(entry["name"]): entry["version"] for entry in found}


def constraints() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def asked(*extras: str) -> set[str]:
    """The packages that pyproject.toml asks for, with those of the extras and of the extras that these name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in project["dependencies"]]
    for extra in extras:
        wanted += [Requirement(text) for text in project["optional-dependencies"][extra]]
    ours = {inner for requirement in wanted if requirement.name == "skillmesh" for inner in requirement.extras}
    others = {canonicalize_name(requirement.name) for requirement in wanted if requirement.name != "skillmesh"}
    return others | (asked(*ours) if ours else set())


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock", "requirements-names.lock"])
def test_a_lock_has_the_versions_of_the_constraints(lock: str) -> None:
    pinned = constraints()
    versions = {name: version.split("+")[0] for name, version in entries(lock).items()}
    assert versions == {name: pinned.get(name) for name in versions}


@pytest.mark.parametrize(("lock", "extras"), [("requirements.lock", []), ("requirements-dev.lock", ["dev"])])
def test_a_lock_has_all_that_is_asked_for(lock: str, extras: list[str]) -> None:
    assert asked(*extras) | {"hatchling"} <= set(entries(lock))
