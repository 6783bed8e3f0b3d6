"""Naming the classes of a composed task: every sign may be part of a name, and ambiguous words are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from skillmesh.common.choices import Adaptation
from skillmesh.core import Core
from skillmesh.errors import (
    AgentError,
    AmbiguousTaskError,
    SettingsMismatchError,
    TaskExistsError,
    UnknownTaskError,
)
from skillmesh.synergy.composition import Pick, pick


class Bank:
    """A stand-in for a bank that finds tasks by name."""

    def __init__(self, **tasks: list[str]) -> None:
        self.tasks = {name.replace("_colon_", ":"): classes for name, classes in tasks.items()}

    def find(self, task: str):
        if task not in self.tasks:
            raise UnknownTaskError(f"there is no task {task!r} here; known tasks: {', '.join(self.tasks)}")
        return SimpleNamespace(id=task, card=SimpleNamespace(task=task, classes=tuple(self.tasks[task])))


ANIMALS = Bank(
    pets=["cat", "dog"],
    a=["b:c", "x"],
    a_colon_b=["c", "d"],
    signs=["=", "a=b", "a", "*", ":"],
    wild=["cat", "big cat"],
)


def read(*words: str) -> list[tuple[str, str, str]]:
    picked = pick(ANIMALS, [*words, Pick("pets", "dog", "filler")])[:-1]  # a task has at least two classes
    return [(p.module.card.task, p.module.card.classes[p.index], p.name) for p in picked]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("pets:cat", ("pets", "cat", "cat")),
        ("wild:cat", ("wild", "cat", "cat")),
        ("pets:cat=my tiger", ("pets", "cat", "my tiger")),
        ("a:x", ("a", "x", "x")),
        ("a:b:d", ("a:b", "d", "d")),
        (r"a\:b:c", ("a:b", "c", "c")),
        (r"a:b\:c", ("a", "b:c", "b:c")),
        ("a:b:d=e:f=g", ("a:b", "d", "e:f=g")),
        ("signs::", ("signs", ":", ":")),
        ("signs:==is", ("signs", "=", "is")),
        (r"signs:a\=b", ("signs", "a=b", "a=b")),
        (r"signs:\*", ("signs", "*", "*")),
    ],
)
def test_a_word_names_one_class(word: str, expected: tuple[str, str, str]) -> None:
    assert read(word) == [expected]


def test_a_star_names_all_classes() -> None:
    assert [label for _, label, _ in read("a:b:*")] == ["c", "d"]


@pytest.mark.parametrize("word", ["a:b:c", "signs:a=b", "signs:*"])
def test_an_ambiguous_word_is_refused_with_all_readings(word: str) -> None:
    with pytest.raises(AgentError, match=r" or .*backslash") as caught:
        read(word)
    assert "can mean" in str(caught.value)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("birds:crow", "no task 'birds'"),
        ("pets:crow", "'pets' has no class 'crow'; its classes are 'cat', 'dog'"),
        ("pets:crow=x", "'pets' has no class"),
        ("pets:cat=", "'pets' has no class"),
        ("pets", "expected task:class"),
    ],
)
def test_a_word_that_names_no_class_is_refused_with_the_reason(word: str, reason: str) -> None:
    with pytest.raises(AgentError, match=reason):
        read(word)


def test_duplicate_classes_and_duplicate_names_are_refused() -> None:
    with pytest.raises(AgentError, match="'cat' of 'pets' was named twice"):
        pick(ANIMALS, ["pets:*", "pets:cat=tiger"])
    with pytest.raises(AgentError, match=r"two classes would be called 'cat'.*'wild:cat=another name'"):
        pick(ANIMALS, ["pets:cat", "wild:cat"])
    assert len(pick(ANIMALS, ["pets:cat", "wild:cat=lynx"])) == 2


def test_a_single_class_is_refused() -> None:
    with pytest.raises(AgentError, match="1 class was named, expected two"):
        pick(ANIMALS, ["pets:cat"])


@pytest.fixture(scope="module")
def tina(new_agent: Callable[..., Core], skill_files: dict[str, Path]) -> Core:
    agent = new_agent("tom")
    for path in skill_files.values():
        agent.import_file(path)
    return agent


def test_tasks_and_classes_with_signs_are_composed(tina: Core, tiny_tasks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "signs"
    for split in ("train", "val"):
        for old, new in zip(sorted((tiny_tasks / "snowflakes" / split).iterdir()), ("a:b", "c=d"), strict=True):
            shutil.copytree(old, folder / split / new)
    tina.learn(folder, name="snow:flakes")
    dice = tina.bank.find("dice").card.classes[0]
    module, _ = tina.compose("new:one", ["snow:flakes:*", f"dice:{dice}=x=y:z"])
    assert module.card.classes == ("a:b", "c=d", "x=y:z")
    assert [label for _, label in module.card.origins] == ["a:b", "c=d", dice]


def test_an_existing_name_needs_replace(tina: Core) -> None:
    first, _ = tina.compose("twice", ["dice:*", "greek:*"])
    with pytest.raises(TaskExistsError, match=r"another name, or .* replace=True") as refused:
        tina.compose("twice", ["dice:*", "greek:*"])
    assert "--" not in str(refused.value), "a program has no such options"
    second, _ = tina.compose("twice", ["dice:*"], replace=True)
    assert (first.card.version, second.card.version) == (1, 2)
    assert tina.bank.find("twice") == second


@pytest.mark.parametrize("option", [("--epochs", "3"), ("--form", "two")])
def test_training_options_are_refused_without_images(command, tina: Core, option: tuple[str, str]) -> None:
    ran = command("compose", "lone", "dice:*", "greek:*", *option, "--home", tina.home)
    assert ran.code == 1
    assert "--images" in ran.err
    assert "lone" not in {module.card.task for module in Core(tina.home).tasks()}


def test_a_task_of_two_teachers_must_name_the_teacher(
    new_agent: Callable[..., Core], skill_files: dict[str, Path], tiny_tasks: Path
) -> None:
    agent = new_agent("theo")
    agent.import_file(skill_files["dice"])
    agent.learn(tiny_tasks / "dice")
    with pytest.raises(AmbiguousTaskError, match="say which"):
        agent.compose("mine", ["dice:*"])
    module, _ = agent.compose("mine", ["dice@theo:*"])
    assert {source for source, _ in module.card.origins} == {agent.bank.held("dice", agent.identity.public_key).id}


def test_a_bad_name_is_refused(tina: Core) -> None:
    with pytest.raises(ValueError, match=r"the task's name is .*, expected .*; give it another name"):
        tina.compose("a/b", ["dice:*"])


@pytest.mark.torch
def test_adapted_tasks_are_refused_with_the_reason(
    new_agent: Callable[..., Core], skill_files: dict[str, Path], tiny_tasks: Path
) -> None:
    agent = new_agent("ben")
    agent.import_file(skill_files["dice"])
    agent.learn(tiny_tasks / "shapes", adaptation=Adaptation(mode="always", epochs=1))
    with pytest.raises(SettingsMismatchError, match=r"'shapes' cannot be used in another head.*biases"):
        agent.compose("mixed", ["shapes:*", "dice:*"])


@pytest.mark.sklearn
def test_gmmc_anchors_are_refused(new_agent: Callable[..., Core], tiny_tasks: Path) -> None:
    agent = new_agent("gus", anchor="gmmc", clusters=2)
    agent.learn(tiny_tasks / "dice")
    with pytest.raises(SettingsMismatchError, match="gmmc anchors"):
        agent.compose("mixed", ["dice:*"])


@pytest.mark.long
def test_tasks_with_maha_anchors_are_composed(new_agent: Callable[..., Core], demo_tasks: Path) -> None:
    agent = new_agent("mia", anchor="maha")
    for task in ("dice", "shapes"):
        agent.learn(demo_tasks / task)
    agent.compose("mixed", ["dice:six", "shapes:star", "dice:one", "shapes:heart"])
    agent.forget("dice"), agent.forget("shapes")
    paths = [
        p for task in ("dice", "shapes") for c in ("one", "six", "star", "heart")
        for p in sorted((demo_tasks / task / "test").glob(f"{c}/*"))
    ]  # fmt: skip
    answers = agent.answer(list(paths))
    assert sum(a.best.label == p.parent.name for a, p in zip(answers, paths, strict=True)) >= len(paths) - 1
