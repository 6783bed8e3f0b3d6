"""Links and parts made by liars: many do not outvote one, claims buy no say, and an agent's own images decide."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from halves import dealt
from meshes import free_port
from vetted import quarantine_of

from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.answering.answering import is_copy
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.data.folder import TaskImages, open_task
from skillmesh.errors import AgentError
from skillmesh.learning.head import Head
from skillmesh.mesh.node import Node
from skillmesh.module import Identity, Module
from skillmesh.module.notice import link
from skillmesh.numerics.arrays import Tensors
from skillmesh.numerics.process import one_thread
from skillmesh.synergy import merging
from skillmesh.synergy.merging import MISFITS, MOST_EVIDENCE, merged_task, misfit, with_merged_tasks
from skillmesh.vetting.quarantine import disagreement

pytestmark = pytest.mark.long

NewAgent = Callable[..., Core]
LIARS = [Identity.create(f"liar{i}") for i in range(8)]


@pytest.fixture(scope="module")
def shapes(demo_tasks: Path) -> list[TaskImages]:
    return dealt(open_task(demo_tasks / "shapes"), 2)


@pytest.fixture(scope="module")
def victim(new_agent: NewAgent, shapes: list[TaskImages], demo_tasks: Path) -> Core:
    """Knows half of the shapes' images, and dice. Many tests share it: none may change it."""
    agent = new_agent("victim")
    agent.learn(shapes[0])
    agent.learn(demo_tasks / "dice")
    return agent


@pytest.fixture(scope="module")
def honest(new_agent: NewAgent, shapes: list[TaskImages]) -> Module:
    """The other half."""
    return new_agent("second").learn(shapes[1])[0]


def forged(honest: Module, who: Identity, tensors: Tensors | None = None, **card: Any) -> tuple[Module, bytes]:
    card |= {"teacher": who.name, "teacher_key": who.public_key}
    return Module.create(honest.card.model_copy(update=card), honest.tensors | (tensors or {}), who)


def turned(classes: tuple[str, ...], count: int) -> tuple[str, ...]:
    """The first names, each moved on by one."""
    return (*classes[1:count], classes[0], *classes[count:])


# Who is outvoted.


def test_seven_who_lie_alike_do_not_outvote_one_teacher(victim: Core, honest: Module) -> None:
    own = victim.bank.find("shapes")
    names = turned(honest.card.classes, 10)
    liars = [forged(honest, who, classes=names)[0] for who in LIARS[:7]]
    assert misfit(liars, victim.prior) is None
    assert "do not look alike" in str(misfit([own, *liars], victim.prior))
    assert disagreement([own, *liars], victim.prior) == pytest.approx(disagreement([own, liars[0]], victim.prior))


def test_a_teacher_has_one_part_in_a_task(victim: Core, honest: Module) -> None:
    own = victim.bank.find("shapes")
    two = [forged(honest, LIARS[0], task=f"shapes {i}")[0] for i in range(2)]
    assert misfit([own, two[0]], victim.prior) is None
    assert "2 of them are by liar0" in str(misfit([own, *two], victim.prior))
    made = link("figures", 1, [own.id, two[0].id, two[1].id], LIARS[0])
    assert len(with_merged_tasks([own, *two], [made], victim.prior)) == 3


# What claims are worth.


def grown(module: Module) -> Tensors:
    """Tensors with a class more, a copy of the first."""
    names = ("head.weight", "head.scale", "head.bias", "sketch.mean", "sketch.mean.scale")
    return {name: np.concatenate([module.tensors[name], module.tensors[name][:1]]) for name in names}


def test_a_class_that_only_a_boaster_has_does_not_give_it_the_scatter(victim: Core, honest: Module) -> None:
    own = victim.bank.find("shapes")
    classes, wide = (*honest.card.classes, "zzz"), grown(honest)
    few, many = (
        forged(honest, LIARS[0], wide, classes=classes, counts=(*honest.card.counts, claimed))[0]
        for claimed in (int(MOST_EVIDENCE * max(honest.card.counts)), 9_000_000)
    )
    scatters = [
        SketchAnchor.read(
            merged_task(link("x", 1, [own.id, liar.id], LIARS[0]), [own, liar], victim.prior).tensors
        )
        for liar in (few, many)
    ]
    assert scatters[0].freedom == scatters[1].freedom
    np.testing.assert_allclose(scatters[0].scatter.variances, scatters[1].scatter.variances, rtol=1e-6)


def test_who_claims_one_image_does_not_take_the_say_of_two_others(victim: Core, honest: Module) -> None:
    classes = len(honest.card.classes)
    parts = [
        forged(honest, who, counts=(count,) * classes)[0] for who, count in zip(LIARS, (40, 30, 1), strict=False)
    ]
    made = merged_task(link("x", 1, [part.id for part in parts], LIARS[0]), parts, victim.prior)
    assert SketchAnchor.read(made.tensors).freedom == (40 + 30 + 1) * classes - classes


