"""Modules with biases: small, signed like any other, and the same on every agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshes import Mesh, answers, eventually

from skillmesh import Agent
from skillmesh.errors import TensorError
from skillmesh.learning.adaptation import BLOCK, MAX_BYTES, Biases

LITE0, XCEPTION = 21_008, 50_312


@given(channels=st.integers(1, 1000), seed=st.integers(0, 10**6), size=st.floats(1e-3, 100))
def test_biases_are_stored_to_half_a_step(channels: int, seed: int, size: float):
    added = (size * np.random.default_rng(seed).standard_normal(channels)).astype(np.float32)
    found = Biases.read(Biases(added).tensors(), channels).added
    largest = [np.abs(added[start : start + BLOCK]).max() for start in range(0, channels, BLOCK)]
    assert np.all(np.abs(found - added) <= np.repeat(largest, BLOCK)[:channels] / 127 * 0.51)


def test_reading_what_was_read_changes_nothing():
    added = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    once = Biases.read(Biases(added).tensors(), 300)
    assert np.array_equal(Biases.read(once.tensors(), 300).added, once.added)


@pytest.mark.parametrize("channels", [LITE0, XCEPTION])
def test_biases_take_less_than_45_kilobytes_and_the_largest_stay(channels: int):
    added = np.random.default_rng(0).standard_normal(channels).astype(np.float32)
    tensors = Biases(added).tensors()
    assert sum(tensor.nbytes for tensor in tensors.values()) <= MAX_BYTES
    kept = Biases.read(tensors, channels).added != 0
    assert kept[np.argsort(-np.abs(added))[: channels // 2]].all()


def test_channels_without_biases_take_a_bit_each():
    assert sum(tensor.nbytes for tensor in Biases(np.zeros(LITE0, dtype=np.float32)).tensors().values()) < 3_400


def test_values_and_channels_that_do_not_match_are_refused():
    tensors = Biases(np.ones(20, dtype=np.float32)).tensors()
    with pytest.raises(TensorError, match=r"'bias.value' has 19 numbers, expected 20"):
        Biases.read(tensors | {"bias.value": tensors["bias.value"][1:]}, 20)
    with pytest.raises(TensorError, match=r"'bias.value'"):
        Biases.read(tensors | {"bias.mask": np.full(3, 255, dtype=np.uint8)}, 20)  # a bit beyond the last channel


@pytest.fixture(scope="module")
def biased(new_agent: Callable[..., Agent], demo_tasks: Path) -> Agent:
    """An agent that learned dice with biases, and shapes without."""
    agent = new_agent("alice")
    agent.learn(demo_tasks / "dice", biases="always")
    agent.learn(demo_tasks / "shapes")
    return agent


def test_a_module_says_what_was_tried_and_is_little_larger(biased: Agent, taught: Agent):
    module, plain = biased.bank.find("dice"), taught.bank.find("dice")
    assert module.card.biases is not None
    assert module.card.biases[0] == LITE0 >= module.card.biases[1] == len(module.tensors["bias.value"])
    assert module.card.trial.startswith("biases: ")
    assert module.card.trial.endswith("kept")
    assert plain.size < module.size <= plain.size + 45_000
    assert biased.bank.find("shapes").card.trial is None


def test_images_of_a_task_with_biases_are_named_by_the_head_that_sees_them_so(biased: Agent, mixed: list[Path]):
    from skillmesh.data.inputs import as_image

    images = [as_image(path) for path in mixed if path.parts[-4] in ("dice", "shapes")]
    x = biased.backbone.represent(biased.backbone.describe(images).raw, "descriptor")
    module = biased.bank.find("dice")
    found = biased.answer_described(x, images)
    mine = [index for index, answer in enumerate(found) if answer.best.task == "dice"]
    seen = biased.seen_by(module, x[mine], [images[index] for index in mine])
    assert not np.allclose(seen, x[mine])
    labels = biased.head(module).logits(seen).argmax(axis=1)
    assert [found[index].best.label for index in mine] == [module.card.classes[label] for label in labels]
    assert len(mine) >= 20
    assert np.mean([found[index].best.label == Path(found[index].image).parent.name for index in mine]) > 0.5


def test_auto_keeps_no_biases_where_they_gain_nothing(new_agent: Callable[..., Agent], tiny_tasks: Path):
    module, _ = new_agent().learn(tiny_tasks / "shapes", biases="auto")
    assert module.card.biases is None
    assert module.card.trial.endswith("not kept")


def test_a_student_that_never_saw_the_images_answers_as_the_teacher_does(
    biased: Agent, new_agent: Callable[..., Agent], mixed: list[Path], tmp_path: Path
):
    student = new_agent("bob")
    for task in ("dice", "shapes"):
        biased.export(task, tmp_path / f"{task}.skill")
        student.receive(tmp_path / f"{task}.skill")
    assert [a.as_dict() for a in student.answer(mixed)] == [a.as_dict() for a in biased.answer(mixed)]


def test_biases_that_contradict_themselves_are_not_let_in(
    biased: Agent, new_agent: Callable[..., Agent], tmp_path: Path
):
    from skillmesh.module import Module

    module = biased.bank.find("dice")
    short = module.tensors | {"bias.value": module.tensors["bias.value"][1:]}
    card = module.card.model_copy(update={"biases": (LITE0, len(short["bias.value"]))})
    _, data = Module.create(card, short, biased.identity)
    (tmp_path / "bad.skill").write_bytes(data)
    with pytest.raises(TensorError, match=r"as many as 'bias.mask' marks"):
        new_agent().receive(tmp_path / "bad.skill")


def test_a_module_with_biases_travels_over_the_mesh(biased: Agent, mixed: list[Path], tmp_path: Path):
    mesh = Mesh(tmp_path, [biased.home])
    try:
        teacher, student = mesh.node(0), mesh.node(None)
        for node in (teacher, student):
            node.start(wait=False)
        eventually(lambda: teacher.runs() and student.runs() and mesh.converged(tasks=2))
        assert answers(student, mixed[:24]) == answers(teacher, mixed[:24])
    finally:
        mesh.stop()
