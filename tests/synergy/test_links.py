"""Two teachers, one task: a link joins their modules wherever both are, and nothing that does not fit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from halves import dealt, only, renamed

from skillmesh.anchors import sketch
from skillmesh.core import Core
from skillmesh.data.folder import TaskImages, open_task
from skillmesh.errors import NoticeError, SettingsMismatchError, UnknownTaskError
from skillmesh.module import Module
from skillmesh.module.notice import LINK, Link, MergedTask, Slot, decode, link
from skillmesh.module.teachers import claimed
from skillmesh.store.ledger import Ledger
from skillmesh.synergy.merging import MOST_EVIDENCE, misfit, with_merged_tasks

NewAgent = Callable[..., Core]


@pytest.fixture(scope="session")
def shapes(demo_tasks: Path) -> TaskImages:
    return open_task(demo_tasks / "shapes")


@pytest.fixture(scope="session")
def trio(new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path) -> dict[str, Core]:
    """Three teachers of shapes with images of their own; Cyd orders and spells the classes another way.

    Each knows a task besides. Many tests share them: none may change them.
    """
    agents = {name: new_agent(name) for name in ("ann", "bob", "cyd")}
    parts = dealt(shapes, 3)
    agents["ann"].learn(parts[0])
    agents["bob"].learn(parts[1])
    agents["cyd"].learn(renamed(parts[2], str.upper, backwards=True))
    for agent, task in zip(agents.values(), ("dice", "latin", "greek"), strict=True):
        agent.learn(demo_tasks / task)
    return agents


@pytest.fixture
def files(trio: dict[str, Core], tmp_path: Path) -> list[Path]:
    """All six modules as files."""
    found = []
    for name, agent in trio.items():
        for module in agent.bank:
            found.append(tmp_path / f"{name}-{module.card.task}.skill")
            agent.export(f"{module.card.task}", found[-1])
    return found


def student(new_agent: NewAgent, files: Sequence[Path], *trusted: Core, name: str = "stu") -> Core:
    agent = new_agent(name)
    for file in files:
        agent.import_file(file)
    for teacher in trusted:
        agent.ledger.trust(teacher.identity.public_key, teacher.name)
    return agent


def told(agent: Core, images: Sequence[Path]) -> str:
    return json.dumps([answer.shared() for answer in agent.answer(images)])


ALL = ["shapes@ann", "shapes@bob", "shapes@cyd"]


# What a link does.


def test_parts_answer_as_one_task_and_name_all_teachers(
    new_agent: NewAgent, files: list[Path], mixed: list[Path]
) -> None:
    agent = student(new_agent, files)
    apart = agent.answer(mixed)
    agent.merge(ALL, "figures")
    together = agent.answer(mixed)
    of_shapes = [i for i, path in enumerate(mixed) if path.parts[-4] == "shapes"]
    assert {apart[i].best.teacher for i in of_shapes} == {
        claimed(module.card) for module in agent.bank if module.card.task == "shapes"
    }
    assert {(together[i].best.task, together[i].best.teacher) for i in of_shapes} == {
        ("figures", " + ".join(sorted({apart[i].best.teacher for i in of_shapes})))
    }
    assert [a.best.task for i, a in enumerate(together) if i not in of_shapes] == [
        a.best.task for i, a in enumerate(apart) if i not in of_shapes
    ]

    def right(answers: Any) -> int:
        return sum(answers[i].best.label.lower() == mixed[i].parent.name for i in of_shapes)

    assert right(together) >= right(apart)


def test_three_agents_that_heard_things_in_any_order_have_bit_identical_tasks(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core], mixed: list[Path]
) -> None:
    maker = student(new_agent, files)
    pair = maker.merge(ALL[:2], "figures")
    triple = maker.merge(["figures", ALL[2]], "figures")
    assert triple.version == pair.version + 1
    assert len(triple.parts) == 3
    said = told(maker, mixed)
    x = np.concatenate([maker.calibration.background, np.zeros((1, maker.calibration.background.shape[1]), "f4")])
    scores = maker.mapper()[1].map(x)
    orders = [files[::-1], files[3:] + files[:3], [files[i] for i in (4, 0, 2, 5, 1, 3)]]
    for order, links in zip(orders, itertools.cycle(itertools.permutations([pair, triple])), strict=False):
        agent = new_agent("other")
        agent.ledger.trust(maker.identity.public_key, maker.name)
        agent.ledger.merge(links[:1], "someone")
        for file in order:
            Core(agent.home).import_file(file)
        agent = Core(agent.home)
        agent.ledger.merge(links, "someone")
        assert np.array_equal(agent.mapper()[1]._scorer.score(x).task, maker.mapper()[1]._scorer.score(x).task)
        assert np.array_equal(agent.mapper()[1].map(x).posterior, scores.posterior)
        assert told(agent, mixed) == said


def test_a_part_that_comes_later_joins_and_one_that_goes_leaves(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core]
) -> None:
    maker = student(new_agent, files)
    made = maker.merge(ALL)
    agent = student(new_agent, [f for f in files if "ann-shapes" in f.name], maker)
    agent.ledger.merge([made], "someone")
    assert agent.merged() == []
    for name, parts in (("bob-shapes", 2), ("cyd-shapes", 3)):
        agent.import_file(next(f for f in files if name in f.name))
        (joint,) = agent.merged()
        assert len(joint.parts) == parts
    agent.forget("shapes@cyd")
    assert len(agent.merged()[0].parts) == 2
    agent.forget("shapes@bob")
    assert agent.merged() == []


def test_a_link_can_be_withdrawn_or_put_away(new_agent: NewAgent, files: list[Path], mixed: list[Path]) -> None:
    maker = student(new_agent, files, name="maker")
    other = student(new_agent, files, maker)
    apart = told(maker, mixed[:8])
    other.ledger.merge([maker.merge(ALL, "figures")], "maker")
    assert other.unmerge("figures").withdrawn is False  # another's: only here
    assert other.merged() == []
    assert maker.merged()
    ended = maker.unmerge("figures")
    assert ended.withdrawn
    assert maker.merged() == []
    assert told(maker, mixed[:8]) == apart
    with pytest.raises(UnknownTaskError, match="merged tasks: none"):
        maker.unmerge("figures")
    again = maker.merge(ALL, "figures")
    assert again.version == ended.version + 1
    assert maker.merged()


def test_what_was_said_already_is_not_said_again(new_agent: NewAgent, files: list[Path]) -> None:
    """A `merge` that was killed after its work and is run again leaves what the first left."""
    agent = student(new_agent, files)
    made = agent.merge(ALL, "figures")
    assert agent.merge(ALL[::-1], "figures") == made
    assert agent.merge(["figures"], "figures") == made
    agent.ledger.forget(made.slot)
    assert agent.merge(ALL, "figures") == made
    assert [joint.link for joint in agent.merged()] == [made], "merging brings back what its user had put away"
    assert agent.merge(ALL[:2], "figures").version == made.version + 1


def test_tasks_are_joined_once_for_each_change(new_agent: NewAgent, files: list[Path]) -> None:
    agent = student(new_agent, files)
    agent.merge(ALL, "figures")
    first = agent.answering_tasks()
    assert agent.answering_tasks() is first
    agent.unmerge("figures")
    assert agent.answering_tasks() is not first


def test_the_union_of_classes_may_be_larger_than_each_part(
    new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path
) -> None:
    """One teaches six shapes, the other six of which two are the same: ten in all."""
    agents = [new_agent("ann"), new_agent("bob")]
    halves = dealt(shapes, 2)
    for agent, half, kept in zip(agents, halves, (range(6), range(4, 10)), strict=True):
        agent.learn(only(half, [shapes.classes[i] for i in kept]))
        agent.export("shapes", agent.home / "shapes.skill")
    agents[0].learn(demo_tasks / "dice")
    agents[0].import_file(agents[1].home / "shapes.skill")
    agents[0].merge(["shapes@ann", "shapes@bob"])
    (joint,) = agents[0].merged()
    assert set(joint.card.classes) == set(shapes.classes)
    images = sorted((demo_tasks / "shapes" / "test").glob("*/*"))
    answers = agents[0].answer(images)
    right = [a.best.label == path.parent.name for a, path in zip(answers, images, strict=True)]
    assert np.mean(right) > 0.8


@pytest.mark.long
def test_a_bank_of_very_many_classes_has_merged_tasks_too(
    new_agent: NewAgent, files: list[Path], mixed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mapper finds the likeliest tasks first, and reads anchors in another way."""
    agent = student(new_agent, files)
    agent.merge(ALL)
    expected = [answer.best.task for answer in agent.answer(mixed)]
    monkeypatch.setattr(sketch, "MANY_CLASSES", 8)
    agent.use_nothing()
    found = [answer.best.task for answer in agent.answer(mixed)]
    assert np.mean([a == b for a, b in zip(expected, found, strict=True)]) > 0.95


