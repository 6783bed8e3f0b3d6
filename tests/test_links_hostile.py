"""Links and parts made by liars: many do not outvote one, claims buy no say, and an agent's own images decide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from halves import dealt

from skillmesh.agent import Agent
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.data.folder import TaskFolder, open_task
from skillmesh.learning.head import Head
from skillmesh.module import Identity, Module
from skillmesh.module.notice import link
from skillmesh.synergy.merging import joining
from skillmesh.synergy.merging.fitting import disagreement, misfit
from skillmesh.synergy.merging.joining import MISFITS, MOST_EVIDENCE, arranged, joint
from skillmesh.tensors import Tensors

NewAgent = Callable[..., Agent]
LIARS = [Identity.create(f"liar{i}") for i in range(8)]


@pytest.fixture(scope="module")
def shapes(demo_tasks: Path) -> list[TaskFolder]:
    return dealt(open_task(demo_tasks / "shapes"), 2)


@pytest.fixture(scope="module")
def victim(new_agent: NewAgent, shapes: list[TaskFolder], demo_tasks: Path) -> Agent:
    """Knows half of the shapes' images, and dice. Many tests share it: none may change it."""
    agent = new_agent("victim")
    agent.learn(shapes[0])
    agent.learn(demo_tasks / "dice")
    return agent


@pytest.fixture(scope="module")
def honest(new_agent: NewAgent, shapes: list[TaskFolder]) -> Module:
    """The other half."""
    return new_agent("second").learn(shapes[1])[0]


def forged(honest: Module, who: Identity, tensors: Tensors | None = None, **card: Any) -> tuple[Module, bytes]:
    card |= {"teacher": who.name, "teacher_key": who.public_key}
    return Module.create(honest.card.model_copy(update=card), honest.tensors | (tensors or {}), who)


def turned(classes: tuple[str, ...], count: int) -> tuple[str, ...]:
    """The first names, each moved on by one."""
    return (*classes[1:count], classes[0], *classes[count:])


# Who is outvoted.


def test_seven_who_lie_alike_do_not_outvote_one_teacher(victim: Agent, honest: Module) -> None:
    own = victim.bank.find("shapes")
    names = turned(honest.card.classes, 10)
    liars = [forged(honest, who, classes=names)[0] for who in LIARS[:7]]
    assert misfit(liars, victim.prior) is None
    assert "do not look alike" in str(misfit([own, *liars], victim.prior))
    assert disagreement([own, *liars], victim.prior) == pytest.approx(disagreement([own, liars[0]], victim.prior))


def test_a_teacher_has_one_part_in_a_task(victim: Agent, honest: Module) -> None:
    own = victim.bank.find("shapes")
    two = [forged(honest, LIARS[0], task=f"shapes {i}")[0] for i in range(2)]
    assert misfit([own, two[0]], victim.prior) is None
    assert "2 of them are by liar0" in str(misfit([own, *two], victim.prior))
    made = link("figures", 1, [own.id, two[0].id, two[1].id], LIARS[0])
    assert len(arranged([own, *two], [made], victim.prior)) == 3


# What claims are worth.


def grown(module: Module) -> Tensors:
    """Tensors with a class more, a copy of the first."""
    names = ("head.weight", "head.scale", "head.bias", "sketch.mean", "sketch.mean.scale")
    return {name: np.concatenate([module.tensors[name], module.tensors[name][:1]]) for name in names}


def test_a_class_that_only_a_boaster_has_does_not_give_it_the_scatter(victim: Agent, honest: Module) -> None:
    own = victim.bank.find("shapes")
    classes, wide = (*honest.card.classes, "zzz"), grown(honest)
    few, many = (
        forged(honest, LIARS[0], wide, classes=classes, counts=(*honest.card.counts, claimed))[0]
        for claimed in (int(MOST_EVIDENCE * max(honest.card.counts)), 9_000_000)
    )
    scatters = [
        SketchAnchor.read(joint(link("x", 1, [own.id, liar.id], LIARS[0]), [own, liar], victim.prior).tensors)
        for liar in (few, many)
    ]
    assert scatters[0].freedom == scatters[1].freedom
    np.testing.assert_allclose(scatters[0].scatter.variances, scatters[1].scatter.variances, rtol=1e-6)


def test_who_claims_one_image_does_not_take_the_say_of_two_others(victim: Agent, honest: Module) -> None:
    own = victim.bank.find("shapes")
    other = forged(honest, LIARS[0])[0]
    modest = forged(honest, LIARS[1], counts=(1,) * len(honest.card.counts))[0]
    parts = [own, other, modest]
    made = joint(link("x", 1, [part.id for part in parts], LIARS[0]), parts, victim.prior)
    images = sum(sum(part.card.counts) for part in parts)
    assert SketchAnchor.read(made.tensors).freedom == images - len(made.card.classes)


def test_a_joint_is_as_sure_as_its_heads_however_faint_these_are(victim: Agent, honest: Module) -> None:
    """Heads of a tenth with a temperature of a tenth say the same, and so does what they make."""
    own = victim.bank.find("shapes")
    tenth = np.float32(0.1)
    faint = []
    for module, who in zip((own, honest), LIARS, strict=False):
        head = Head.read(module.tensors)
        quiet = Head(head.weight * tenth, head.bias * tenth).tensors()
        faint.append(forged(module, who, quiet, temperature=module.card.temperature / 10)[0])
    x = SketchAnchor.read(own.tensors).means
    said = []
    for parts in ([own, honest], faint):
        made = joint(link("x", 1, [part.id for part in parts], LIARS[0]), parts, victim.prior)
        assert made.card.temperature == 1  # a card's has a limit, which loud closed forms exceed
        said.append(Head.read(made.tensors).logits(x))
    np.testing.assert_allclose(said[0], said[1], atol=0.05 * np.ptp(said[0]))


# What many links cost.


def test_what_came_of_a_link_is_remembered(victim: Agent, honest: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    own = victim.bank.find("shapes")
    dice, good = victim.bank.find("dice"), forged(honest, LIARS[1])[0]
    links = [link("bad", 1, [own.id, dice.id], LIARS[0]), link("good", 1, [own.id, good.id], LIARS[1])]
    looked = _looked(monkeypatch)
    remembered = joining.Remembered()
    first = arranged([own, good, dice], links, victim.prior, remembered=remembered)
    once = len(looked)
    again = arranged([own, good, dice, forged(dice, LIARS[0])[0]], links, victim.prior, remembered=remembered)
    assert len(looked) == once
    assert next(m for m in again if m.card.task == "good") is next(m for m in first if m.card.task == "good")
    arranged([own, dice], links, victim.prior, remembered=remembered)
    assert [reason for reason in remembered.values()] == [misfit([own, dice], victim.prior)]


def _looked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    looked: list[object] = []
    real = joining.misfit
    monkeypatch.setattr(joining, "misfit", lambda parts, prior: looked.append(parts) or real(parts, prior))
    return looked


def test_a_maker_of_many_links_that_join_nothing_is_not_looked_at_for_ever(
    victim: Agent, honest: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, dice = victim.bank.find("shapes"), victim.bank.find("dice")
    other = forged(honest, LIARS[1])[0]
    flood = [link(f"l{i}", 1, [own.id, dice.id], LIARS[0]) for i in range(MISFITS + 20)]
    honest_link = link("good", 1, [own.id, other.id], LIARS[2])
    looked = _looked(monkeypatch)
    tasks = arranged([own, dice, other], [*flood, honest_link], victim.prior)
    assert len(looked) <= MISFITS + 1
    assert sorted(task.card.task for task in tasks) == ["dice", "good"]
