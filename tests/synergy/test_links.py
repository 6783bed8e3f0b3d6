"""Links: they merge modules of several teachers on every agent that holds them, if the modules fit."""

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
    """Three teachers of shapes with different images; Cyd orders and spells the classes differently.

    Each knows one other task. Many tests share the agents: none may change them.
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
    paths = []
    for name, agent in trio.items():
        for module in agent.bank:
            paths.append(tmp_path / f"{name}-{module.card.task}.skill")
            agent.export(f"{module.card.task}", paths[-1])
    return paths


def student(new_agent: NewAgent, files: Sequence[Path], *trusted: Core, name: str = "stu") -> Core:
    agent = new_agent(name)
    for file in files:
        agent.import_file(file)
    for teacher in trusted:
        agent.ledger.trust(teacher.identity.public_key, teacher.name)
    return agent


def answers_of(agent: Core, images: Sequence[Path]) -> str:
    return json.dumps([answer.shared() for answer in agent.answer(images)])


ALL = ["shapes@ann", "shapes@bob", "shapes@cyd"]


# What a link does.


def test_linked_modules_answer_as_one_task_and_name_all_teachers(
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


def test_agents_that_received_modules_and_links_in_any_order_have_bit_identical_tasks(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core], mixed: list[Path]
) -> None:
    maker = student(new_agent, files)
    pair = maker.merge(ALL[:2], "figures")
    triple = maker.merge(["figures", ALL[2]], "figures")
    assert triple.version == pair.version + 1
    assert len(triple.parts) == 3
    expected = answers_of(maker, mixed)
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
        assert answers_of(agent, mixed) == expected


def test_a_merged_task_gains_imported_parts_and_loses_forgotten_ones(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core]
) -> None:
    maker = student(new_agent, files)
    new_link = maker.merge(ALL)
    agent = student(new_agent, [f for f in files if "ann-shapes" in f.name], maker)
    agent.ledger.merge([new_link], "someone")
    assert agent.merged() == []
    for name, parts in (("bob-shapes", 2), ("cyd-shapes", 3)):
        agent.import_file(next(f for f in files if name in f.name))
        (merged,) = agent.merged()
        assert len(merged.parts) == parts
    agent.forget("shapes@cyd")
    assert len(agent.merged()[0].parts) == 2
    agent.forget("shapes@bob")
    assert agent.merged() == []


def test_a_link_can_be_withdrawn_or_ignored(new_agent: NewAgent, files: list[Path], mixed: list[Path]) -> None:
    maker = student(new_agent, files, name="maker")
    other = student(new_agent, files, maker)
    apart = answers_of(maker, mixed[:8])
    other.ledger.merge([maker.merge(ALL, "figures")], "maker")
    assert other.unmerge("figures").withdrawn is False  # another agent's link ends on this agent only
    assert other.merged() == []
    assert maker.merged()
    ended = maker.unmerge("figures")
    assert ended.withdrawn
    assert maker.merged() == []
    assert answers_of(maker, mixed[:8]) == apart
    with pytest.raises(UnknownTaskError, match="merged tasks: none"):
        maker.unmerge("figures")
    again = maker.merge(ALL, "figures")
    assert again.version == ended.version + 1
    assert maker.merged()


def test_merging_the_same_parts_again_returns_the_existing_link(new_agent: NewAgent, files: list[Path]) -> None:
    """If a `merge` was killed at its end, running it again changes nothing."""
    agent = student(new_agent, files)
    first = agent.merge(ALL, "figures")
    assert agent.merge(ALL[::-1], "figures") == first
    assert agent.merge(["figures"], "figures") == first
    agent.ledger.forget(first.slot)
    assert agent.merge(ALL, "figures") == first
    assert [merged.link for merged in agent.merged()] == [first], "merging restores a link that was put away"
    assert agent.merge(ALL[:2], "figures").version == first.version + 1


def test_tasks_are_merged_once_for_each_change(new_agent: NewAgent, files: list[Path]) -> None:
    agent = student(new_agent, files)
    agent.merge(ALL, "figures")
    first = agent.answering_tasks()
    assert agent.answering_tasks() is first
    agent.unmerge("figures")
    assert agent.answering_tasks() is not first


def test_the_union_of_classes_may_be_larger_than_each_part(
    new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path
) -> None:
    """Each teaches six shapes, of which two are the same: ten in all."""
    agents = [new_agent("ann"), new_agent("bob")]
    halves = dealt(shapes, 2)
    for agent, half, kept in zip(agents, halves, (range(6), range(4, 10)), strict=True):
        agent.learn(only(half, [shapes.classes[i] for i in kept]))
        agent.export("shapes", agent.home / "shapes.skill")
    agents[0].learn(demo_tasks / "dice")
    agents[0].import_file(agents[1].home / "shapes.skill")
    agents[0].merge(["shapes@ann", "shapes@bob"])
    (merged,) = agents[0].merged()
    assert set(merged.card.classes) == set(shapes.classes)
    images = sorted((demo_tasks / "shapes" / "test").glob("*/*"))
    answers = agents[0].answer(images)
    right = [a.best.label == path.parent.name for a, path in zip(answers, images, strict=True)]
    assert np.mean(right) > 0.8


@pytest.mark.long
def test_the_mapper_for_very_many_classes_supports_merged_tasks(
    new_agent: NewAgent, files: list[Path], mixed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That mapper first selects the likeliest tasks, and reads anchors differently."""
    agent = student(new_agent, files)
    agent.merge(ALL)
    expected = [answer.best.task for answer in agent.answer(mixed)]
    monkeypatch.setattr(sketch, "MANY_CLASSES", 8)
    agent.use_nothing()
    tasks = [answer.best.task for answer in agent.answer(mixed)]
    assert np.mean([a == b for a, b in zip(expected, tasks, strict=True)]) > 0.95


