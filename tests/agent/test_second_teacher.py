"""An honest second teacher of a task is accepted; one with other names for the same images is held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from halves import dealt, renamed
from vetted import quarantine_of

from skillmesh.core import Core
from skillmesh.data.folder import TaskImages, open_task
from skillmesh.module import Module
from skillmesh.vetting.quarantine import Verdict

NewAgent = Callable[..., Core]


@pytest.fixture(scope="session")
def shapes(demo_tasks: Path) -> TaskImages:
    return open_task(demo_tasks / "shapes")


@pytest.fixture(scope="session")
def first(new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path) -> Core:
    """A teacher of half of the images of shapes, which knows dice too."""
    agent = new_agent("first")
    agent.learn(dealt(shapes, 2)[0])
    agent.learn(demo_tasks / "dice")
    return agent


def second(new_agent: NewAgent, task: TaskImages) -> Module:
    return new_agent("second").learn(task)[0]


def judged(agent: Core, newcomer: Module, own: bool = True) -> Verdict:
    live = list(agent.bank)
    return quarantine_of(agent, live if own else []).judge(live, [newcomer])


def takes(agent: Core, newcomer: Module) -> int:
    """Return how many of the first teacher's own images the newcomer would answer."""
    trial = quarantine_of(agent, list(agent.bank))._trial
    tried = trial.run([*agent.bank, newcomer])
    assert tried.mapper is not None
    kept = trial._own[agent.bank.find("shapes").id]
    return int((tried.mapper.map(kept.x).task == len(agent.bank)).sum())


@pytest.mark.parametrize(
    "spelled",
    [str, lambda name: f"The_{name.title()}", lambda name: f"{name}es" if name.endswith("s") else f"{name}s"],
    ids=["the same names", "another spelling", "the plural"],
)
@pytest.mark.parametrize("own", [True, False], ids=["own images", "probes"])
def test_an_honest_second_teacher_with_other_spellings_is_accepted(
    spelled: Callable[[str], str], own: bool, new_agent: NewAgent, first: Core, shapes: TaskImages
) -> None:
    newcomer = second(new_agent, renamed(dealt(shapes, 2)[1], spelled, backwards=True))
    assert takes(first, newcomer) >= 3
    assert judged(first, newcomer, own).accepted == (newcomer,)


def test_a_dishonest_second_teacher_with_swapped_labels_is_held(
    new_agent: NewAgent, first: Core, shapes: TaskImages
) -> None:
    """It learned from real images, each class under another class's name."""
    swapped = {name: shapes.classes[i - 1] for i, name in enumerate(shapes.classes)}
    newcomer = second(new_agent, renamed(dealt(shapes, 2)[1], swapped.__getitem__))
    (held,) = judged(first, newcomer).held
    assert "own validation images" in held.reason


def test_swapped_labels_are_held_even_if_errors_prove_nothing(
    new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path
) -> None:
    """According to its card, the first teacher's head is often wrong, which excuses errors of a second."""
    agent = new_agent("first")
    _, lesson = agent.learn(dealt(shapes, 2)[0])
    unsure = replace(lesson, facts=lesson.facts | {"validation_accuracy": 0.3})
    agent.bank.add(agent.sign(unsure)[1])
    agent.learn(demo_tasks / "dice")
    swapped = {name: shapes.classes[i - 1] for i, name in enumerate(shapes.classes)}
    (held,) = judged(agent, second(new_agent, renamed(dealt(shapes, 2)[1], swapped.__getitem__))).held
    assert "names of the agent's own 'shapes' for other classes" in held.reason
    assert judged(agent, second(new_agent, dealt(shapes, 2)[1])).accepted


def test_a_teacher_with_other_names_for_the_same_images_is_held(
    new_agent: NewAgent, first: Core, shapes: TaskImages
) -> None:
    newcomer = second(new_agent, renamed(dealt(shapes, 2)[1], lambda name: f"no {name}"))
    assert judged(first, newcomer).held
