"""The Python API as the README and the docstrings show it: small, familiar, and with examples that run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meshes import free_port
from PIL import Image
from running import Ran

import skillmesh
from skillmesh import Adaptation, Agent, Evaluation, LearnResult, WarmStart
from skillmesh.common.config import MeshSettings
from skillmesh.core import Core
from skillmesh.errors import (
    AgentError,
    ArgumentError,
    DataError,
    SkillmeshError,
    TaskExistsError,
    UnknownTaskError,
)
from skillmesh.mesh.calling import call

MOST_MEMBERS = 20


@pytest.fixture
def photos(demo_tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_network: None) -> Iterator[Path]:
    """A working directory with photos of tasks and single images."""
    for name in ("dice", "shapes"):
        shutil.copytree(demo_tasks / name, tmp_path / "photos" / name)
    shutil.copytree(demo_tasks / "dice" / "test", tmp_path / "photos" / "more dice")
    shutil.copy(demo_tasks / "dice" / "test" / "five" / "0.jpg", tmp_path / "basket.jpg")
    for name, shade in {"a": 10, "b": 30, "c": 220, "d": 240}.items():
        Image.new("RGB", (32, 32), (shade, shade, shade)).save(tmp_path / f"{name}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def agent(photos: Path) -> Iterator[Agent]:
    with Agent(photos / "taught") as agent:
        MeshSettings(discovery_port=free_port()).save(agent.home)  # so that agents of other tests are not found
        agent.learn("photos/dice")
        yield agent


def pairs(folder: Path) -> tuple[list[Path], list[str]]:
    """The training images of a task, and their classes."""
    paths = sorted((folder / "train").glob("*/*"))
    return paths, [path.parent.name for path in paths]


# Its size and its examples.


def test_the_agent_has_few_public_members_and_its_help_can_be_read():
    members = [name for name in dir(Agent) if not name.startswith("_")]
    assert len(members) <= MOST_MEMBERS, members
    assert all(inspect.getdoc(getattr(Agent, name)) for name in members)
    assert len(skillmesh.__doc__ or "") < 500


def test_all_public_names_exist_with_a_docstring():
    for name in skillmesh.__all__:
        value = getattr(skillmesh, name)
        assert name.startswith("__") or inspect.getdoc(value), name
    assert set(skillmesh.__all__) <= set(dir(skillmesh))
    with pytest.raises(AttributeError, match="no attribute 'Agnet'"):
        _ = skillmesh.Agnet


EXAMPLES = {
    "skillmesh": None,
    "skillmesh.agent": None,
    "skillmesh.answering.answer": None,
    "skillmesh.backbone.backbone": "Backbone",
    "skillmesh.common.choices": None,
    "skillmesh.errors": None,
    "skillmesh.evaluation.evaluate": "Evaluation",
    "skillmesh.learning.result": None,
    "skillmesh.mesh.node": "Node",
    "skillmesh.module.card": "Card",
    "skillmesh.module.format": "Module",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_in_docstrings_run(name: str, agent: Agent):
    module = importlib.import_module(name)
    names = {"agent": agent, "Agent": Agent, "skillmesh": skillmesh}
    names |= {public: getattr(skillmesh, public) for public in skillmesh.__all__}
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    tests = doctest.DocTestFinder().find(module, name, extraglobs=names)
    ran = [test for test in tests if test.examples]
    assert ran, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=flags)
    for test in ran:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_every_public_class_has_an_example():
    classes = [getattr(skillmesh, name) for name in skillmesh.__all__ if not name.startswith("__")]
    without = [c.__name__ for c in classes if ">>>" not in (inspect.getdoc(c) or "")]
    assert not without


# Messages.


def test_messages_name_arguments_to_programs_and_options_to_commands(agent: Agent, command: Callable[..., Ran]):
    with pytest.raises(TaskExistsError, match=r"learn it again with replace=True$"):
        agent.learn("photos/dice")
    ran = command("learn", "photos/dice", "--home", agent.home)
    assert "learn it again with --replace" in ran.err
    with pytest.raises(TaskExistsError, match=r"learn it again with replace=True$"):
        agent.learn("photos/dice")


# Behaviour.


def test_an_agent_is_created_if_there_is_none_and_otherwise_opened(photos: Path):
    with Agent("new") as agent:
        assert agent.tasks() == []
        result = agent.learn("photos/dice")
    with Agent(photos / "new") as again:
        assert [module.id for module in again.tasks()] == [result.module.id]
        assert again.home == photos / "new"
        assert "1 task" in repr(again)


def test_learning_returns_its_result_in_one_object(agent: Agent):
    result = agent.learn("photos/shapes", tags=["drawn"])
    assert isinstance(result, LearnResult)
    assert result.task == result.module.card.task == "shapes"
    assert result.classes == result.module.card.classes
    assert repr(result).startswith("LearnResult: 'shapes', ")
    assert result.module.card.tags == ("drawn",)
    assert result.accuracy is not None
    assert result.images == sum(result.module.card.counts) + result.module.card.validation_images


def test_images_with_labels_are_learned_however_they_are_given(photos: Path):
    paths, labels = pairs(photos / "photos" / "dice")
    opened = [Image.open(path).convert("RGB") for path in paths]
    arrays = np.stack([np.asarray(image.resize((64, 64))) for image in opened])
    classes = sorted(set(labels))
    numbers = np.array([classes.index(label) for label in labels])
    cold = WarmStart("never")  # otherwise each would start from the task learned before it
    with Agent("many") as agent:
        results = [
            agent.learn(paths, labels, name="paths", warm_start=cold),
            agent.learn(opened, labels, name="pillow", warm_start=cold),
            agent.learn(arrays, numbers, name="arrays", classes=classes, warm_start=cold),
            agent.learn(zip(paths, labels, strict=True), name="generator", warm_start=cold),
            agent.learn(list(zip(paths, labels, strict=True)), name="pairs", warm_start=cold),
        ]
    assert [result.task for result in results] == ["paths", "pillow", "arrays", "generator", "pairs"]
    assert all(result.classes == tuple(classes) for result in results)
    first = results[0].module
    assert all(np.array_equal(first.tensors[name], results[3].module.tensors[name]) for name in first.tensors)


def torch_dataset(folder: Path) -> Any:
    from torch.utils.data import Dataset

    class Photos(Dataset[tuple[Image.Image, str]]):
        def __len__(self) -> int:
            return len(pairs(folder)[0])

        def __getitem__(self, index: int) -> tuple[Image.Image, str]:
            paths, labels = pairs(folder)
            return Image.open(paths[index]).convert("RGB"), labels[index]

    return Photos()


def image_folder(folder: Path) -> Any:
    from skillmesh.backbone.building import import_timm

    import_timm()  # with a CPU build of torch, torchvision can be imported only after this
    from torchvision.datasets import ImageFolder

    return ImageFolder(folder / "train")


def hugging_face(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    paths, labels = pairs(folder)
    names = datasets.ClassLabel(names=sorted(set(labels)))
    features = datasets.Features({"image": datasets.Image(), "label": names})
    columns = {"image": list(map(str, paths)), "label": [names.str2int(label) for label in labels]}
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param(torch_dataset, marks=pytest.mark.torch),
        pytest.param(image_folder, marks=pytest.mark.torch),
        hugging_face,
    ],
)
def test_a_dataset_is_learned_and_then_answered_and_measured(dataset: Any, photos: Path):
    with Agent("many") as agent:
        result = agent.learn(dataset(photos / "photos" / "dice"), name="dice")
        assert result.classes == tuple(sorted(set(pairs(photos / "photos" / "dice")[1])))
        assert result.images == len(pairs(photos / "photos" / "dice")[0])
        assert agent.predict("basket.jpg").label == "five"
        measured = agent.evaluate(dataset(photos / "photos" / "dice"), name="dice")
        assert measured.tasks[0].test_images == result.images


@pytest.mark.torch
@pytest.mark.long
def test_options_come_in_groups(agent: Agent, tmp_path: Path):
    result = agent.learn(
        "photos/shapes", adaptation=Adaptation("always", layers="last-2", epochs=1), warm_start=WarmStart("never")
    )
    assert result.module.card.biases is not None
    with pytest.raises(ArgumentError, match=r"adaptation.mode: found 'sometimes'"):
        agent.learn("photos/shapes", adaptation=Adaptation("sometimes"))  # type: ignore[arg-type]


def test_an_unreadable_image_raises_alone_and_is_reported_among_others(agent: Agent, photos: Path):
    (photos / "broken.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"broken\.png"):
        agent.predict("broken.png")
    good, bad = agent.predict(["basket.jpg", "broken.png"])
    assert good.label == "five"
    assert bad.error is not None
    assert [answer.label for answer in agent.predict_each(["basket.jpg", "basket.jpg"])] == ["five", "five"]


def test_descriptors_are_rows_of_floats(agent: Agent):
    one, two = agent.describe("a.png"), agent.describe(["a.png", "c.png"])
    assert one.shape == (1, 2912)
    assert two.shape == (2, 2912)
    assert two.dtype == np.float32
    assert np.array_equal(one[0], two[0])
    assert not np.array_equal(two[0], two[1])
    with pytest.raises(DataError, match="no descriptor"):
        agent.describe(["a.png", b"nothing"])


def test_numbers_as_labels_are_not_measured_against_names(agent: Agent, photos: Path):
    paths, labels = pairs(photos / "photos" / "dice")
    names = sorted(set(labels))
    numbers = [names.index(label) for label in labels]
    with pytest.raises(ArgumentError, match=r"labels: found numbers \(0, 1.*has names \(five.*classes="):
        agent.evaluate(paths, numbers, name="dice")
    assert agent.evaluate(paths, numbers, name="dice", classes=names).task_given > 0.8


def test_a_result_does_not_keep_the_images_in_memory(agent: Agent, photos: Path):
    paths, labels = pairs(photos / "photos" / "shapes")
    images = np.stack([np.asarray(Image.open(path).convert("RGB").resize((96, 96))) for path in paths])
    gone = weakref.ref(images)
    result = agent.learn(images, labels, name="shapes")
    del images
    assert gone() is None
    assert result.accuracy is not None
    assert isinstance(result.confusions, list)


def test_evaluating_gives_accuracies_and_a_confusion_matrix(agent: Agent, photos: Path):
    result = agent.evaluate("photos/dice")
    images = len(list((photos / "photos" / "dice" / "test").glob("*/*")))
    matrix = result.confusion_matrix()
    assert isinstance(result, Evaluation)
    assert matrix.shape == (6, 7)
    assert matrix.sum() == images
    assert result.final == pytest.approx(matrix[:, :-1].trace() / images)
    assert result.confusion_matrix("dice", task_given=True)[:, -1].sum() == 0
    with pytest.raises(ArgumentError, match="expected one of the tasks that were measured: 'dice'"):
        result.confusion_matrix("rice")
    paths, labels = pairs(photos / "photos" / "dice")
    given = agent.evaluate(paths, labels, name="dice")
    assert given.tasks[0].test_images == len(paths)
    hidden = agent.evaluate("photos/shapes")
    assert hidden.final is None
    assert "'shapes' is not known" in repr(hidden)


def test_a_task_is_extended_by_images_with_labels(agent: Agent, photos: Path):
    paths = sorted((photos / "photos" / "dice" / "test" / "three").iterdir())
    before = agent.tasks()[0].card
    result = agent.extend("dice", paths, ["three"] * len(paths))
    assert result.module.card.version == before.version + 1
    assert sum(result.module.card.counts) > sum(before.counts)


def test_two_agents_share_from_python(agent: Agent):
    there = f"127.0.0.1:{free_port()}"
    with Agent("other", backbone=agent.backbone) as other:
        with (
            agent.share(network="fixed", listen=[there], trust="open"),
            other.share(network="fixed", connect=[there], trust="open") as node,
        ):
            node.sync(seconds=60)
        assert [module.card.task for module in other.tasks()] == ["dice"]
        assert other.predict("basket.jpg").label == "five"


def test_a_module_is_exported_imported_and_forgotten(agent: Agent):
    written = agent.export("dice", "dice.skill")
    with Agent("other", backbone=agent.backbone) as other:
        module = other.import_file(written)
        assert other.predict("basket.jpg").task == "dice"
        assert other.forget("dice").id == module.id
        assert other.tasks() == []
        with pytest.raises(UnknownTaskError):
            other.withdraw("dice")


def test_sharing_that_is_refused_or_has_ended_leaves_the_agent_unchanged(agent: Agent):
    def state() -> tuple[object, ...]:
        return ledger.open_trust, ledger.per_teacher, agent._core.rebuilds_itself

    ledger = agent._core.ledger
    before = state()
    with agent.share(network="machine") as node:
        running = state()
        with (
            pytest.raises(SkillmeshError),
            agent.share(network="machine", trust="open", modules_per_teacher=5),
        ):
            pytest.fail("a second node was started")
        assert state() == running
        assert running[0] is False
        assert node.settings.trust == "listed"
    assert state() == before
    with agent.share(network="machine", trust="open"):
        assert ledger.open_trust
    assert state() == before


def test_a_change_while_sharing_counts_in_the_next_answer(agent: Agent, photos: Path):
    star = next((photos / "photos" / "shapes" / "test").glob("*/*"))
    assert agent.predict(star).task != "shapes"
    with agent.share(network="machine"):
        agent.learn("photos/shapes")
        assert agent.predict(star).task == "shapes"
        assert agent.evaluate("photos/shapes").tasks[0].task == "shapes"
        agent.forget("shapes")
        assert agent.predict(star).best.task == "dice"


def test_a_node_of_a_program_is_not_stopped_by_others(agent: Agent):
    with agent.share(network="machine") as node:
        with pytest.raises(AgentError, match="this node runs inside a program"):
            call(agent.home, "stop")
        assert call(agent.home, "status")["running"]
        assert node.sync(seconds=0.1) is False


def test_a_dataset_is_not_read_if_its_task_cannot_be_stored(agent: Agent):
    read: list[int] = []

    def images() -> Iterator[tuple[str, str]]:
        for index in range(4):
            read.append(index)
            yield "abcd"[index] + ".png", "dark" if index < 2 else "light"

    with pytest.raises(TaskExistsError):
        agent.learn(images(), name="dice")
    with pytest.raises(UnknownTaskError):
        agent.extend("mice", images())
    for options in (
        {"name": "a\nb"},
        {"name": "new", "licence": "x" * 5000},
        {"name": "new", "tags": ["No Tag"]},
        {"name": "new", "adaptation": Adaptation(layers="no such layer")},
        {"name": "new", "one_task": True},
    ):
        with pytest.raises(SkillmeshError):
            agent.learn(images(), **options)
    assert read == []


def test_numbers_do_not_become_classes_of_a_task_that_has_names(agent: Agent, photos: Path):
    paths, labels = pairs(photos / "photos" / "dice")
    classes = sorted(set(labels))
    numbers = [classes.index(label) for label in labels]
    with pytest.raises(ArgumentError, match=r"labels: found numbers \(0, .*say what the numbers stand for"):
        agent.extend("dice", paths, numbers)
    assert agent.extend("dice", paths, numbers, classes=classes).classes == tuple(classes)


def test_validation_images_are_measured_if_a_folder_has_no_test_images(agent: Agent, photos: Path):
    shutil.rmtree(photos / "photos" / "dice" / "test")
    images = len(list((photos / "photos" / "dice" / "val").glob("*/*")))
    assert agent.evaluate("photos/dice").tasks[0].test_images <= images


def test_a_closed_agent_raises_an_error(photos: Path):
    agent = Agent("closed")
    agent.close()
    agent.close()
    uses = (lambda: agent.learn("photos/dice"), lambda: agent.withdraw("dice"), lambda: agent.share().__enter__())
    for use in uses:
        with pytest.raises(SkillmeshError, match=r"is closed; open it again with Agent"):
            use()


def test_images_are_read_as_they_are_needed(agent: Agent):
    read: list[int] = []

    class Many:
        def __iter__(self) -> Iterator[str]:
            for index in range(1000):
                read.append(index)
                yield "basket.jpg"

    assert next(agent.predict_each(Many())).label == "five"
    assert len(read) < 200


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "name: found none; expected a name for the task": ((["a.png", "c.png"], ["x", "y"]), {}),
    "classes: found names for a folder or zip": (("photos/dice",), {"classes": ["one"]}),
    "labels: found 'x'": ((["a.png"], "x"), {"name": "t"}),
    "name: found 5 (int)": ((["a.png", "c.png"], ["x", "y"]), {"name": 5}),
    "note: found 5 (int)": (("photos/dice",), {"note": 5}),
}


@pytest.mark.parametrize("expected", WRONG)
def test_wrong_arguments_are_named(expected: str, agent: Agent):
    args, options = WRONG[expected]
    with pytest.raises(ArgumentError) as refusal:
        agent.learn(*args, **options)
    assert str(refusal.value).startswith(expected)
    assert len(agent.tasks()) == 1


def test_the_public_methods_have_all_options_of_the_core():
    """Otherwise an option that is added only to the core could not be used from Python."""
    for public, core in {"learn": "learn", "extend": "continue_task", "compose": "compose"}.items():
        own = set(inspect.signature(getattr(Agent, public)).parameters)
        assert set(inspect.signature(getattr(Core, core)).parameters) - own <= {"task", "more"}