# Who may link what.


def test_a_strangers_link_has_no_effect_until_the_stranger_is_trusted(
    new_agent: NewAgent, files: list[Path], mixed: list[Path]
) -> None:
    stranger, agent = student(new_agent, files, name="stranger"), student(new_agent, files)
    before = answers_of(agent, mixed[:8])
    agent.ledger.merge([stranger.merge(ALL, "mine now")], "stranger")
    assert agent.merged() == []
    assert answers_of(agent, mixed[:8]) == before
    agent.ledger.trust(stranger.identity.public_key, "stranger")
    assert [merged.card.task for merged in agent.merged()] == ["mine now"]


def test_tasks_without_a_common_class_are_not_merged_even_by_a_trusted_maker(
    new_agent: NewAgent, files: list[Path]
) -> None:
    agent = student(new_agent, files)
    with pytest.raises(SettingsMismatchError, match="no class in common"):
        agent.merge(["shapes@ann", "dice"])
    ids = [agent.bank.find(task).id for task in ("shapes@ann", "dice")]
    agent.ledger.merge([link("hijacked", 1, ids, agent.identity)], "itself")
    assert agent.merged() == []


def test_tasks_whose_classes_of_the_same_name_look_different_are_not_merged(
    new_agent: NewAgent, files: list[Path], shapes: TaskImages
) -> None:
    """The second teacher's labels are shifted by one class."""
    liar = new_agent("liar")
    shifted = {name: shapes.classes[i - 1] for i, name in enumerate(shapes.classes)}
    liar.learn(renamed(dealt(shapes, 3)[2], shifted.__getitem__))
    liar.export("shapes", liar.home / "shapes.skill")
    agent = student(new_agent, files)
    agent.import_file(liar.home / "shapes.skill")
    with pytest.raises(SettingsMismatchError, match="do not look alike"):
        agent.merge(["shapes@ann", "shapes@liar"])
    assert agent.merge(["shapes@ann", "shapes@bob"])


