"""The reference pages of the docs: whatever a user can type, set or catch is explained there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import skillmesh
from skillmesh import errors
from skillmesh.common.config import AgentConfig, MeshSettings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The program that writes the pages."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sections(*pages: str) -> dict[str, str]:
    """Return the text below each second-level heading of some pages, by heading."""
    found: dict[str, str] = {}
    for page in pages:
        parts = re.split(r"^## (.+)$", (FOLDER / page).read_text(), flags=re.MULTILINE)
        found |= zip(parts[1::2], parts[2::2], strict=True)
    return found


def test_every_command_and_option_is_explained(reference: ModuleType):
    reference.commands_page("commands.md")  # imports the commands
    pages, missing, explained = sections(*reference.COMMAND_PAGES), [], 0
    for path, command in reference.all_commands():
        rows = re.findall(r"^- `(.+?)`: (.*)$", pages[path.removeprefix("skillmesh ")], re.MULTILINE)
        parameters = [parameter for parameter in command.params if parameter.name not in ("home", "help")]
        assert len(rows) == len(parameters), path
        for parameter, (name, meaning) in zip(parameters, rows, strict=True):
            known = parameter.param_type_name == "argument" or parameter.opts[0] in name
            if known and meaning.partition("[default")[0].partition("[required")[0].strip():
                explained += 1
            else:
                missing.append(f"{path} {name}")
    assert not missing
    assert explained > 150


@pytest.mark.parametrize(("file", "model"), [("agent.json", AgentConfig), ("mesh.json", MeshSettings)])
def test_every_setting_is_explained(file: str, model: type[AgentConfig | MeshSettings]):
    section = sections("settings.md")[file]
    missing = [
        name
        for name in model.model_fields
        if not re.search(rf"^- `{name}` \((required|`.*`)\): \S", section, re.MULTILINE)
    ]
    assert not missing


def test_every_environment_variable_is_explained():
    source = "".join(path.read_text() for path in (ROOT / "src" / "skillmesh").rglob("*.py"))
    section = sections("settings.md")["Environment variables"]
    names = sorted(set(re.findall(r"SKILLMESH_[A-Z_]+", source)))
    assert not [name for name in names if f"- `{name}`: " not in section]


def test_every_error_is_explained_with_its_remedy():
    text = (FOLDER / "errors.md").read_text()
    classes = [name for name, thing in vars(errors).items() if isinstance(thing, type) and name.endswith("Error")]
    assert len(classes) > 25
    explained = re.findall(r"- `(\w+)`: \S.* \*Remedy:\* \S", text)
    assert sorted(explained) == sorted(classes)


def test_every_public_type_has_its_page(reference: ModuleType):
    public = [name for name in skillmesh.__all__ if name != "__version__" and not name.endswith("Error")]
    assert sorted(public) == sorted(name for _, names in reference.PYTHON_PAGES.values() for name in names)
    assert not [name for name in public if name not in sections(*reference.PYTHON_PAGES)]


def test_a_page_that_differs_from_the_program_is_noticed(reference: ModuleType, tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("old")
    assert reference.written(page, "new", check=True)
    assert page.read_text() == "old"
    assert reference.written(page, "new", check=False)
    assert not reference.written(page, "new", check=True)
