"""Hostile links and parts: many do not outvote one, claims gain little weight, own images decide."""

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
    """An agent with half of the shapes' images, and dice. Many tests share it: none may change it."""
    agent = new_agent("victim")
    agent.learn(shapes[0], views=0)
    agent.learn(demo_tasks / "dice")
    return agent


@pytest.fixture(scope="module")
def honest(new_agent: NewAgent, shapes: list[TaskImages]) -> Module:
    """A module of the other half."""
    return new_agent("second").learn(shapes[1], views=0)[0]


def forged(honest: Module, who: Identity, tensors: Tensors | None = None, **card: Any) -> tuple[Module, bytes]:
    card |= {"teacher": who.name, "teacher_key": who.public_key}
    return Module.create(honest.card.model_copy(update=card), honest.tensors | (tensors or {}), who)


def shifted(classes: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return the names with the first `count` of them shifted by one place."""
    return (*classes[1:count], classes[0], *classes[count:])


# Votes.


def test_seven_teachers_with_the_same_false_names_do_not_outvote_one(victim: Core, honest: Module) -> None:
    own = victim.bank.find("shapes")
    names = shifted(honest.card.classes, 10)
    liars = [forged(honest, who, classes=names)[0] for who in LIARS[:7]]
    assert misfit(liars, victim.prior) is None
    assert "do not look alike" in str(misfit([own, *liars], victim.prior))
    assert disagreement([own, *liars], victim.prior) == pytest.approx(disagreement([own, liars[0]], victim.prior))


def test_two_parts_by_the_same_teacher_are_not_merged(victim: Core, honest: Module) -> None:
    own = victim.bank.find("shapes")
    two = [forged(honest, LIARS[0], task=f"shapes {i}")[0] for i in range(2)]
    assert misfit([own, two[0]], victim.prior) is None
    assert "2 of them are by liar0" in str(misfit([own, *two], victim.prior))
    new_link = link("figures", 1, [own.id, two[0].id, two[1].id], LIARS[0])
    assert len(with_merged_tasks([own, *two], [new_link], victim.prior)) == 3


# Claimed image counts.


def with_extra_class(module: Module) -> Tensors:
    """Return tensors with one more class, a copy of the first."""
    names = ("head.weight", "head.scale", "head.bias", "sketch.mean", "sketch.mean.scale")
    return {name: np.concatenate([module.tensors[name], module.tensors[name][:1]]) for name in names}


def test_an_exaggerated_count_of_an_unshared_class_does_not_dominate_the_scatter(
    victim: Core, honest: Module
) -> None:
    own = victim.bank.find("shapes")
    classes, tensors = (*honest.card.classes, "zzz"), with_extra_class(honest)
    few, many = (
        forged(honest, LIARS[0], tensors, classes=classes, counts=(*honest.card.counts, count))[0]
        for count in (int(MOST_EVIDENCE * max(honest.card.counts)), 9_000_000)
    )
    scatters = [
        SketchAnchor.read(
            merged_task(link("x", 1, [own.id, liar.id], LIARS[0]), [own, liar], victim.prior).tensors
        )
        for liar in (few, many)
    ]
    assert scatters[0].freedom == scatters[1].freedom
    np.testing.assert_allclose(scatters[0].scatter.variances, scatters[1].scatter.variances, rtol=1e-6)


def test_a_claim_of_one_image_does_not_reduce_the_weight_of_two_others(victim: Core, honest: Module) -> None:
    classes = len(honest.card.classes)
    parts = [
        forged(honest, who, counts=(count,) * classes)[0] for who, count in zip(LIARS, (40, 30, 1), strict=False)
    ]
    merged = merged_task(link("x", 1, [part.id for part in parts], LIARS[0]), parts, victim.prior)
    assert SketchAnchor.read(merged.tensors).freedom == (40 + 30 + 1) * classes - classes


def test_the_confidence_of_a_merged_task_does_not_depend_on_the_scale_of_its_heads(
    victim: Core, honest: Module
) -> None:
    """Heads with a tenth of the logits and a tenth of the temperature give the same probabilities."""
    own = victim.bank.find("shapes")
    tenth = np.float32(0.1)
    scaled = []
    for module, who in zip((own, honest), LIARS, strict=False):
        head = Head.read(module.tensors)
        tensors = Head(head.weight * tenth, head.bias * tenth).tensors()
        scaled.append(forged(module, who, tensors, temperature=module.card.temperature / 10)[0])
    x = SketchAnchor.read(own.tensors).means
    logits = []
    for parts in ([own, honest], scaled):
        merged = merged_task(link("x", 1, [part.id for part in parts], LIARS[0]), parts, victim.prior)
        assert merged.card.temperature == 1  # large logits of the closed form would exceed a card's limit
        logits.append(Head.read(merged.tensors).logits(x))
    np.testing.assert_allclose(logits[0], logits[1], atol=0.05 * np.ptp(logits[0]))


# The cost of many links.


def test_the_result_of_a_link_is_remembered(victim: Core, honest: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    own = victim.bank.find("shapes")
    dice, good = victim.bank.find("dice"), forged(honest, LIARS[1])[0]
    links = [link("bad", 1, [own.id, dice.id], LIARS[0]), link("good", 1, [own.id, good.id], LIARS[1])]
    checks = _recorded_checks(monkeypatch)
    remembered = merging.Remembered()
    first = with_merged_tasks([own, good, dice], links, victim.prior, remembered=remembered)
    count = len(checks)
    again = with_merged_tasks(
        [own, good, dice, forged(dice, LIARS[0])[0]], links, victim.prior, remembered=remembered
    )
    assert len(checks) == count
    assert next(m for m in again if m.card.task == "good") is next(m for m in first if m.card.task == "good")
    with_merged_tasks([own, dice], links, victim.prior, remembered=remembered)
    assert list(remembered.values()) == [misfit([own, dice], victim.prior)]


def _recorded_checks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    checks: list[object] = []
    real = merging.misfit
    monkeypatch.setattr(merging, "misfit", lambda parts, prior: checks.append(parts) or real(parts, prior))
    return checks


def test_a_maker_of_too_many_links_that_merge_nothing_is_ignored(
    victim: Core, honest: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, dice = victim.bank.find("shapes"), victim.bank.find("dice")
    other, third = (forged(honest, who)[0] for who in LIARS[1:3])
    flood = [link(f"l{i}", 1, [third.id, dice.id], LIARS[0]) for i in range(MISFITS + 20)]
    honest_link = link("good", 1, [own.id, other.id], LIARS[2])
    checks = _recorded_checks(monkeypatch)
    tasks = with_merged_tasks([own, dice, other, third], [*flood, honest_link], victim.prior)
    assert len(checks) == MISFITS + 1
    assert sorted(task.card.task for task in tasks) == ["dice", "good", "shapes"]


# Trials with an agent's own images.


def without_own_tasks(new_agent: NewAgent, victim: Core, name: str) -> Core:
    """Return an agent with the victim's modules that is not their teacher: it has no images of its own."""
    agent = new_agent(name)
    for module in victim.bank:
        agent.import_bytes(victim.bank.file_of(module))
    return agent


def accuracy(agent: Core, images: list[Path]) -> float:
    return float(
        np.mean([a.best.label == p.parent.name for a, p in zip(agent.answer(images), images, strict=True)])
    )


def test_a_link_that_worsens_answers_to_an_agents_own_images_has_no_effect_there(
    new_agent: NewAgent,
    shapes: list[TaskImages],
    demo_tasks: Path,
    honest: Module,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Seven teachers swap two names of ten: too few to be refused as parts, and they outvote the first teacher."""
    agent = new_agent("own")
    agent.learn(shapes[0], views=0)
    own = agent.bank.find("shapes")
    images = [
        p for p in sorted((demo_tasks / "shapes" / "test").glob("*/*")) if p.parent.name in own.card.classes[:2]
    ]
    liars = [forged(honest, who, classes=shifted(honest.card.classes, 2)) for who in LIARS[:7]]
    for _, data in liars:
        agent.import_bytes(data)
    other = without_own_tasks(new_agent, agent, "other")
    new_link = link("figures", 1, [own.id, *(liar.id for liar, _ in liars)], LIARS[0])
    for each in (agent, other):
        each.ledger.trust(LIARS[0].public_key, "liar0")
        each.ledger.merge([new_link], "liar0")
    assert [merged.card.task for merged in other.merged()] == ["figures"], other.merger.why_not(
        new_link
    )  # it has no images to test with
    assert agent.merged() == []
    assert "has no effect on this agent" in caplog.text
    assert "whose classes look different in other parts are right" in str(agent.merger.why_not(new_link))
    assert accuracy(other, images) < 0.5


def test_status_gives_the_reason_why_a_link_has_no_effect(
    command: Callable[..., Any], new_agent: NewAgent, victim: Core, honest: Module
) -> None:
    agent = without_own_tasks(new_agent, victim, "other")
    liar, data = forged(honest, LIARS[0], classes=shifted(honest.card.classes, 10))
    agent.import_bytes(data)
    agent.ledger.merge([link("x", 1, [agent.bank.find("shapes@victim").id, liar.id], agent.identity)], "itself")
    (fact,) = command("status", "--home", agent.home, "--json").json["links"]
    assert fact["acts"] is False
    assert "do not look alike" in fact["reason"]


# Whose links take effect.


def test_a_node_with_listed_trust_ignores_strangers_even_if_the_stored_setting_is_open(
    new_agent: NewAgent, victim: Core, honest: Module
) -> None:
    agent = without_own_tasks(new_agent, victim, "other")
    second, data = forged(honest, LIARS[0])
    agent.import_bytes(data)
    MeshSettings(trust="open").save(agent.home)
    new_link = link("strangers", 1, [agent.bank.find("shapes@victim").id, second.id], LIARS[0])
    Core(agent.home).ledger.merge([new_link], "liar0")
    assert [merged.card.task for merged in Core(agent.home).merged()] == ["strangers"]
    listed = Core(agent.home)
    settings = MeshSettings.load(agent.home).with_(trust="listed", discovery_port=free_port())
    with Node(listed, settings).running():
        assert listed.merged() == []


def test_a_link_is_refused_before_publication_if_another_takes_precedence(
    command: Callable[..., Any], new_agent: NewAgent, victim: Core, honest: Module
) -> None:
    agent = without_own_tasks(new_agent, victim, "other")
    second, data = forged(honest, LIARS[0])
    agent.import_bytes(data)
    agent.ledger.trust(LIARS[0].public_key, "liar0")
    agent.ledger.merge([link("theirs", 1, [agent.bank.find("shapes@victim").id, second.id], LIARS[0])], "liar0")
    done = command("merge", "--home", agent.home, "shapes@victim", "shapes@liar0", "--name", "mine")
    assert done.code == 1
    assert "already parts of 'theirs', by a link of liar0" in done.err
    assert [known.task for known in Core(agent.home).ledger.view().links.values()] == ["theirs"]
    assert [merged.card.task for merged in agent.merged()] == ["theirs"]


def test_a_merged_task_cannot_be_named_like_a_teachers_module(
    new_agent: NewAgent, victim: Core, honest: Module
) -> None:
    agent = without_own_tasks(new_agent, victim, "other")
    second, data = forged(honest, LIARS[0])
    agent.import_bytes(data)
    first = agent.find("shapes@victim")
    with pytest.raises(AgentError, match="reads like a key, or like TASK@TEACHER; give it another"):
        agent.merge(["shapes@victim", "shapes@liar0"], "shapes@victim")
    assert agent.find("shapes@victim") == first
    assert agent.find("shapes@liar0") == second


def test_tasks_are_merged_at_the_first_request_and_once_for_concurrent_requests(
    new_agent: NewAgent, victim: Core, honest: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = without_own_tasks(new_agent, victim, "other")
    agent.import_bytes(forged(honest, LIARS[0])[1])
    agent.merge(["shapes@victim", "shapes@liar0"])
    agent = Core(agent.home)
    checks = _recorded_checks(monkeypatch)
    assert agent.live == 3
    assert checks == []
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: agent.answering_tasks(), range(8)))
    assert len(checks) == 1
    assert all(tasks is results[0] for tasks in results)


def test_thread_limits_do_not_overlap() -> None:
    """Otherwise the first to leave would lift the other's limit."""
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


# Copies of other tasks.


def copied(source: Module) -> dict[str, Any]:
    """Return the fields of a card by which a module says that its classes are those of another one."""
    return {"composed": tuple(f"{source.id}:{name}" for name in source.card.classes), "format": 2, "views": None}


def test_a_copy_that_would_do_harm_without_its_source_is_held(victim: Core, honest: Module) -> None:
    """A liar sends an honest second module of a task, and a copy of it with other names."""
    own = list(victim.bank)
    source = forged(honest, LIARS[0], task="source")[0]
    claim = copied(source) | {"trial": None}
    copy = forged(honest, LIARS[1], task="n", classes=shifted(honest.card.classes, 10), **claim)[0]
    assert is_copy(copy, {source.id: source}, "sketch")
    trial = quarantine_of(victim, own)
    assert trial.judge(own, [source]).accepted
    (held,) = trial.judge([*own, source], [copy]).held
    assert held.module == copy
    assert "without the tasks that it is composed of" in held.reason
    (held,) = trial.judge(own, [source, copy]).held  # whichever of the two is tested first
    assert held.module == copy


def test_a_copy_is_recognised_by_its_numbers_and_not_by_its_card(honest: Module) -> None:
    source = forged(honest, LIARS[0], task="source")[0]
    claim = copied(source)
    more = tuple(count + 1 for count in honest.card.counts)

    def recognised(**card: Any) -> bool | None:
        return is_copy(forged(honest, LIARS[1], task="n", **claim, **card)[0], {source.id: source}, "sketch")

    assert recognised(trial="extended version 1 with 5 more images") is True
    assert recognised(trial=None) is True
    assert recognised(counts=more) is None