# Who may link what.


def test_a_strangers_link_does_nothing_until_it_is_trusted(
    new_agent: NewAgent, files: list[Path], mixed: list[Path]
) -> None:
    stranger, agent = student(new_agent, files, name="stranger"), student(new_agent, files)
    before = told(agent, mixed[:8])
    agent.ledger.merge([stranger.merge(ALL, "mine now")], "stranger")
    assert agent.merged() == []
    assert told(agent, mixed[:8]) == before
    agent.ledger.trust(stranger.identity.public_key, "stranger")
    assert [joint.card.task for joint in agent.merged()] == ["mine now"]


def test_tasks_without_a_common_class_are_not_joined_even_by_the_trusted(
    new_agent: NewAgent, files: list[Path]
) -> None:
    agent = student(new_agent, files)
    with pytest.raises(SettingsMismatchError, match="no class in common"):
        agent.merge(["shapes@ann", "dice"])
    ids = [agent.bank.find(task).id for task in ("shapes@ann", "dice")]
    agent.ledger.merge([link("hijacked", 1, ids, agent.identity)], "itself")
    assert agent.merged() == []


def test_classes_of_one_name_that_look_unlike_are_not_joined(
    new_agent: NewAgent, files: list[Path], shapes: TaskImages
) -> None:
    """A second teacher whose labels are swapped, however it came into the bank."""
    liar = new_agent("liar")
    turned = {name: shapes.classes[i - 1] for i, name in enumerate(shapes.classes)}
    liar.learn(renamed(dealt(shapes, 3)[2], turned.__getitem__))
    liar.export("shapes", liar.home / "shapes.skill")
    agent = student(new_agent, files)
    agent.import_file(liar.home / "shapes.skill")
    with pytest.raises(SettingsMismatchError, match="do not look alike"):
        agent.merge(["shapes@ann", "shapes@liar"])
    assert agent.merge(["shapes@ann", "shapes@bob"])


