"""A module that arrives is tried before it may answer; hostile ones are really signed, as a liar would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillmesh import validation
from skillmesh.agent import Agent
from skillmesh.anchors import KINDS
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.backbone.representation import represent
from skillmesh.learning.head import Head
from skillmesh.learning.probes import read_probes
from skillmesh.mapper import Mapper
from skillmesh.mesh import quarantine as quarantine_module
from skillmesh.mesh.quarantine import Quarantine, Verdict, background_of, tolerance
from skillmesh.module import Identity, Module
from skillmesh.tensors import Tensors

LIAR = Identity.create("liar")
OWN = ("shapes", "dice")
OTHERS = ("latin", "greek")


@pytest.fixture(scope="session")
def modules(taught: Agent) -> dict[str, Module]:
    return {module.card.task: module for module in taught.bank}


@pytest.fixture(scope="session")
def quarantine(taught: Agent, modules: dict[str, Module]) -> Quarantine:
    """That of an agent which learned shapes and dice itself."""
    return quarantine_of(taught, [modules[name] for name in OWN])


def quarantine_of(agent: Agent, own: list[Module]) -> Quarantine:
    config = agent.config
    background = background_of(agent.calibration, config.representation, config.compact)
    prior = agent.calibration.prior(config.representation, config.compact)
    kept = validation.load(agent.home / validation.FOLDER, own)
    return Quarantine(prior, config.mapper, background, kept)


def forged(honest: Module, tensors: Tensors | None = None, **card: Any) -> Module:
    """Alter an honest module and sign it as somebody else's."""
    card |= {"teacher": LIAR.name, "teacher_key": LIAR.public_key}
    return Module.create(honest.card.model_copy(update=card), honest.tensors | (tensors or {}), LIAR)[0]


def with_anchor(honest: Module, tensors: Tensors, means: np.ndarray) -> Module:
    """Forge a module whose anchor has other means; its classes are called 0, 1, 2, …"""
    anchor = replace(SketchAnchor.read(honest.tensors), means=means.astype(np.float32))
    head = Head(anchor.means / 50, np.zeros(len(means), dtype=np.float32))
    names = tuple(f"class {i}" for i in range(len(means)))
    return forged(
        honest,
        anchor.tensors() | head.tensors() | tensors,
        task="forged",
        classes=names,
        counts=(9,) * len(names),
    )


def names(modules: Any) -> set[str]:
    return {module.card.task for module in modules}


def reason_of(verdict: Verdict) -> str:
    assert not verdict.accepted
    (held,) = verdict.held
    return held.reason


# Honest teachers.


def test_honest_newcomers_cost_one_build_and_the_mapper_is_the_banks_own(
    taught: Agent, modules: dict[str, Module], quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[list[Module]] = []

    class Counted(Mapper):
        def __init__(self, bank: list[Module], *rest: Any) -> None:
            built.append(list(bank))
            super().__init__(bank, *rest)

    live = [modules[name] for name in OWN]
    mapper = Mapper(sorted(live, key=lambda m: (m.content_id, m.id)), "sketch", quarantine._prior)
    monkeypatch.setattr(quarantine_module, "Mapper", Counted)
    verdict = quarantine.judge(live, [modules[name] for name in OTHERS], mapper)
    assert names(verdict.accepted) == set(OTHERS)
    assert not verdict.held
    assert built == [list(taught.bank)]
    assert verdict.modules == list(taught.bank)
    x = quarantine._background
    assert np.array_equal(verdict.mapper.map(x).posterior, taught.mapper()[1].map(x).posterior)


def test_the_first_module_of_an_empty_bank_is_accepted(taught: Agent, modules: dict[str, Module]) -> None:
    verdict = quarantine_of(taught, []).judge([], [modules["dice"]])
    assert verdict.accepted == (modules["dice"],)
    assert verdict.mapper is not None


def test_nothing_comes_of_nothing(taught: Agent) -> None:
    assert quarantine_of(taught, []).judge([], []) == Verdict((), (), [], None)


def test_a_second_teacher_of_the_same_classes_passes_whatever_the_case_of_their_names(
    modules: dict[str, Module], quarantine: Quarantine
) -> None:
    shapes = modules["shapes"]
    upper = tuple(name.upper() for name in shapes.card.classes)
    second = rival(shapes, classes=upper)
    live = list(modules.values())
    assert quarantine.judge(live, [second]).accepted == (second,)


def rival(honest: Module, tensors: Tensors | None = None, **card: Any) -> Module:
    """A copy that wins nearly every image of the copied task: several of its means surround each of the other's."""
    anchor = SketchAnchor.read(honest.tensors)
    moved = replace(anchor, means=anchor.means * np.float32(1.02))
    return forged(honest, moved.tensors() | (tensors or {}), **card)
