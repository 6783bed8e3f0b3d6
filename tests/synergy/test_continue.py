"""Extending a task by images or classes: old classes are not forgotten although their images are gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from halves import dealt, only, renamed

from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.core import Core
from skillmesh.data.folder import TaskImages, open_task
from skillmesh.errors import DataError, SettingsMismatchError, UnknownTaskError
from skillmesh.module.notice import Announcement
from skillmesh.store.home import VALIDATION, load_validation

pytestmark = pytest.mark.long

NewAgent = Callable[..., Core]


@pytest.fixture(scope="session")
def shapes(demo_tasks: Path) -> TaskImages:
    return open_task(demo_tasks / "shapes")


@pytest.fixture(scope="session")
def images(demo_tasks: Path) -> list[Path]:
    return sorted((demo_tasks / "shapes" / "test").glob("*/*"))


def right(agent: Core, images: list[Path], classes: tuple[str, ...] = ()) -> float:
    """Return the share of images, of these classes or all, whose class is right."""
    chosen = [path for path in images if not classes or path.parent.name in classes]
    answers = agent.answer(chosen)
    return float(np.mean([a.best.label == path.parent.name for a, path in zip(answers, chosen, strict=True)]))


def whole(new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path) -> Core:
    agent = new_agent("whole")
    agent.learn(shapes)
    agent.learn(demo_tasks / "dice")
    return agent


def test_more_images_make_a_new_version_about_as_good_as_learning_all_at_once(
    new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path, images: list[Path]
) -> None:
    agent, halves = new_agent("ann"), dealt(shapes, 2)
    agent.learn(halves[0])
    agent.learn(demo_tasks / "dice")
    before = right(agent, images)
    module, lesson = agent.continue_task("shapes", halves[1])
    assert module.card.version == 2
    assert module.card.counts == (8,) * 10
    assert lesson.images == 80 + len(lesson.validation)
    assert agent.bank.held("shapes", agent.identity.public_key) == module
    after = right(agent, images)
    assert after >= before
    assert after > right(whole(new_agent, shapes, demo_tasks), images) - 0.05
    kept = load_validation(agent.home / VALIDATION, [module])[0]
    assert kept.labels is not None
    assert len(kept.labels) == module.card.validation_images == 30


def test_new_classes_are_learned_and_old_ones_are_not_forgotten(
    new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path, images: list[Path]
) -> None:
    agent, (old, new) = new_agent("ann"), (shapes.classes[:5], shapes.classes[5:])
    agent.learn(only(shapes, old))
    agent.learn(demo_tasks / "dice")
    module, _ = agent.continue_task("shapes", only(shapes, new))
    assert module.card.classes == shapes.classes
    reference = whole(new_agent, shapes, demo_tasks)
    for classes in (old, new):
        assert right(agent, images, classes) > right(reference, images, classes) - 0.1


def test_a_single_new_class_is_enough_and_old_names_stay(
    new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path
) -> None:
    agent = new_agent("ann")
    agent.learn(only(shapes, shapes.classes[:4]))
    module, _ = agent.continue_task("shapes", only(shapes, shapes.classes[4:5]))
    assert module.card.classes == shapes.classes[:5]
    spelled = renamed(only(shapes, shapes.classes[3:4]), lambda name: name.upper())
    again, _ = agent.continue_task("shapes", spelled)
    assert again.card.classes == shapes.classes[:5]
    assert again.card.version == 3
    assert again.card.counts[3] == 2 * module.card.counts[3]


def test_the_new_anchor_equals_that_of_all_images_except_for_rounding(
    new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path
) -> None:
    agent, halves = new_agent("ann"), dealt(shapes, 2)
    agent.learn(halves[0], views=0)  # new images are learned from as they are
    module, _ = agent.continue_task("shapes", halves[1])
    extended = SketchAnchor.read(module.tensors)
    expected = SketchAnchor.read(new_agent("all").learn(shapes, views=0)[0].tensors)
    assert extended.freedom == expected.freedom
    assert np.abs(extended.means - expected.means).max() < 0.05
    assert extended.scatter.variances.sum() == pytest.approx(expected.scatter.variances.sum(), rel=0.03)


def test_only_own_tasks_with_sketch_anchors_can_be_extended(
    new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path, tmp_path: Path
) -> None:
    ann, bob = new_agent("ann"), new_agent("bob")
    ann.learn(shapes)
    ann.export("shapes", tmp_path / "shapes.skill")
    bob.import_file(tmp_path / "shapes.skill")
    with pytest.raises(UnknownTaskError, match=r"use agent\.merge"):
        bob.continue_task("shapes", shapes)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no class folders"):
        ann.continue_task("shapes", tmp_path / "empty")
    other = new_agent("other", anchor="maha")
    other.learn(only(shapes, shapes.classes[:3]))
    with pytest.raises(SettingsMismatchError, match="expected sketch"):
        other.continue_task("shapes", shapes)


def test_the_new_version_is_announced_and_replaces_the_old_one_on_other_agents(
    new_agent: NewAgent, shapes: TaskImages, tmp_path: Path
) -> None:
    ann, bob = new_agent("ann"), new_agent("bob")
    for folder in dealt(shapes, 2):
        if len(ann.bank):
            ann.continue_task("shapes", folder)
        else:
            ann.learn(folder, licence="CC0", tags=["drawn"])
        ann.export("shapes", tmp_path / "shapes.skill")
        bob.import_file(tmp_path / "shapes.skill")
    (module,) = bob.bank
    assert (module.card.version, module.card.licence, module.card.tags) == (2, "CC0", ("drawn",))
    (notice,) = ann.ledger.view().known.values()
    assert isinstance(notice, Announcement)
    assert (notice.version, notice.id) == (2, module.id)


def test_a_task_is_extended_by_command(command: Callable[..., Any], new_agent: NewAgent, demo_tasks: Path) -> None:
    agent = new_agent("ann")
    agent.learn(demo_tasks / "dice")
    done = command("learn", demo_tasks / "latin", "--continue", "dice", "--home", agent.home)
    assert done.code == 0, done.err
    assert "extended version 1" in done.out
    failed = command("learn", demo_tasks / "latin", "--continue", "dice", "--replace", "--home", agent.home)
    assert failed.code == 1
    assert "--continue keeps" in failed.err


@pytest.mark.parametrize(
    "option",
    [
        ("--name", "cubes"),
        ("--adapt", "always"),
        ("--adaptation", "head2toe"),
        ("--layers", "last-half"),
        ("--epochs", "1"),
        ("--mirrored",),
        ("--from-plain-head",),
        ("--warm-start", "never"),
        ("--warm-form", "two"),
    ],
)
def test_options_that_do_not_apply_to_continue_are_refused(
    command: Callable[..., Any], tmp_path: Path, demo_tasks: Path, option: tuple[str, ...]
) -> None:
    failed = command("learn", demo_tasks / "latin", "--continue", "dice", *option, "--home", tmp_path)
    assert failed.code == 1
    assert f"leave out {option[0]}" in failed.err


def test_an_extended_composed_task_stays_composed_and_refuses_new_classes(
    new_agent: NewAgent, demo_tasks: Path
) -> None:
    agent = new_agent("ann")
    shapes = open_task(demo_tasks / "shapes")
    first, second = dealt(shapes, 2)
    agent.learn(first)
    composed, _ = agent.compose("mine", [f"shapes:{name}" for name in shapes.classes[:3]])
    continued, _ = agent.continue_task("mine", only(second, shapes.classes[:3]))
    assert continued.card.composed == composed.card.composed
    with pytest.raises(DataError, match="was composed of classes of other tasks"):
        agent.continue_task("mine", only(second, shapes.classes[:4]))