def test_of_links_that_want_the_same_the_one_by_a_teacher_of_it_stands(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core]
) -> None:
    maker = student(new_agent, files)
    agent = student(new_agent, files, maker, trio["ann"])
    ids = sorted(agent.bank.find(task).id for task in ALL)
    theirs = link("by ann", 1, ids[:2] if agent.bank.find(ALL[0]).id in ids[:2] else ids[1:], trio["ann"].identity)
    agent.ledger.merge([maker.merge(ALL, "by a stranger"), theirs], "someone")
    assert [joint.card.task for joint in agent.merged()] == ["by ann"]


def test_no_teacher_has_all_the_say_by_claiming_many_images(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core]
) -> None:
    agent = student(new_agent, files)
    ann, bob = (agent.bank.find(task) for task in ALL[:2])
    card = bob.card.model_copy(update={"counts": (2**31,) * len(bob.card.classes)})
    boaster = Module.create(card, bob.tensors, trio["bob"].identity)[0]
    made = link("figures", 1, [ann.id, boaster.id], agent.identity)
    (joint,) = with_merged_tasks([ann, boaster], [made], agent.prior)
    means, ours, theirs = (
        np.asarray(m.tensors["sketch.mean"]) * m.tensors["sketch.mean.scale"][:, None]
        for m in (joint, ann, boaster)
    )
    order = [m.card.classes.index(joint.card.classes[0]) for m in (ann, boaster)]
    own = np.linalg.norm(means[0] - ours[order[0]])
    other = np.linalg.norm(means[0] - theirs[order[1]])
    assert own / other == pytest.approx(MOST_EVIDENCE, rel=0.01)


