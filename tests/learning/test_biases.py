"""Modules with biases: small, signed like any other, and the same on every agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshes import Mesh, answers, eventually
from PIL import Image

from skillmesh.answering.answering import Mapper
from skillmesh.common.choices import Adaptation
from skillmesh.core import Core
from skillmesh.data.inputs import as_image
from skillmesh.errors import BackboneError, DataError, SkillmeshError, TensorError
from skillmesh.learning import trial
from skillmesh.learning.adaptation import BLOCK, MAX_BYTES, Biases
from skillmesh.learning.head import Fit, Head, fit_head
from skillmesh.learning.trial import _better, _largest

pytestmark = pytest.mark.long

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
def biased(new_agent: Callable[..., Core], demo_tasks: Path) -> Core:
    """An agent that learned dice with biases, and shapes without."""
    agent = new_agent("alice")
    agent.learn(demo_tasks / "dice", adaptation=Adaptation(mode="always"))
    agent.learn(demo_tasks / "shapes")
    return agent


def test_a_module_says_what_was_tried_and_is_little_larger(biased: Core, taught: Core):
    module, plain = biased.bank.find("dice"), taught.bank.find("dice")
    assert module.card.biases is not None
    assert module.card.biases[0] == LITE0 >= module.card.biases[1] == len(module.tensors["bias.value"])
    assert module.card.trial.startswith("biases: ")
    assert module.card.trial.endswith("kept")
    assert plain.size < module.size <= plain.size + 45_000
    assert biased.bank.find("shapes").card.trial is None


def test_biases_that_validation_does_not_miss_are_left_out_and_others_are_where_they_were_asked_for(
    new_agent: Callable[..., Core], demo_tasks: Path
):
    agent = new_agent()
    module, lesson = agent.learn(
        demo_tasks / "dice", adaptation=Adaptation(mode="always", layers="blocks.6,conv_head")
    )
    biases = Biases.read(module.tensors, LITE0)
    start = next(place.start for place in agent.backbone.network.places if place.path.startswith("blocks.6"))
    assert biases.added.any()
    assert not biases.added[:start].any()
    assert lesson.costs.spent["backward"] < 0.2 * lesson.costs.spent["forward"]
    values = np.zeros(LITE0, dtype=np.float32)
    values[:80] = np.arange(80)
    assert np.flatnonzero(_largest(values, 0.125)).tolist() == list(range(70, 80))


def test_as_many_biases_are_left_out_as_validation_does_not_miss(
    new_agent: Callable[..., Core], tiny_tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = []
    for missed in (-1.0, 1e9):  # it misses the least; it misses nothing
        monkeypatch.setattr(trial, "MISSED", missed)
        module, _ = new_agent().learn(tiny_tasks / "shapes", adaptation=Adaptation(mode="always", layers="last-2"))
        kept.append(module.card.biases[1])
    assert kept[0] > 800
    assert kept[1] == pytest.approx(kept[0] / 8, rel=0.1)


@pytest.mark.parametrize("better", [True, False])
def test_auto_keeps_what_validation_calls_better_and_else_the_module_is_the_plain_one(
    new_agent: Callable[..., Core], tiny_tasks: Path, monkeypatch: pytest.MonkeyPatch, better: bool
):
    monkeypatch.setattr(trial, "_better", lambda *_: better)
    monkeypatch.setattr("skillmesh.learning.lesson.fit_head", lambda *args: replace(fit_head(*args), accuracy=0.5))
    agent = new_agent()
    plain, _ = agent.learn(tiny_tasks / "shapes")
    tried, _ = agent.learn(
        tiny_tasks / "shapes", adaptation=Adaptation(mode="auto", layers="last-2"), replace=True
    )
    assert (tried.card.biases is not None) is better
    assert tried.card.trial.endswith("; kept" if better else "; not kept")
    same = all(np.array_equal(tried.tensors[name], tensor) for name, tensor in plain.tensors.items())
    assert same is not better


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"layers": "nonsense"}, "there are no layers"),
        ({"kind": "reprogramming", "layers": "last-2"}, "reprogramming trains none"),
    ],
)
def test_what_cannot_be_trained_is_said_before_any_image_is_opened(
    new_agent: Callable[..., Core],
    tiny_tasks: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, str],
    words: str,
):
    agent = new_agent()
    monkeypatch.setattr(agent.backbone, "describe", lambda *_: pytest.fail("images were opened"))
    with pytest.raises(SkillmeshError, match=words):
        agent.learn(tiny_tasks / "shapes", adaptation=Adaptation(**asked))


def test_always_needs_validation_images_and_auto_says_that_there_are_none(
    new_agent: Callable[..., Core], tmp_path: Path
):
    for name, shade in (("dark", 20), ("light", 220)):
        (tmp_path / "shades" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), (shade,) * 3).save(tmp_path / "shades" / name / "only.png")
    agent = new_agent()
    with pytest.raises(DataError, match="no validation images"):
        agent.learn(tmp_path / "shades", adaptation=Adaptation(mode="always"))
    module, _ = agent.learn(tmp_path / "shades", adaptation=Adaptation(mode="auto"))
    assert module.card.trial.startswith("biases: not tried, since all 0 validation images")


def test_epochs_mirrors_and_a_warm_head_reach_the_training(
    new_agent: Callable[..., Core], tiny_tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    from skillmesh.learning import biases

    asked, train = [], biases.train_biases
    monkeypatch.setattr(biases, "train_biases", lambda *args: asked.append(args[5]) or train(*args))
    new_agent().learn(
        tiny_tasks / "shapes",
        adaptation=Adaptation(mode="always", layers="last-2", epochs=2, mirrored=True, from_plain_head=True),
    )
    assert [(s.epochs, s.flips, s.warm) for s in asked] == [(2, True, True)]


@pytest.mark.parametrize("channels", [368_640, 2_000_000])
def test_the_room_for_biases_is_kept_to_in_huge_networks_too(channels: int):
    tensors = Biases(np.ones(channels, dtype=np.float32)).tensors()
    assert len(tensors["bias.value"]) == 0


def test_layers_that_are_not_there_are_refused_and_nothing_is_lost(
    new_agent: Callable[..., Core], demo_tasks: Path
):
    agent = new_agent()
    with pytest.raises(BackboneError, match="there are no layers 'first'"):
        agent.learn(demo_tasks / "dice", adaptation=Adaptation(mode="always", layers="first"))
    assert len(agent.bank) == 0


def test_images_of_a_task_with_biases_are_named_by_the_head_that_sees_them_so(biased: Core, mixed: list[Path]):
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


def test_auto_trains_nothing_where_nothing_is_left_to_gain(new_agent: Callable[..., Core], tiny_tasks: Path):
    module, _ = new_agent().learn(tiny_tasks / "shapes", adaptation=Adaptation(mode="auto"))
    assert module.card.biases is None
    assert module.card.trial == "biases: not tried, since all 2 validation images are right without"


def fit(wrong: int, sureness: float) -> tuple[Fit, np.ndarray, np.ndarray]:
    """A head that calls so many of a hundred images of two classes by the wrong name, and is so sure of each."""
    labels = np.arange(100) % 2
    x = np.where(np.arange(100) < wrong, 1 - labels, labels)[:, None].astype(np.float32)
    head = Head(np.array([[-sureness], [sureness]], np.float32), np.array([sureness, -sureness], np.float32) / 2)
    return Fit(head, 0.0, 1.0, 1 - wrong / 100, head), x, labels


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ((20, 2.0), (5, 2.0), True),
        ((20, 2.0), (19, 2.0), False),  # one image more: noise
        ((5, 2.0), (20, 2.0), False),
        ((0, 2.0), (0, 9.0), False),  # surer, not better
    ],
)
def test_auto_keeps_what_names_more_images_rightly_beyond_noise(before, after, kept: bool):
    (plain, x, labels), (adapted, seen, _) = fit(*before), fit(*after)
    assert _better(plain, x, adapted, seen, labels) == kept


def test_a_student_that_never_saw_the_images_answers_as_the_teacher_does(
    biased: Core, new_agent: Callable[..., Core], mixed: list[Path], tmp_path: Path
):
    student = new_agent("bob")
    for task in ("dice", "shapes"):
        biased.export(task, tmp_path / f"{task}.skill")
        student.import_file(tmp_path / f"{task}.skill")
    assert [a.shared() for a in student.answer(mixed)] == [a.shared() for a in biased.answer(mixed)]


@pytest.mark.parametrize("order", [("dice", "shapes"), ("shapes", "dice")], ids="-".join)
def test_one_that_adapts_is_not_heard_on_images_of_others_and_those_beside_it_are(
    biased: Core, demo_tasks: Path, order: tuple[str, str]
):
    modules = [biased.bank.find(task) for task in order]
    biased.rebuilds_itself = False
    try:
        biased.use(modules, Mapper(modules, "sketch", biased.prior))
        answers = biased.answer(sorted(demo_tasks.glob("shapes/test/*/*"))[:8])
    finally:
        biased.rebuilds_itself = True
    theirs = [answer for answer in answers if answer.best.task == "shapes"]
    assert len(theirs) >= 6
    for answer in theirs:
        assert {guess.task for guess in answer.guesses} == {"shapes"}, "dice would need a pass of its own"


@pytest.mark.parametrize(
    ("adaptation", "parts", "largest"),
    [
        ("head2toe", {"bias.mask", "bias.value", "bias.scale", "head.exponent"}, 3 * 8840),
        ("reprogramming", {"pattern"}, 224 * 224 * 3),
    ],
)
def test_other_adaptations_travel_too(
    new_agent: Callable[..., Core],
    tiny_tasks: Path,
    tiny_taught: Core,
    tmp_path: Path,
    adaptation: str,
    parts: set[str],
    largest: int,
):
    teacher, student = new_agent("alice"), new_agent("bob")
    module, _ = teacher.learn(tiny_tasks / "shapes", adaptation=Adaptation(mode="always", kind=adaptation))
    teacher.learn(tiny_tasks / "greek")
    assert module.tensors.keys() - tiny_taught.bank.find("shapes").tensors.keys() == parts
    assert module.size < tiny_taught.bank.find("shapes").size + largest + 45_000
    assert module.card.trial.startswith(f"{adaptation}: ")
    for task in ("shapes", "greek"):
        teacher.export(task, tmp_path / f"{task}.skill")
        student.import_file(tmp_path / f"{task}.skill")
    images = sorted(tiny_tasks.glob("shapes/test/*/*")) + sorted(tiny_tasks.glob("greek/test/*/*"))
    found = teacher.answer(images)
    assert [a.shared() for a in student.answer(images)] == [a.shared() for a in found]
    mine = [a for a in found if a.best.task == "shapes"]
    right = [a.best.label == Path(a.image).parent.name for a in mine]
    assert np.mean(right) > 0.6, "what is stored of the head says what the head said"
    for answer in mine:  # the head that looks at the adapted pass has named it
        seen = teacher.seen_by(module, np.zeros((1, module.card.dim), np.float32), [as_image(answer.image)])
        assert seen.shape == (1, module.card.head_dim)
        assert answer.best.label == module.card.classes[teacher.head(module).logits(seen)[0].argmax()]


@pytest.mark.parametrize("changes", [{"biases": (40, 12)}, {"biases": (LITE0, 12), "toes": (3, 2, 5)}])
def test_a_module_for_no_network_that_there_is_spoils_only_its_own_answers(
    biased: Core, new_agent: Callable[..., Core], mixed: list[Path], changes: dict[str, tuple[int, ...]]
):
    from skillmesh.module import Module

    honest, added = biased.bank.find("dice"), np.zeros(changes["biases"][0], dtype=np.float32)
    added[:12] = 1
    card = honest.card.model_copy(update=changes)
    head = {"head.weight": np.ones((len(card.classes), card.head_dim), dtype=np.int8)}
    if card.toes is not None:
        head["head.exponent"] = np.zeros(card.head_dim, dtype=np.int8)
    _, data = Module.create(card, honest.tensors | Biases(added).tensors() | head, biased.identity)
    student = new_agent("bob")
    student.import_bytes(biased.bank.file_of(biased.bank.find("shapes")))
    student.import_bytes(data)
    images = [path for path in mixed if path.parts[-4] in ("dice", "shapes")]
    theirs = [a for a in student.answer(images) if a.best.task == "shapes"]
    assert theirs
    expected = {a.image: a.best.label for a in biased.answer(images)}
    assert [a.best.label for a in theirs] == [expected[a.image] for a in theirs]


def test_biases_that_contradict_themselves_are_not_let_in(
    biased: Core, new_agent: Callable[..., Core], tmp_path: Path
):
    from skillmesh.module import Module

    module = biased.bank.find("dice")
    short = module.tensors | {"bias.value": module.tensors["bias.value"][1:]}
    card = module.card.model_copy(update={"biases": (LITE0, len(short["bias.value"]))})
    _, data = Module.create(card, short, biased.identity)
    (tmp_path / "bad.skill").write_bytes(data)
    with pytest.raises(TensorError, match=r"as many as 'bias.mask' marks"):
        new_agent().import_file(tmp_path / "bad.skill")


def test_adapted_modules_travel_over_the_mesh(new_agent: Callable[..., Core], tiny_tasks: Path, tmp_path: Path):
    teacher = new_agent("alice")
    for task, adaptation in (("shapes", "biases"), ("latin", "head2toe"), ("greek", "reprogramming")):
        teacher.learn(tiny_tasks / task, adaptation=Adaptation(mode="always", kind=adaptation))
    images = [
        path for task in ("shapes", "latin", "greek") for path in sorted((tiny_tasks / task).glob("test/*/*"))
    ]
    mesh = Mesh(tmp_path, [teacher.home])
    try:
        nodes = mesh.node(0), mesh.node(None)
        for node in nodes:
            node.start(wait=False)
        eventually(lambda: all(node.runs() for node in nodes) and mesh.converged(tasks=3))
        found = [answers(node, images) for node in nodes]
        assert found[0] == found[1]
        assert {answer["task"] for answer in found[0]} >= {"shapes", "latin", "greek"}
    finally:
        mesh.stop()


def test_a_training_that_found_nothing_adds_nothing(
    new_agent: Callable[..., Core], tiny_tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    from skillmesh.learning import biases

    train = biases.train_biases
    for value in (0.0, np.nan):
        monkeypatch.setattr(
            biases,
            "train_biases",
            lambda *args, value=value: replace(trained := train(*args), values=trained.values * 0 + value),
        )
        module, _ = new_agent().learn(tiny_tasks / "shapes", adaptation=Adaptation(mode="always"))
        assert module.card.biases is None
        assert module.card.trial.endswith("; not kept")