def test_of_competing_links_the_one_by_a_teacher_of_a_part_wins(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core]
) -> None:
    maker = student(new_agent, files)
    agent = student(new_agent, files, maker, trio["ann"])
    ids = sorted(agent.bank.find(task).id for task in ALL)
    theirs = link("by ann", 1, ids[:2] if agent.bank.find(ALL[0]).id in ids[:2] else ids[1:], trio["ann"].identity)
    agent.ledger.merge([maker.merge(ALL, "by a stranger"), theirs], "someone")
    assert [merged.card.task for merged in agent.merged()] == ["by ann"]


def test_a_claim_of_very_many_images_gains_limited_weight(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core]
) -> None:
    agent = student(new_agent, files)
    ann, bob = (agent.bank.find(task) for task in ALL[:2])
    card = bob.card.model_copy(update={"counts": (2**31,) * len(bob.card.classes)})
    exaggerated = Module.create(card, bob.tensors, trio["bob"].identity)[0]
    new_link = link("figures", 1, [ann.id, exaggerated.id], agent.identity)
    (merged,) = with_merged_tasks([ann, exaggerated], [new_link], agent.prior)
    means, ours, theirs = (
        np.asarray(m.tensors["sketch.mean"]) * m.tensors["sketch.mean.scale"][:, None]
        for m in (merged, ann, exaggerated)
    )
    order = [m.card.classes.index(merged.card.classes[0]) for m in (ann, exaggerated)]
    own = np.linalg.norm(means[0] - ours[order[0]])
    other = np.linalg.norm(means[0] - theirs[order[1]])
    assert own / other == pytest.approx(MOST_EVIDENCE, rel=0.01)


def test_adapted_modules_are_refused_with_the_reason(
    new_agent: NewAgent, files: list[Path], trio: dict[str, Core]
) -> None:
    agent = student(new_agent, files)
    ann, bob = (agent.bank.find(task) for task in ALL[:2])
    adapted = replace(bob, card=bob.card.model_copy(update={"pattern": 16}))
    assert "reprogramming" in str(misfit([ann, adapted], agent.prior))


# The signed record.


def test_a_changed_link_is_refused(trio: dict[str, Core]) -> None:
    ann = trio["ann"].identity
    signed = link("figures", 1, ["a" * 64, "b" * 64], ann)
    assert decode(signed.encode()) == signed
    for changed in (b'"figures"', b'"figures2"'), (b'"link"', b'"withdrawal"'), (b"aaaa", b"cccc"):
        with pytest.raises(NoticeError):
            decode(signed.encode().replace(*changed, 1))


@pytest.mark.parametrize("parts", [["a" * 64], [f"{i:064x}" for i in range(17)], ["no id", "b" * 64]])
def test_a_link_of_one_part_of_too_many_or_of_invalid_ids_is_refused(
    parts: list[str], trio: dict[str, Core]
) -> None:
    with pytest.raises(NoticeError, match="correct it"):
        link("figures", 1, parts, trio["ann"].identity)


def test_the_latest_version_of_a_link_is_kept_in_any_order(tmp_path: Path, trio: dict[str, Core]) -> None:
    ann = trio["ann"].identity
    ids = ["a" * 64, "b" * 64]
    notices = [link("figures", version, parts, ann) for version, parts in ((1, ids), (2, ids), (2, ()), (3, ids))]
    for number, order in enumerate(itertools.permutations(notices)):
        ledger = Ledger(tmp_path / f"{number}.sqlite", ann.public_key)
        for notice in order:
            ledger.merge([notice], "someone")
        assert ledger.view().links == {Slot(ann.public_key, LINK + "figures"): notices[3]}
    assert notices[2].rank > notices[1].rank


def test_a_link_has_its_own_slot_and_does_not_change_the_root_hash(
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


def test_tasks_are_merged_listed_shown_and_separated_by_command(
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


def test_a_merged_task_can_be_used_like_a_module(new_agent: NewAgent, files: list[Path]) -> None:
    agent = student(new_agent, files)
    agent.merge(ALL)
    (merged,) = agent.merged()
    assert isinstance(merged, MergedTask)
    assert agent.find("shapes") is merged
    assert merged.card.counts == (8,) * 10
    assert set(merged.card.classes) == set(agent.bank.find("shapes@ann").card.classes)  # the most common spelling
