"""Packages that only some features need: the message names the ones that the extras of pyproject.toml bring."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from skillmesh.common import extras
from skillmesh.common.extras import Extra
from skillmesh.errors import BackboneError, SkillmeshError

ALL = {name: value for name, value in vars(extras).items() if isinstance(value, Extra)}
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize("name", ALL)
def test_the_command_installs_packages_of_an_extra_by_their_own_names(name: str):
    offered = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    known = {canonicalize_name(Requirement(text).name) for texts in offered.values() for text in texts}
    pip, install, *packages = ALL[name].command.split()
    assert (pip, install) == ("pip", "install")
    named = {canonicalize_name(package) for package in packages if not package.startswith("--")}
    assert named <= known - {"skillmesh"}
    assert named


def test_a_module_that_a_finder_hides_is_missing(monkeypatch: pytest.MonkeyPatch):
    def refuse(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(extras, "find_spec", refuse)
    assert not Extra("it", ("json",), "pip install it").installed


def test_one_missing_module_is_enough_to_refuse():
    there, half = (
        Extra("it", ("json",), "pip install it"),
        Extra("it", ("json", "no_such_module"), "pip install it"),
    )
    there.require("this test")
    assert (there.installed, half.installed) == (True, False)
    with pytest.raises(SkillmeshError, match=r"^this test needs it, which is not installed; install it with `pip"):
        half.require("this test")
    with pytest.raises(BackboneError):
        half.require("this test", BackboneError)