def test_what_adapts_the_backbone_is_refused_with_the_reason(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core]
) -> None:
    agent = student(new_agent, files)
    ann, bob = (agent.bank.find(task) for task in ALL[:2])
    adapted = replace(bob, card=bob.card.model_copy(update={"pattern": 16}))
    assert "reprogramming" in str(misfit([ann, adapted], agent.prior))


# The record itself.


def test_a_link_is_signed_and_cannot_stand_for_anything_else(trio: dict[str, Core]) -> None:
    ann = trio["ann"].identity
    made = link("figures", 1, ["a" * 64, "b" * 64], ann)
    assert decode(made.encode()) == made
    for changed in (b'"figures"', b'"figures2"'), (b'"link"', b'"withdrawal"'), (b"aaaa", b"cccc"):
        with pytest.raises(NoticeError):
            decode(made.encode().replace(*changed, 1))


@pytest.mark.parametrize("parts", [["a" * 64], [f"{i:064x}" for i in range(17)], ["no id", "b" * 64]])
def test_a_link_has_no_parts_or_two_to_sixteen(parts: list[str], trio: dict[str, Core]) -> None:
    with pytest.raises(NoticeError, match="correct it"):
        link("figures", 1, parts, trio["ann"].identity)


def test_of_two_links_the_later_stands_whatever_came_first(tmp_path: Path, trio: dict[str, Core]) -> None:
    ann = trio["ann"].identity
    ids = ["a" * 64, "b" * 64]
    notices = [link("figures", version, parts, ann) for version, parts in ((1, ids), (2, ids), (2, ()), (3, ids))]
    for number, order in enumerate(itertools.permutations(notices)):
        ledger = Ledger(tmp_path / f"{number}.sqlite", ann.public_key)
        for notice in order:
            ledger.merge([notice], "someone")
        assert ledger.view().links == {Slot(ann.public_key, LINK + "figures"): notices[3]}
    assert notices[2].rank > notices[1].rank


def test_a_link_and_a_task_of_one_name_share_no_slot_and_old_releases_see_the_same_root(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core]
) -> None:
    agent = student(new_agent, files)
    root = agent.ledger.view().root
    agent.merge(ALL, "shapes")
    view = agent.ledger.view()
    assert view.root == root
    assert len(view.links) == 1
    assert view.known == {}
    assert isinstance(view.at(Slot(agent.identity.public_key, LINK + "shapes")), Link)
    assert view.at(Slot(agent.identity.public_key, "shapes")) is None


# Commands.


def test_merge_tasks_and_show_by_command(
    command: Callable[..., Any], new_agent: NewAgent, files: list[Path]
) -> None:
    agent = student(new_agent, files)
    done = command("merge", "--home", agent.home, *ALL[:2], "--name", "figures")
    assert done.code == 0, done.err
    ann, bob = (claimed(agent.find(task).card) for task in ALL[:2])
    assert f"merged 'figures': 2 modules by {ann} + {bob}, 10 classes" in done.out
    listed = command("tasks", "--home", agent.home).out
    assert "(merged)" in listed
    (facts,) = command("tasks", "--home", agent.home, "--json").json["merged"]
    assert facts["teachers"] == [ann, bob]
    (listed,) = command("status", "--home", agent.home, "--json").json["links"]
    assert listed == {"task": "figures", "maker": "stu", "parts": 2, "acts": True}
    shown = command("show", "--home", agent.home, "figures", "--json").json
    assert shown["parts"].keys() == {f"shapes@{ann}", f"shapes@{bob}"}
    assert "no longer merged on any agent" in command("merge", "--home", agent.home, "--undo", "figures").out
    failed = command("merge", "--home", agent.home, "shapes@ann")
    assert failed.code == 1
    assert "expected two or more" in failed.err


def test_a_joint_task_is_a_module_to_all_who_read_it(new_agent: NewAgent, files: list[Path]) -> None:
    agent = student(new_agent, files)
    agent.merge(ALL)
    (joint,) = agent.merged()
    assert isinstance(joint, MergedTask)
    assert agent.find("shapes") is joint
    assert joint.card.counts == (8,) * 10
    assert set(joint.card.classes) == set(agent.bank.find("shapes@ann").card.classes)  # as most of them spell it