def test_a_joint_is_as_sure_as_its_heads_however_faint_these_are(victim: Core, honest: Module) -> None:
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
        made = merged_task(link("x", 1, [part.id for part in parts], LIARS[0]), parts, victim.prior)
        assert made.card.temperature == 1  # a card's has a limit, which loud closed forms exceed
        said.append(Head.read(made.tensors).logits(x))
    np.testing.assert_allclose(said[0], said[1], atol=0.05 * np.ptp(said[0]))


# What many links cost.


def test_what_came_of_a_link_is_remembered(victim: Core, honest: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    own = victim.bank.find("shapes")
    dice, good = victim.bank.find("dice"), forged(honest, LIARS[1])[0]
    links = [link("bad", 1, [own.id, dice.id], LIARS[0]), link("good", 1, [own.id, good.id], LIARS[1])]
    looked = _looked(monkeypatch)
    remembered = merging.Remembered()
    first = with_merged_tasks([own, good, dice], links, victim.prior, remembered=remembered)
    once = len(looked)
    again = with_merged_tasks(
        [own, good, dice, forged(dice, LIARS[0])[0]], links, victim.prior, remembered=remembered
    )
    assert len(looked) == once
    assert next(m for m in again if m.card.task == "good") is next(m for m in first if m.card.task == "good")
    with_merged_tasks([own, dice], links, victim.prior, remembered=remembered)
    assert list(remembered.values()) == [misfit([own, dice], victim.prior)]


def _looked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    looked: list[object] = []
    real = merging.misfit
    monkeypatch.setattr(merging, "misfit", lambda parts, prior: looked.append(parts) or real(parts, prior))
    return looked


def test_a_maker_of_many_links_that_join_nothing_is_not_looked_at_for_ever(
    victim: Core, honest: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, dice = victim.bank.find("shapes"), victim.bank.find("dice")
    other, third = (forged(honest, who)[0] for who in LIARS[1:3])
    flood = [link(f"l{i}", 1, [third.id, dice.id], LIARS[0]) for i in range(MISFITS + 20)]
    honest_link = link("good", 1, [own.id, other.id], LIARS[2])
    looked = _looked(monkeypatch)
    tasks = with_merged_tasks([own, dice, other, third], [*flood, honest_link], victim.prior)
    assert len(looked) == MISFITS + 1
    assert sorted(task.card.task for task in tasks) == ["dice", "good", "shapes"]


# What an agent's own images say.


def taught_anew(new_agent: NewAgent, victim: Core, name: str) -> Core:
    """An agent with the victim's modules that is not their teacher: it has no images of its own."""
    agent = new_agent(name)
    for module in victim.bank:
        agent.import_bytes(victim.bank.file_of(module))
    return agent


def accuracy(agent: Core, images: list[Path]) -> float:
    return float(
        np.mean([a.best.label == p.parent.name for a, p in zip(agent.answer(images), images, strict=True)])
    )


def test_a_joint_that_harms_an_agents_own_images_does_not_act_there(
    new_agent: NewAgent,
    shapes: list[TaskImages],
    demo_tasks: Path,
    honest: Module,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Seven teachers who exchange two names of ten: they pass for second ones, and outvote the first."""
    agent = new_agent("own")
    agent.learn(shapes[0])
    own = agent.bank.find("shapes")
    images = [
        p for p in sorted((demo_tasks / "shapes" / "test").glob("*/*")) if p.parent.name in own.card.classes[:2]
    ]
    liars = [forged(honest, who, classes=turned(honest.card.classes, 2)) for who in LIARS[:7]]
    for _, data in liars:
        agent.import_bytes(data)
    other = taught_anew(new_agent, agent, "other")
    made = link("figures", 1, [own.id, *(liar.id for liar, _ in liars)], LIARS[0])
    for each in (agent, other):
        each.ledger.trust(LIARS[0].public_key, "liar0")
        each.ledger.merge([made], "liar0")
    assert [joint.card.task for joint in other.merged()] == ["figures"]  # it has no images that tell otherwise
    assert agent.merged() == []
    assert "has no effect on this agent" in caplog.text
    assert "whose classes look different in other parts are right" in str(agent.merger.why_not(made))
    assert accuracy(other, images) < 0.5


def test_status_says_why_a_link_does_not_act(
    command: Callable[..., Any], new_agent: NewAgent, victim: Core, honest: Module
) -> None:
    agent = taught_anew(new_agent, victim, "other")
    liar, data = forged(honest, LIARS[0], classes=turned(honest.card.classes, 10))
    agent.import_bytes(data)
    agent.ledger.merge([link("x", 1, [agent.bank.find("shapes@victim").id, liar.id], agent.identity)], "itself")
    (fact,) = command("status", "--home", agent.home, "--json").json["links"]
    assert fact["acts"] is False
    assert "do not look alike" in fact["reason"]


# Who is obeyed.


def test_a_node_that_trusts_listed_teachers_obeys_no_stranger_whatever_its_settings_said(
    new_agent: NewAgent, victim: Core, honest: Module
) -> None:
    agent = taught_anew(new_agent, victim, "other")
    second, data = forged(honest, LIARS[0])
    agent.import_bytes(data)
    MeshSettings(trust="open").save(agent.home)
    made = link("strangers", 1, [agent.bank.find("shapes@victim").id, second.id], LIARS[0])
    Core(agent.home).ledger.merge([made], "liar0")
    assert [joint.card.task for joint in Core(agent.home).merged()] == ["strangers"]
    listed = Core(agent.home)
    settings = MeshSettings.load(agent.home).with_(trust="listed", discovery_port=free_port())
    with Node(listed, settings).running():
        assert listed.merged() == []


def test_a_link_that_another_takes_precedence_over_is_refused_before_it_is_published(
    command: Callable[..., Any], new_agent: NewAgent, victim: Core, honest: Module
) -> None:
    agent = taught_anew(new_agent, victim, "other")
    second, data = forged(honest, LIARS[0])
    agent.import_bytes(data)
    agent.ledger.trust(LIARS[0].public_key, "liar0")
    agent.ledger.merge([link("theirs", 1, [agent.bank.find("shapes@victim").id, second.id], LIARS[0])], "liar0")
    done = command("merge", "--home", agent.home, "shapes@victim", "shapes@liar0", "--name", "mine")
    assert done.code == 1
    assert "already parts of 'theirs', by a link of liar0" in done.err
    assert [found.task for found in Core(agent.home).ledger.view().links.values()] == ["theirs"]
    assert [joint.card.task for joint in agent.merged()] == ["theirs"]


def test_no_merged_task_is_called_like_a_module_of_a_teacher(
    new_agent: NewAgent, victim: Core, honest: Module
) -> None:
    agent = taught_anew(new_agent, victim, "other")
    second, data = forged(honest, LIARS[0])
    agent.import_bytes(data)
    first = agent.find("shapes@victim")
    with pytest.raises(AgentError, match="reads like a key, or like TASK@TEACHER; give it another"):
        agent.merge(["shapes@victim", "shapes@liar0"], "shapes@victim")
    assert agent.find("shapes@victim") == first
    assert agent.find("shapes@liar0") == second


def test_threads_that_ask_at_once_arrange_once_and_a_node_that_nobody_asked_not_at_all(
    new_agent: NewAgent, victim: Core, honest: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = taught_anew(new_agent, victim, "other")
    agent.import_bytes(forged(honest, LIARS[0])[1])
    agent.merge(["shapes@victim", "shapes@liar0"])
    agent = Core(agent.home)
    looked = _looked(monkeypatch)
    assert agent.live == 3
    assert looked == []
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: agent.answering_tasks(), range(8)))
    assert len(looked) == 1
    assert all(tasks is found[0] for tasks in found)


def test_limits_of_threads_do_not_overlap() -> None:
    """Whoever leaves first would lift the other's limit."""
    inside: list[int] = []
    most = []

    def enter(number: int) -> None:
        with one_thread(), one_thread():
            inside.append(number)
            time.sleep(0.05)
            most.append(len(inside))
            inside.remove(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(enter, range(4)))
    assert most == [1] * 4


# What stands behind another.


def test_a_copy_that_would_harm_once_its_source_is_withdrawn_is_held(victim: Core, honest: Module) -> None:
    """A liar sends an honest second module of a task, and a copy of it with other names."""
    own = list(victim.bank)
    source = forged(honest, LIARS[0], task="source")[0]
    claim = {"composed": tuple(f"{source.id}:{name}" for name in source.card.classes), "format": 2, "trial": None}
    copy = forged(honest, LIARS[1], task="n", classes=turned(honest.card.classes, 10), **claim)[0]
    assert is_copy(copy, {source.id: source}, "sketch")
    trial = quarantine_of(victim, own)
    assert trial.judge(own, [source]).accepted
    (held,) = trial.judge([*own, source], [copy]).held
    assert held.module == copy
    assert "were it not for the tasks that it is composed of" in held.reason
    (held,) = trial.judge(own, [source, copy]).held  # whichever of the two is tried first
    assert held.module == copy


def test_whether_a_task_is_a_copy_is_seen_in_its_numbers_not_in_its_words(honest: Module) -> None:
    source = forged(honest, LIARS[0], task="source")[0]
    claim = {"composed": tuple(f"{source.id}:{name}" for name in source.card.classes), "format": 2}
    more = tuple(count + 1 for count in honest.card.counts)

    def seen(**card: Any) -> bool | None:
        return is_copy(forged(honest, LIARS[1], task="n", **claim, **card)[0], {source.id: source}, "sketch")

    assert seen(trial="extended version 1 with 5 more images") is True
    assert seen(trial=None) is True
    assert seen(counts=more) is None
